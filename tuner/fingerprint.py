"""What figures were measured on and under: what makes two of them comparable, and one stand in for the other. Pure.

Two figures may be compared when their origins agree. A measurement may stand in for one not yet made when, beyond
that, workload and protocol agree (the fingerprint) and every setting of engine and device does (the settings' key).
Knows nothing of where measurements are kept, nor how old they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from engine.settings import EngineSettings
from probes.device import Device, Method, Scope
from probes.errors import ProbeError
from probes.settings import DeviceSettings
from tuner.measurement import Measurement
from tuner.request import TuneRequest

#: To be raised whenever windows, meters, statistics or the text of the prompts change in a way that moves figures.
PROTOCOL_VERSION = 1
#: Fields of the window rule that say how a window is measured; the others say when to leave off, or are no window's.
_OF_THE_WINDOW = ("warmup_s", "max_warmup_s", "window_s", "min_requests", "max_window_s")
#: What a device says of itself that tells where it is, and nothing of how it works.
_OF_THE_PLACE = ("pci_id", "cuda_ordinal")
_POWER_LIMIT = "power_limit_w"
_ESTIMATES = (Method.ESTIMATE, Method.SIMULATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What was measured, with what."""

    device_uuids: tuple[str, ...]
    driver: str | None
    scope: Scope
    method: Method
    engine: str
    version: str
    model_hash: str

    @property
    def family(self) -> tuple[object, ...]:
        """What must agree for figures to be compared: everything but how energy was read, if it was."""
        is_estimate = self.method in _ESTIMATES
        served_by = (self.engine, self.version, self.model_hash)
        return (self.scope, is_estimate, self.device_uuids, self.driver, *served_by)

    def differences(self, other: Origin) -> list[str]:
        """Return the names of the fields in which the two differ."""
        mine, others = asdict(self), asdict(other)
        return [name for name in mine if mine[name] != others[name]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseKey:
    """Two measurements with the same key are of the same thing. Both parts are SHA-256 in hexadecimal."""

    fingerprint: str
    settings: str


def origin_of(measurement: Measurement) -> Origin:
    """Return a measurement's origin, from its own records."""
    reading, served_by = measurement.reading, measurement.engine
    return Origin(
        device_uuids=reading.device_uuids,
        driver=measurement.driver,
        scope=reading.scope,
        method=reading.method,
        engine=served_by.engine,
        version=served_by.version,
        model_hash=served_by.model_hash,
    )


def fingerprint(
    origin: Origin,
    request: TuneRequest,
    *,
    details: Sequence[tuple[str, str]] = (),
    trace_sha256: str | None = None,
    text_sha256: str | None = None,
) -> str:
    """Hash everything but the settings that a measurement depends on: origin, device, workload, text and protocol.

    `details` are the device's own, as its power limit or governor. The other two are of the workload's trace and of the
    text that quality is measured on, whose paths say nothing of their content.
    """
    workload = {**asdict(request.workload), "trace_file": trace_sha256}
    workload.pop("trace_sha256", None)  # said by the line above, whether the job noted it or not
    window = {name: getattr(request.window, name) for name in _OF_THE_WINDOW}
    of_device = sorted((name, value) for name, value in details if name not in _OF_THE_PLACE)
    return _hash([PROTOCOL_VERSION, asdict(origin), of_device, workload, window, text_sha256])


def details_of(device: Device) -> tuple[tuple[str, str], ...]:
    """Return a device's own details, with the power limit in force where they lack it: some vendors' do not tell it.

    To be asked before a job sets anything. A device that does not answer adds nothing.
    """
    details = device.info.details
    if any(name.endswith(_POWER_LIMIT) for name, _ in details):
        return details
    try:
        limit_w = device.status().power_limit_w
    except ProbeError:
        limit_w = None
    return details if limit_w is None else (*details, (_POWER_LIMIT, str(limit_w)))


def settings_key(engine: EngineSettings, device: DeviceSettings) -> str:
    """Hash every setting of a point, those included that its job did not search.

    The model's name is left out: the fingerprint has the hash of its weights.
    """
    return _hash([{**asdict(engine), "model": None}, asdict(device)])


def _hash(value: object) -> str:
    """SHA-256 of canonical JSON; numbers that are equal are written alike, be they 30 or 30.0."""
    return hashlib.sha256(json.dumps(_plain(value), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
