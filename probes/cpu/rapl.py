"""CPU energy from the kernel's powercap tree: RAPL counters of packages and their DRAM, Intel's and AMD's alike.

Zones are known by `name`, since a zone's number is not its package's. Knows nothing of processes: the figure is of
the whole machine. Layout: https://docs.kernel.org/power/powercap/powercap.html.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from probes.clock import Clock
from probes.device import Method, PowerSource, Scope
from probes.errors import CounterReset, DeviceLost, NotPermitted, NotSupported, ProbeError
from probes.metering.counting import Counter
from probes.metering.meter import COUNTER_INTERVAL_S
from probes.metering.sampler import LONGEST_GAP_S

MICROJOULES_PER_JOULE = 1_000_000
#: The counters are updated about every millisecond.
TICK_S = 0.001
#: More than any zone can draw; tells a wrap from a counter that began anew, and bounds how soon it can wrap.
ZONE_CEILING_W = 1_000.0
#: Two looks in quick succession may straddle a late update of the counter.
JUMP_ALLOWANCE_S = 0.1

# intel-rapl-mmio:* repeats a package under another control type, so it does not match.
_ZONE_FOLDER = re.compile(r"intel-rapl:\d+(:\d+)?")
_PACKAGE = re.compile(r"package-\d+(-die-\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """One energy counter of the tree."""

    name: str
    energy_file: Path
    #: Where the counter starts over; None when the kernel does not say.
    max_range_uj: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaplZones:
    """The zones whose sum is this machine's CPU energy, none inside another."""

    zones: tuple[Zone, ...]
    scope: Scope

    @property
    def source(self) -> PowerSource:
        """The sum in words."""
        names = ", ".join(zone.name for zone in self.zones)
        return PowerSource(scope=self.scope, method=Method.COUNTER, detail=f"RAPL: {names}", resolution_s=TICK_S)

    def shortest_wrap_s(self) -> float | None:
        """Return the least time in which a counter can wrap; None when no counter's range is known."""
        ranges_uj = [zone.max_range_uj for zone in self.zones if zone.max_range_uj]
        return min(ranges_uj) / MICROJOULES_PER_JOULE / ZONE_CEILING_W if ranges_uj else None

    def longest_gap_s(self) -> float:
        """Return across what silence two readings can still be compared: half the time of a wrap."""
        wrap_s = self.shortest_wrap_s()
        return math.inf if wrap_s is None else wrap_s / 2


def find_zones(root: Path) -> RaplZones:
    """Return the package zones below `root`, with their DRAM when every package has it.

    Cores and uncore lie inside a package and psys around it, so neither is counted. Each counter is read once.
    Raises NotSupported when there are none or one can wrap between two looks, NotPermitted when one cannot be read.
    """
    named = _zone_folders(root)
    packages = {name: folder for name, folder in named.items() if _PACKAGE.fullmatch(name)}
    drams = {name: folder for name, folder in named.items() if name.endswith("/dram")}
    if not packages:
        raise NotSupported(f"powercap: {root} has no intel-rapl package zones")
    has_all_dram = len(drams) == len(packages)
    chosen = {**packages, **(drams if has_all_dram else {})}
    zones = RaplZones(
        zones=tuple(_zone(name, folder) for name, folder in sorted(chosen.items())),
        scope=Scope.CPU_PACKAGE_DRAM if has_all_dram else Scope.CPU_PACKAGE,
    )
    for zone in zones.zones:
        read_uj(zone)
    wrap_s = zones.shortest_wrap_s()
    if wrap_s is not None and wrap_s < 2 * COUNTER_INTERVAL_S:
        raise NotSupported(f"powercap: a counter can wrap within {wrap_s:.2f} s, faster than it is looked at")
    return zones


def open_counter(zones: RaplZones, clock: Clock) -> Counter:
    """Return the sum of the zones as one counter that never wraps, beginning at 0 with its first reading."""
    return Counter(
        read=_UnwrappedSum(zones.zones, clock).read_uj,
        counts_per_joule=MICROJOULES_PER_JOULE,
        max_gap_s=min(LONGEST_GAP_S, zones.longest_gap_s()),
    )


def read_uj(zone: Zone) -> int:
    """Return a zone's raw microjoules.

    Raises NotPermitted (the file is for root alone since CVE-2020-8694), DeviceLost when the zone is gone.
    """
    try:
        return int(zone.energy_file.read_text())
    except PermissionError as error:
        raise NotPermitted(f"powercap: {zone.energy_file} may only be read by root") from error
    except FileNotFoundError as error:
        raise DeviceLost(f"powercap: {zone.energy_file} is gone") from error
    except (OSError, ValueError) as error:
        raise ProbeError(f"powercap: {zone.energy_file} cannot be read: {error}") from error


def unwrapped_step_uj(zone: Zone, before_uj: int, after_uj: int, elapsed_s: float) -> int:
    """Return the microjoules between two raw readings, of which at most one wrap lies in between.

    Raises CounterReset when no range is known to unwrap with, or when the step is more than the zone can draw in
    that time: then it was no wrap but a new beginning, and adding the range would make up energy.
    """
    step_uj = after_uj - before_uj
    if step_uj < 0:
        if not zone.max_range_uj:
            raise CounterReset(f"powercap: {zone.name} went back by {-step_uj} uJ and states no range")
        step_uj += zone.max_range_uj
    ceiling_uj = ZONE_CEILING_W * MICROJOULES_PER_JOULE * (elapsed_s + JUMP_ALLOWANCE_S)
    if not 0 <= step_uj <= ceiling_uj:
        raise CounterReset(f"powercap: {zone.name} moved by {step_uj} uJ within {elapsed_s:.3f} s")
    return step_uj


class _UnwrappedSum:
    """Adds up steps of all zones; a failed look adds nothing, and the next good one bridges it."""

    def __init__(self, zones: Iterable[Zone], clock: Clock) -> None:
        self._zones = tuple(zones)
        self._clock = clock
        self._total_uj = 0
        self._before: tuple[float, Mapping[str, int]] | None = None

    def read_uj(self) -> int:
        """Return microjoules since the first reading."""
        now_s = self._clock.monotonic_s()
        raw = {zone.name: read_uj(zone) for zone in self._zones}
        before, self._before = self._before, (now_s, raw)
        if before is not None:
            before_s, raw_before = before
            self._total_uj += sum(
                unwrapped_step_uj(zone, raw_before[zone.name], raw[zone.name], now_s - before_s) for zone in self._zones
            )
        return self._total_uj


def _zone_folders(root: Path) -> dict[str, Path]:
    """Return folders by name; a zone inside another has its parent's name in front: package-0/dram."""
    try:
        folders = [folder for folder in root.iterdir() if _ZONE_FOLDER.fullmatch(folder.name)]
    except OSError as error:
        raise NotSupported(f"powercap: {root} is not there") from error
    names = {folder.name: _name(folder) for folder in folders}
    named: dict[str, Path] = {}
    for folder in sorted(folders):
        parent = names.get(folder.name.rpartition(":")[0])
        name = f"{parent}/{names[folder.name]}" if parent else names[folder.name]
        named.setdefault(name, folder)
    return named


def _name(folder: Path) -> str:
    try:
        return (folder / "name").read_text().strip()
    except OSError:
        return ""


def _zone(name: str, folder: Path) -> Zone:
    try:
        max_range_uj = int((folder / "max_energy_range_uj").read_text())
    except (OSError, ValueError):
        max_range_uj = 0
    return Zone(name=name, energy_file=folder / "energy_uj", max_range_uj=max_range_uj or None)
