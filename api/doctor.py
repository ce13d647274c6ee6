"""What this machine can do: versions, devices, power sources and their scope, control, models, database.

Changes nothing: not even who may set a device is tried, only whether the guard can be reached.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from api.errors import BAD_INPUT
from api.prepare import probe_host
from api.settings import Settings
from db import migrate
from db.database import Database
from engine.embedded.models import BUILT_IN, free_bytes
from engine.embedded.native.compiler import find_compiler
from engine.errors import NativeKernelsMissing
from probes.control.guard_link import GuardLink
from probes.control.opening import blocked
from probes.detect import Survey, capabilities_of, survey
from probes.device import Capability
from probes.errors import ProbeError
from probes.settings import DEVICE_KNOBS, Settable
from probes.simulated.accelerators import ACCELERATORS
from probes.simulated.names import PREFIX

PACKAGES = ("tuner", "probes", "engine", "db", "api")
_VERSIONS_OF = ("wattfront", "torch", "optuna", "sqlalchemy", "fastapi", "nvidia-ml-py")
#: What the default model needs: fp32 weights on disk and in memory, with room for a KV cache.
_MODEL_DISK_BYTES = 700 * 2**20
_MODEL_RAM_BYTES = 3 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report."""

    section: str
    name: str
    #: None for plain facts.
    is_good: bool | None
    text: str
    #: Whether tuning cannot run without it.
    is_needed: bool = False


def examine(settings: Settings) -> list[Finding]:
    """Look at everything; a check that breaks becomes a finding."""
    seen = survey(probe_host(settings))
    sources = capabilities_of(seen)
    return [
        *_machine(),
        *_versions(),
        *_devices(seen),
        *_power(sources),
        *_control(settings, seen),
        *_simulated(),
        *_models(settings),
        *_database(settings),
    ]


def can_tune(findings: list[Finding]) -> bool:
    """Tell whether nothing that tuning needs is missing."""
    return not any(finding.is_needed and finding.is_good is False for finding in findings)


def _machine() -> list[Finding]:
    memory = psutil.virtual_memory()
    enough = memory.available >= _MODEL_RAM_BYTES
    ram = f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free"
    return [
        Finding(section="machine", name="system", is_good=None, text=f"{platform.system()} {platform.release()}"),
        Finding(section="machine", name="cores", is_good=None, text=f"{len(os.sched_getaffinity(0))} usable"),
        Finding(
            section="machine",
            name="memory",
            is_good=enough,
            text=ram if enough else f"{ram}; the default model wants {_MODEL_RAM_BYTES / 2**30:.0f} GiB",
        ),
        _kernels(),
    ]


def _kernels() -> Finding:
    """Tell whether the embedded engine's kernels for CPUs can be compiled."""
    try:
        is_good, text = True, f"compiled at first use by {' '.join(find_compiler())}"
    except NativeKernelsMissing as error:
        is_good, text = False, f"torch computes in their place, more slowly: {error}"
    return Finding(section="machine", name="kernels", is_good=is_good, text=text)


def _versions() -> list[Finding]:
    findings = [Finding(section="versions", name="python", is_good=None, text=sys.version.split()[0])]
    for name in _VERSIONS_OF:
        findings.append(Finding(section="versions", name=name, is_good=None, text=_version(name)))
    claims = importlib.metadata.packages_distributions()
    for name in PACKAGES:
        others = sorted(set(claims.get(name, [])) - {"wattfront"})
        if others:
            text = f"also claimed by {', '.join(others)}; uninstall that, or use a virtual environment"
            findings.append(Finding(section="versions", name=name, is_good=False, text=text, is_needed=True))
    return findings


def _devices(seen: Survey) -> list[Finding]:
    findings = []
    for device in seen.devices:
        source = device.power_source
        if source is None:
            text = "no power reading: cannot be tuned for tokens per watt"
        else:
            text = f"energy of scope {source.scope} by {source.method} ({source.detail})"
        findings.append(
            Finding(
                section="devices", name=f"{device.info.uuid} {device.info.name}", is_good=source is not None, text=text
            )
        )
    if not any(finding.is_good for finding in findings):
        text = "no device gives a power reading"
        findings.append(Finding(section="devices", name="power", is_good=False, text=text, is_needed=True))
    return findings


def _power(sources: Sequence[Capability]) -> list[Finding]:
    return [
        Finding(section="power sources", name=found.name, is_good=found.is_available, text=found.reason)
        for found in sources
        if not found.name.endswith(DEVICE_KNOBS)  # those are told under control
    ]


def _control(settings: Settings, seen: Survey) -> list[Finding]:
    """Tell who may set clocks and limits, through whom, which knobs there are, and what is still to be put back."""
    return [_permission(settings), _guard(settings), *_knobs(seen), *_blocked(settings)]


def _permission(settings: Settings) -> Finding:
    if settings.allow_device_control:
        text = "allowed by WATTFRONT_ALLOW_DEVICE_CONTROL: jobs that ask for it set clocks and power limits"
    else:
        text = (
            "observe only: clocks and power limits stay as they are found, and jobs that ask to set them are refused; "
            "WATTFRONT_ALLOW_DEVICE_CONTROL=true allows it"
        )
    return Finding(section="control", name="permission", is_good=None, text=text)


def _guard(settings: Settings) -> Finding:
    place = settings.guard_socket
    if not place.exists():
        is_good = False if settings.allow_device_control else None
        text = f"not there, no socket at {place}: {_without_guard(settings)}"
        return Finding(section="control", name="guard", is_good=is_good, text=text)
    try:
        link = GuardLink(place, label="doctor")
    except ProbeError as error:
        text = f"{error}; until it answers, jobs that would set something are refused"
        return Finding(section="control", name="guard", is_good=False, text=text)
    link.close()
    welcome = link.welcome
    offers = "; ".join(
        f"{offer.device_uuid}: {', '.join(map(_settable_words, offer.knobs)) or 'nothing'}" for offer in welcome.offers
    )
    text = (
        f"process {welcome.guard_pid} answers at {place} and sets on our behalf, with its journal in "
        f"{welcome.state_dir}; it allows {offers or 'nothing'}"
    )
    return Finding(section="control", name="guard", is_good=bool(welcome.offers), text=text)


def _without_guard(settings: Settings) -> str:
    if not settings.allow_device_control:
        return "none is needed while nothing may be set"
    if os.geteuid() == 0:
        return (
            "this process sets devices itself, as root; if it is killed, the next worker or `wattfront restore` puts "
            "back what was found"
        )
    return "this process can only observe, since setting needs root; run `wattfront guard` as root"


def _knobs(seen: Survey) -> list[Finding]:
    findings = []
    for device in seen.devices:
        try:
            words = ", ".join(_settable_words(settable) for settable in device.settables())
            missing = [one.reason for one in device.capabilities() if one.name.endswith(DEVICE_KNOBS)]
        except ProbeError as error:
            words, missing = "", [str(error)]
        why = f" ({'; '.join(missing)})" if missing else ""
        text = words or f"nothing can be set here{why}: trials run at the clocks they find"
        name = f"{device.info.uuid} {device.info.name}"
        findings.append(Finding(section="control", name=name, is_good=bool(words), text=text))
    return findings


def _settable_words(settable: Settable) -> str:
    between = "every whole number" if settable.is_range else f"{len(settable.values)} values"
    return f"{settable.name} {settable.lowest} to {settable.highest} ({between})"


def _blocked(settings: Settings) -> list[Finding]:
    try:
        failed = blocked(settings.state_dir)
    except ProbeError as error:
        return [Finding(section="control", name="state", is_good=False, text=str(error), is_needed=True)]
    return [
        Finding(
            section="control",
            name=uuid,
            is_good=False,
            text=f"not as it was found ({detail}); no job may use it until `wattfront restore`, run as root, succeeds",
            is_needed=True,
        )
        for uuid, detail in failed.items()
    ]


def _simulated() -> list[Finding]:
    """Tell what can be simulated, on any machine."""
    names = ", ".join(f"{PREFIX}{key}" for key in ACCELERATORS)
    text = f"{names}; several GPUs as in {PREFIX}{next(iter(ACCELERATORS))}:8; nothing is measured on them"
    return [Finding(section="simulated devices", name="models of", is_good=None, text=text)]


def _models(settings: Settings) -> list[Finding]:
    findings = []
    for name, source in BUILT_IN.items():
        folder = settings.cache_dir / "models" / f"{name}-{source.gguf_sha256[:16]}"
        is_here = (folder / "config.json").is_file()
        free = free_bytes(settings.cache_dir)
        if is_here:
            text = f"{source.description}; ready in {folder}"
        else:
            text = f"{source.description}; fetched on first use into {settings.cache_dir} ({free / 2**30:.1f} GiB free)"
        is_good = is_here or free >= _MODEL_DISK_BYTES
        findings.append(Finding(section="models", name=name, is_good=is_good, text=text, is_needed=True))
    return findings


def _database(settings: Settings) -> list[Finding]:
    url = settings.database_url
    path = url.removeprefix("sqlite:///")
    if path != url and not Path(path).exists():  # looking at it would create it
        return [Finding(section="database", name=url, is_good=True, text="not there yet; made on first use")]
    try:
        database = Database(url, busy_timeout_s=2.0)
        try:
            found = migrate.current(database)
        finally:
            database.dispose()
    except BAD_INPUT as error:
        return [Finding(section="database", name=url, is_good=False, text=str(error), is_needed=True)]
    text = (
        "empty; tables are made on first use" if found is None else f"schema version {found}, needed {migrate.head()}"
    )
    return [Finding(section="database", name=url, is_good=True, text=text, is_needed=True)]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed as a package"
