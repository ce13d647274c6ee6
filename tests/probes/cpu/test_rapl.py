"""RAPL counters over a fake powercap tree."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.cpu.rapl import RaplZones, Zone, find_zones, open_counter, read_uj, unwrapped_step_uj
from probes.device import Method, Reading, Scope
from probes.errors import CounterReset, DeviceLost, NotPermitted, NotSupported, ProbeError
from probes.metering.counting import Counter
from probes.metering.findings import Subject
from probes.metering.meter import CounterMeter
from probes.validity import Reason
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_host import RANGE_UJ, write_zone

PACKAGE_W = 100.0


@dataclass(slots=True)
class Counters:
    """Energy files that count 100 W each; `advance` writes them as time passes."""

    clock: FakeClock
    files: list[Path]
    values_uj: list[int]
    range_uj: int = RANGE_UJ

    def advance(self, seconds: float, *, step_s: float = 0.5) -> None:
        for _ in range(round(seconds / step_s)):
            for i, file in enumerate(self.files):
                self.values_uj[i] = (self.values_uj[i] + round(PACKAGE_W * step_s * 1e6)) % self.range_uj
                file.write_text(f"{self.values_uj[i]}\n")
            self.clock.advance(step_s)


def make_counters(root: Path, clock: FakeClock, *values_uj: int) -> Counters:
    files = [write_zone(root, f"intel-rapl:{i}", f"package-{i}", value) for i, value in enumerate(values_uj)]
    return Counters(clock=clock, files=files, values_uj=list(values_uj))


def make_meter(root: Path, clock: FakeClock) -> CounterMeter:
    zones = find_zones(root)
    subject = Subject(source=zones.source, device_uuids=("CPU-1",))
    return CounterMeter(lambda: open_counter(zones, clock), subject, clock=clock)


def names_of(zones: RaplZones) -> list[str]:
    return [zone.name for zone in zones.zones]


def make_zone(max_range_uj: int | None = RANGE_UJ) -> Zone:
    return Zone(name="package-0", energy_file=Path("energy_uj"), max_range_uj=max_range_uj)


def measure(counters: Counters, meter: CounterMeter, seconds: float = 10.0) -> Reading:
    meter.start()
    counters.advance(seconds)
    return meter.stop()


def test_packages_are_added_up(tmp_path: Path, clock: FakeClock) -> None:
    """Two packages of 100 W for 10 s are 2 kJ, counted, of the packages."""
    counters = make_counters(tmp_path, clock, 5_000, 7_000)
    reading = measure(counters, make_meter(tmp_path, clock))
    assert pytest.approx(2000.0) == reading.energy_j
    assert (reading.scope, reading.method, reading.is_valid) == (Scope.CPU_PACKAGE, Method.COUNTER, True)
    assert reading.detail == "RAPL: package-0, package-1"


def test_one_wrap_adds_the_range(tmp_path: Path, clock: FakeClock) -> None:
    """A counter that starts over within the window loses nothing."""
    counters = make_counters(tmp_path, clock, RANGE_UJ - 250_000_000)
    assert pytest.approx(1000.0) == measure(counters, make_meter(tmp_path, clock)).energy_j


@given(
    st.integers(min_value=0, max_value=RANGE_UJ - 1),
    st.lists(st.integers(min_value=0, max_value=500_000_000), min_size=1, max_size=20),
)
def test_unwrapping_gives_back_what_was_counted(start_uj: int, steps_uj: list[int]) -> None:
    """Wherever a counter starts and whenever it wraps, the unwrapped steps are the true ones."""
    raw = [start_uj]
    for step_uj in steps_uj:
        raw.append((raw[-1] + step_uj) % RANGE_UJ)
    zone = make_zone()
    found = [unwrapped_step_uj(zone, before, after, 0.5) for before, after in pairwise(raw)]
    assert steps_uj == found


def test_a_fall_without_a_range_is_a_reset() -> None:
    """Without max_energy_range_uj a fall cannot be unwrapped, so the reading is dropped."""
    with pytest.raises(CounterReset, match="states no range"):
        unwrapped_step_uj(make_zone(None), 10_000, 10, 0.5)


@pytest.mark.parametrize("max_range_uj", [None, 0])
def test_a_missing_range_makes_a_fall_invalid(tmp_path: Path, clock: FakeClock, max_range_uj: int | None) -> None:
    """With the range absent or 0 a wrap gives counter_reset and None, never negative energy."""
    file = write_zone(tmp_path, "intel-rapl:0", "package-0", 900_000, max_range_uj=max_range_uj)
    meter = make_meter(tmp_path, clock)
    meter.start()
    clock.advance(1.0)
    file.write_text("100\n")
    clock.advance(1.0)
    reading = meter.stop()
    assert (reading.energy_j, reading.reasons) == (None, (Reason.COUNTER_RESET,))


def test_a_counter_that_begins_anew_is_not_taken_for_a_wrap(tmp_path: Path, clock: FakeClock) -> None:
    """A fall from mid-range would need more power than any package has, so no range is added."""
    file = write_zone(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ // 2)
    meter = make_meter(tmp_path, clock)
    meter.start()
    clock.advance(1.0)
    file.write_text("100\n")
    clock.advance(1.0)
    reading = meter.stop()
    assert (reading.energy_j, reading.reasons) == (None, (Reason.COUNTER_RESET,))


def test_a_failed_look_in_between_adds_nothing(tmp_path: Path, clock: FakeClock) -> None:
    """An error between two good readings is bridged by the counter: no phantom energy, none lost."""
    counters = make_counters(tmp_path, clock, 50_000_000_000)
    meter = make_meter(tmp_path, clock)
    meter.start()
    counters.advance(3.0)
    counters.files[0].write_text("")
    clock.advance(0.5)
    counters.advance(3.0)
    reading = meter.stop()
    assert pytest.approx(600.0) == reading.energy_j
    assert reading.is_valid


def test_failures_for_longer_than_three_seconds_are_a_gap(tmp_path: Path, clock: FakeClock) -> None:
    """Too long a silence might hide a wrap, so it makes the window invalid."""
    counters = make_counters(tmp_path, clock, 0)
    meter = make_meter(tmp_path, clock)
    meter.start()
    counters.advance(3.0)
    counters.files[0].write_text("")
    clock.advance(4.0)
    counters.advance(3.0)
    reading = meter.stop()
    assert (reading.energy_j, reading.reasons) == (None, (Reason.SAMPLING_GAP,))


def test_a_zone_that_disappears_is_lost(tmp_path: Path, clock: FakeClock) -> None:
    """A package taken offline in mid-window gives None and device_lost, not the rest of the sum."""
    counters = make_counters(tmp_path, clock, 0, 0)
    meter = make_meter(tmp_path, clock)
    meter.start()
    counters.advance(3.0)
    counters.files.pop().unlink()
    counters.advance(3.0)
    reading = meter.stop()
    assert (reading.energy_j, reading.reasons) == (None, ("device_lost",))


def test_zones_are_known_by_name_not_by_number(tmp_path: Path) -> None:
    """With the order of zones swapped, package-0 is still package-0."""
    write_zone(tmp_path, "intel-rapl:0", "package-1", 1_000)
    write_zone(tmp_path, "intel-rapl:1", "package-0", 2_000)
    zones = find_zones(tmp_path)
    assert names_of(zones) == ["package-0", "package-1"]
    assert [read_uj(zone) for zone in zones.zones] == [2_000, 1_000]


def test_nothing_inside_or_around_a_package_is_counted(tmp_path: Path) -> None:
    """Core, uncore, psys and the mmio twin are left out; AMD's package and core carry the same names."""
    write_zone(tmp_path, "intel-rapl:0", "package-0", 1)
    write_zone(tmp_path, "intel-rapl:0:0", "core", 1)
    write_zone(tmp_path, "intel-rapl:0:1", "uncore", 1)
    write_zone(tmp_path, "intel-rapl:1", "psys", 1)
    write_zone(tmp_path, "intel-rapl-mmio:0", "package-0", 1)
    (tmp_path / "intel-rapl").mkdir()
    zones = find_zones(tmp_path)
    assert (names_of(zones), zones.scope) == (["package-0"], Scope.CPU_PACKAGE)


def test_dram_is_added_when_every_package_has_it(tmp_path: Path) -> None:
    """DRAM is not part of a package's counter, so it is counted too, and the scope says so."""
    for i in range(2):
        write_zone(tmp_path, f"intel-rapl:{i}", f"package-{i}", 1)
        write_zone(tmp_path, f"intel-rapl:{i}:0", "dram", 1)
    zones = find_zones(tmp_path)
    assert names_of(zones) == ["package-0", "package-0/dram", "package-1", "package-1/dram"]
    assert Scope.CPU_PACKAGE_DRAM is zones.scope


def test_dram_of_some_packages_only_is_left_out(tmp_path: Path) -> None:
    """A sum of two packages and one DRAM would have no name, so it is not formed."""
    for i in range(2):
        write_zone(tmp_path, f"intel-rapl:{i}", f"package-{i}", 1)
    write_zone(tmp_path, "intel-rapl:0:0", "dram", 1)
    zones = find_zones(tmp_path)
    assert (names_of(zones), zones.scope) == (["package-0", "package-1"], Scope.CPU_PACKAGE)


def test_dies_are_packages_too(tmp_path: Path) -> None:
    """package-0-die-1 is a zone of its own."""
    for i in range(2):
        write_zone(tmp_path, f"intel-rapl:{i}", f"package-0-die-{i}", 1)
    assert names_of(find_zones(tmp_path)) == ["package-0-die-0", "package-0-die-1"]


def test_an_unreadable_counter_is_not_permitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that only root may read is not_permitted with the file's name, not 0 J."""
    file = write_zone(tmp_path, "intel-rapl:0", "package-0", 1)
    read_text = Path.read_text

    def refuse(path: Path) -> str:
        if path == file:
            raise PermissionError(13, "Permission denied")
        return read_text(path)

    # Root may read any mode, so the refusal itself is faked.
    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(NotPermitted, match="energy_uj may only be read by root"):
        find_zones(tmp_path)


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_machine_without_zones_is_not_supported(tmp_path: Path, has_folder: bool) -> None:
    """No powercap tree and an empty one are told with their path."""
    root = tmp_path if has_folder else tmp_path / "missing"
    with pytest.raises(NotSupported, match=str(root)):
        find_zones(root)


def test_a_counter_that_wraps_faster_than_it_is_read_is_refused(tmp_path: Path) -> None:
    """A range of 400 J could wrap between two looks unseen, so it is not used at all."""
    write_zone(tmp_path, "intel-rapl:0", "package-0", 1, max_range_uj=400_000_000)
    with pytest.raises(NotSupported, match=r"wrap within 0\.40 s"):
        find_zones(tmp_path)


def test_a_short_range_shortens_the_gap_that_is_allowed(tmp_path: Path, clock: FakeClock) -> None:
    """A counter that may wrap within 4 s must be read every 2 s."""
    write_zone(tmp_path, "intel-rapl:0", "package-0", 1, max_range_uj=4_000_000_000)
    counter: Counter = open_counter(find_zones(tmp_path), clock)
    assert counter.max_gap_s == 2.0


@pytest.mark.parametrize(("text", "kind"), [("", ProbeError), ("garbage", ProbeError), (None, DeviceLost)])
def test_a_bad_counter_file_has_a_named_error(tmp_path: Path, text: str | None, kind: type[ProbeError]) -> None:
    """Rubbish and absence are told apart, and neither is a number."""
    file = tmp_path / "energy_uj"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ProbeError) as caught:
        read_uj(Zone(name="package-0", energy_file=file, max_range_uj=None))
    assert kind is type(caught.value)
