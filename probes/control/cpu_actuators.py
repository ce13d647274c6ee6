"""The CPU's clock cap through cpufreq: `scaling_max_freq` of every policy of the machine.

Reads intel_pstate's own limits too, since the most restrictive holds, but sets them only to put back what was found.
Does not know whether firmware keeps the cap, nor anything of journals.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from probes.control.actuator import Found
from probes.cpu.cpufreq import (
    CAP_FILE,
    KILOHERTZ_PER_MEGAHERTZ,
    PSTATE_FILES,
    CpufreqTree,
    Policy,
    find_tree,
    read_number,
)
from probes.cpu.paths import HostPaths
from probes.errors import DeviceLost, InvalidSetting, NotPermitted, ProbeError, RestoreFailed
from probes.settings import CPU_CLOCK_CAP, Settable

_POLICY = re.compile(r"policy\d+")


class CpuClockCap:
    """Sets `cpu_clock_cap_mhz` of one machine; looks for the tree anew each time, since cores come and go."""

    def __init__(self, paths: HostPaths, device_uuid: str) -> None:
        self._cpu = paths.cpu
        self._device_uuid = device_uuid

    @property
    def device_uuid(self) -> str:
        """The CPU's UUID."""
        return self._device_uuid

    @property
    def knob(self) -> str:
        """The field of DeviceSettings."""
        return CPU_CLOCK_CAP

    def settable(self) -> Settable:
        """Return the caps in MHz: the clocks that all policies list, else a range. Raises NotSupported without any."""
        return self._tree().settable()

    def look(self) -> Found:
        """Return every policy's cap in kHz, and intel_pstate's limits where it has them."""
        tree = self._tree()
        return {**tree.caps_khz(), **tree.pstate()}

    def value_of(self, found: Found) -> int | None:
        """Return the highest cap of all policies, in MHz."""
        caps_khz = [value for name, value in found.items() if name.startswith("policy")]
        return max(caps_khz) // KILOHERTZ_PER_MEGAHERTZ if caps_khz else None

    def set(self, value: int) -> None:
        """Cap every policy at `value` MHz; where one write fails, those before it are undone and its error raised.

        Raises NotPermitted, InvalidSetting, DeviceLost, or RestoreFailed when undoing failed too.
        """
        tree = self._tree()
        before = tree.caps_khz()
        for number, policy in enumerate(tree.policies):
            try:
                write_number(policy.cap_file, policy.target_khz(value))
            except ProbeError as error:
                _undo(tree.policies[:number], before, error)
                raise

    def deviation(self, value: int) -> str | None:
        """Return which policy has another cap, or that intel_pstate allows less; None when the cap is in force."""
        return self._tree().deviation(value)

    def put_back(self, found: Found) -> None:
        """Write what was found and read it back, policies in reverse order, every one of them even if others fail.

        intel_pstate's limits come first, for the kernel lowers the policies to them, and are written only where
        somebody changed them. Raises RestoreFailed with everything that is not as it was found.
        """
        pstate = [name for name in reversed(PSTATE_FILES) if name in found]
        policies = sorted(filter(_POLICY.fullmatch, found), key=_position, reverse=True)
        wanted = {self._cpu / "intel_pstate" / name: found[name] for name in pstate}
        wanted |= {self._cpu / "cpufreq" / name / CAP_FILE: found[name] for name in policies}
        _restore(wanted.items())
        unknown = set(found).difference(pstate, policies)
        if unknown:  # a journal may have been tampered with, and root must not write whatever it names
            raise RestoreFailed(f"cpufreq: {', '.join(sorted(unknown))}: no policy is called so")

    def reset(self) -> None:
        """Lift the cap of every policy to its highest clock. Raises RestoreFailed with those that refused."""
        policies: Iterable[Policy] = reversed(self._tree().policies)
        _restore((policy.cap_file, policy.highest_khz) for policy in policies)

    def _tree(self) -> CpufreqTree:
        return find_tree(self._cpu)


def write_number(file: Path, value: int) -> None:
    """Write one of the tree's files.

    Raises NotPermitted with the remedy, InvalidSetting when the kernel refuses the value, DeviceLost when the file is
    gone, ProbeError on anything else.
    """
    try:
        with file.open("r+") as stream:  # a file that is not there must not come into being
            stream.write(f"{value}\n")
    except FileNotFoundError as error:
        raise DeviceLost(f"cpufreq: {file} is gone") from error
    except OSError as error:
        raise _named(error, file, value) from error


def _named(error: OSError, file: Path, value: int) -> ProbeError:
    if error.errno in (errno.EACCES, errno.EPERM):
        return NotPermitted(f"cpufreq: only root may write {file}; run as root, or run `wattfront guard` as root")
    if error.errno == errno.EROFS:
        return NotPermitted(f"cpufreq: {file} lies on a read-only mount; run outside the container, or mount /sys rw")
    if error.errno == errno.EINVAL:
        return InvalidSetting(f"cpufreq: the kernel refuses {value} in {file}")
    return ProbeError(f"cpufreq: {file} cannot be written: {error}")


def _undo(written: tuple[Policy, ...], before: Found, cause: ProbeError) -> None:
    try:
        _restore((policy.cap_file, before[policy.name]) for policy in reversed(written))
    except RestoreFailed as error:
        raise RestoreFailed(f"{cause}; then {error}") from cause


def _restore(wanted: Iterable[tuple[Path, int]]) -> None:
    """Write every file that has another value, then read all back; raise RestoreFailed with all that differ."""
    wanted = tuple(wanted)
    problems: dict[Path, ProbeError] = {}
    for file, value in wanted:
        try:
            if read_number(file) != value:
                write_number(file, value)
        except ProbeError as error:
            problems[file] = error
    for file, value in wanted:
        with suppress(ProbeError):  # an unreadable file is among the problems already
            seen = read_number(file)
            if seen != value:
                problems.setdefault(file, ProbeError(f"cpufreq: {file} is {seen} instead of {value}"))
    if problems:
        raise RestoreFailed("; ".join(map(str, problems.values())))


def _position(policy: str) -> tuple[int, str]:
    """Order policy10 after policy9."""
    return len(policy), policy
