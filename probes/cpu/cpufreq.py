"""The kernel's cpufreq tree: which clocks the cores have, which cap is in force, what they run at.

A policy is a group of cores that share a clock. Reads only; `probes.control.cpu_actuators` writes. Does not know what
lies beneath the kernel: firmware may hold clocks lower, and in a virtual machine there is usually no tree at all.
Layout: https://docs.kernel.org/admin-guide/pm/cpufreq.html, and intel_pstate.html beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from probes.errors import DeviceLost, NotPermitted, NotSupported, ProbeError
from probes.settings import CPU_CLOCK_CAP, Settable
from probes.validity import Reason

KILOHERTZ_PER_MEGAHERTZ = 1000
CAP_FILE = "scaling_max_freq"
CURRENT_FILE = "scaling_cur_freq"
#: intel_pstate's limits for all cores at once, beside each policy's own: percent of the highest clock, and 1 for none
#: above the base clock. The most restrictive of all holds.
PSTATE_FILES = ("max_perf_pct", "no_turbo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One group of cores with a clock of their own; frequencies as the kernel has them, in kHz."""

    #: As the folder is called: policy0.
    name: str
    folder: Path
    #: Those online.
    cores: frozenset[int]
    lowest_khz: int
    highest_khz: int
    #: Ascending, the boost clock included; empty where the driver takes any value in between.
    listed_khz: tuple[int, ...] = ()

    @property
    def cap_file(self) -> Path:
        """The file that holds the cap."""
        return self.folder / CAP_FILE

    def cap_khz(self) -> int:
        """Return the cap in force. Raises DeviceLost when the policy is gone."""
        return read_number(self.cap_file)

    def current_khz(self) -> int:
        """Return the present clock. Raises DeviceLost when the policy is gone."""
        return read_number(self.folder / CURRENT_FILE)

    def target_khz(self, value_mhz: int) -> int:
        """Return what to write for a cap in MHz: the policy's highest clock not above it, never below its lowest.

        A clock that is no whole number of MHz is meant by its whole part, so that the highest can be named too.
        """
        if self.listed_khz:
            return max((khz for khz in self.listed_khz if _mhz(khz) <= value_mhz), default=self.lowest_khz)
        if value_mhz >= _mhz(self.highest_khz):
            return self.highest_khz
        return max(value_mhz * KILOHERTZ_PER_MEGAHERTZ, self.lowest_khz)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpufreqTree:
    """All policies, and the limits of intel_pstate where that is the driver."""

    policies: tuple[Policy, ...]
    pstate_folder: Path | None

    def caps_khz(self) -> dict[str, int]:
        """Return the cap of every policy by its name. Raises DeviceLost when one is gone."""
        return {policy.name: policy.cap_khz() for policy in self.policies}

    def pstate(self) -> dict[str, int]:
        """Return intel_pstate's limits by file name; those that are absent or unreadable are left out."""
        if self.pstate_folder is None:
            return {}
        found = {name: _number_or_none(self.pstate_folder / name) for name in PSTATE_FILES}
        return {name: value for name, value in found.items() if value is not None}

    def clock_mhz(self, cores: Iterable[int]) -> float | None:
        """Return the mean present clock over those of the cores that are online; None where none of them tells."""
        wanted = frozenset(cores)
        weights = {policy: len(policy.cores & wanted) for policy in self.policies if policy.cores & wanted}
        clocks_khz = {policy: _number_or_none(policy.folder / CURRENT_FILE) for policy in weights}
        known = {policy: khz for policy, khz in clocks_khz.items() if khz}
        if not known:
            return None
        total_khz = sum(khz * weights[policy] for policy, khz in known.items())
        return total_khz / sum(weights[policy] for policy in known) / KILOHERTZ_PER_MEGAHERTZ

    def settable(self) -> Settable:
        """Return the caps, in MHz, that every policy can keep.

        With cores of different kinds the highest is that of the fastest: slower ones are then at their own highest.
        A lower limit of intel_pstate bounds the range, since no cap can raise it. Raises NotSupported where that
        leaves nothing.
        """
        lowest_mhz = max(math.ceil(policy.lowest_khz / KILOHERTZ_PER_MEGAHERTZ) for policy in self.policies)
        highest_khz = max(policy.highest_khz for policy in self.policies)
        ceiling_mhz = _mhz(min(highest_khz, pstate_ceiling_khz(self.pstate(), highest_khz)))
        if ceiling_mhz < lowest_mhz:
            raise NotSupported(f"cpufreq: the highest clock of {ceiling_mhz} MHz is below the lowest, {lowest_mhz} MHz")
        lists = [frozenset(map(_mhz, policy.listed_khz)) for policy in self.policies]
        shared = [mhz for mhz in frozenset.intersection(*lists) if lowest_mhz <= mhz <= ceiling_mhz]
        if shared:
            return Settable(name=CPU_CLOCK_CAP, values=tuple(sorted(shared)))
        return Settable(name=CPU_CLOCK_CAP, values=(lowest_mhz, ceiling_mhz), is_range=True)

    def deviation(self, value_mhz: int) -> str | None:
        """Return why a cap is not in force, or None when it is. Raises DeviceLost when a policy is gone."""
        for policy in self.policies:
            cap_khz, target_khz = policy.cap_khz(), policy.target_khz(value_mhz)
            if _mhz(cap_khz) != _mhz(target_khz):
                return f"cpufreq: {policy.cap_file} is {cap_khz} kHz instead of {target_khz} kHz"
        pstate = self.pstate()
        highest_khz = max(policy.highest_khz for policy in self.policies)
        ceiling_khz = pstate_ceiling_khz(pstate, highest_khz)
        if _mhz(ceiling_khz) < min(value_mhz, _mhz(highest_khz)):
            percent = pstate["max_perf_pct"]
            return (
                f"{Reason.LIMIT_OVERRIDDEN}: intel_pstate's max_perf_pct of {percent} % allows "
                f"{_mhz(ceiling_khz)} MHz, less than {value_mhz} MHz"
            )
        return None


def find_tree(cpu: Path) -> CpufreqTree:
    """Return the policies below `cpu` that have a core online.

    Raises NotSupported where there are none, NotPermitted where they may not be read.
    """
    folders = sorted((cpu / "cpufreq").glob("policy*"), key=lambda folder: (len(folder.name), folder.name))
    policies = tuple(policy for policy in map(_policy, folders) if policy)
    if not policies:
        raise NotSupported(f"cpufreq: {cpu / 'cpufreq'} has no policies, as in most virtual machines")
    pstate = cpu / "intel_pstate"
    return CpufreqTree(policies=policies, pstate_folder=pstate if pstate.is_dir() else None)


def pstate_ceiling_khz(pstate: Mapping[str, int], highest_khz: int) -> int:
    """Return the highest clock that intel_pstate allows.

    max_perf_pct is percent of the highest turbo clock. With no_turbo set the kernel shows the base clock as the
    highest, so the percentage cannot be applied, and that highest is all that is known.
    """
    return highest_khz if pstate.get("no_turbo") else highest_khz * pstate.get("max_perf_pct", 100) // 100


def read_number(file: Path) -> int:
    """Return a file's whole number.

    Raises DeviceLost when the file is gone, NotPermitted when it may not be read, ProbeError on anything else.
    """
    try:
        return int(file.read_text())
    except FileNotFoundError as error:
        raise DeviceLost(f"cpufreq: {file} is gone") from error
    except PermissionError as error:
        raise NotPermitted(f"cpufreq: {file} may not be read; run as root, or as a user who may read it") from error
    except (OSError, ValueError) as error:
        raise ProbeError(f"cpufreq: {file} cannot be read: {error}") from error


def _policy(folder: Path) -> Policy | None:
    """Return one policy; None when all its cores are offline, for the kernel then refuses every read."""
    try:
        cores = frozenset(map(int, (folder / "affected_cpus").read_text().split()))
    except (OSError, ValueError):
        return None
    if not cores:
        return None
    highest_khz = read_number(folder / "cpuinfo_max_freq")
    return Policy(
        name=folder.name,
        folder=folder,
        cores=cores,
        lowest_khz=read_number(folder / "cpuinfo_min_freq"),
        highest_khz=highest_khz,
        listed_khz=_listed_khz(folder / "scaling_available_frequencies", highest_khz),
    )


def _listed_khz(file: Path, highest_khz: int) -> tuple[int, ...]:
    """Return the listed clocks and the highest, which as a boost clock has a list of its own."""
    try:
        listed = {int(text) for text in file.read_text().split()}
    except (OSError, ValueError):
        return ()
    return tuple(sorted(listed | {highest_khz})) if listed else ()


def _number_or_none(file: Path) -> int | None:
    try:
        return read_number(file)
    except ProbeError:
        return None


def _mhz(khz: int) -> int:
    return khz // KILOHERTZ_PER_MEGAHERTZ
