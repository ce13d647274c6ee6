"""The energy of several devices over the stretch that all of them measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.device import Conditions, Method, PowerSample, PowerSource, Reading, Scope
from probes.errors import DeviceLost, NotSupported
from probes.metering.group_meter import GroupMeter, Part, combined, worst_method
from probes.validity import Note, Reason
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_member import COUNTER, FakeMeter, make_reading

SOURCE = replace(COUNTER, detail="sum over 2 GPUs of: counter")


def add(*readings: Reading, source: PowerSource = SOURCE) -> Reading:
    parts = [Part(uuid=f"GPU-{number}", reading=reading) for number, reading in enumerate(readings, start=1)]
    return combined(parts, source, now_s=2000.0)


def test_equal_stretches_simply_add_up() -> None:
    """Members that measured the same stretch give the sum of their joules and of their uncertainties."""
    reading = add(make_reading("GPU-1"), make_reading("GPU-2", energy_j=4000.0, uncertainty_j=2.0))
    assert (reading.energy_j, reading.uncertainty_j) == (7000.0, 3.0)
    assert (reading.start_s, reading.end_s) == (1000.0, 1010.0)
    assert reading.device_uuids == ("GPU-1", "GPU-2")
    assert (reading.scope, reading.method, reading.is_valid) == (Scope.GPU, Method.COUNTER, True)


def test_only_the_common_stretch_counts() -> None:
    """From the latest start to the earliest end; what lies outside is taken off at mean power and is uncertain."""
    early = make_reading("GPU-1", start_s=999.9, end_s=1009.9)  # 300 W
    late = make_reading("GPU-2", start_s=1000.0, end_s=1010.0, energy_j=4000.0)  # 400 W
    reading = add(early, late)
    assert (reading.start_s, reading.end_s) == (1000.0, 1009.9)
    assert reading.energy_j == pytest.approx(700.0 * 9.9)
    assert reading.mean_power_w == pytest.approx(700.0)
    assert reading.uncertainty_j == pytest.approx(1.0 + 1.0 + 0.1 * 300.0 + 0.1 * 400.0)
    assert "up to 0.100 s of a member lay outside the common stretch" in reading.detail


def test_unknown_uncertainty_stays_unknown() -> None:
    """One member that does not know its own leaves the sum's unknown."""
    assert add(make_reading("GPU-1"), make_reading("GPU-2", uncertainty_j=None)).uncertainty_j is None


def test_stretches_without_a_common_part_are_no_figure() -> None:
    """Members that measured one after the other have no stretch in common."""
    reading = add(make_reading("GPU-1"), make_reading("GPU-2", start_s=1010.0, end_s=1020.0))
    assert (reading.energy_j, reading.reasons) == (None, (Reason.WINDOW_TOO_SHORT,))
    assert reading.duration_s == 0.0


def test_one_invalid_member_makes_the_whole_invalid() -> None:
    """The figure is None with that member's reasons, though it had joules; its UUID is in the detail."""
    reading = add(make_reading("GPU-1"), make_reading("GPU-2", reasons=(Reason.HW_THERMAL,)))
    assert (reading.energy_j, reading.reasons) == (None, (Reason.HW_THERMAL,))
    assert reading.detail == f"{SOURCE.detail}; GPU-2: hw_thermal"


def test_a_figure_without_joules_is_none_even_without_a_reason() -> None:
    """A member that gives nothing and does not say why is not taken for 0 J."""
    reading = add(make_reading("GPU-1"), make_reading("GPU-2", energy_j=None))
    assert (reading.energy_j, reading.is_valid) == (None, False)


def test_a_missing_member_is_a_mismatch() -> None:
    """A member lost on the way, or another GPU's reading in its place, counts as one GPU too few."""
    lost = add(make_reading("GPU-1"), make_reading("GPU-2", energy_j=None, reasons=(DeviceLost.kind,)))
    assert (lost.energy_j, lost.reasons) == (None, (DeviceLost.kind, Reason.GPU_COUNT_MISMATCH))
    other = add(make_reading("GPU-1"), make_reading("GPU-1"))
    assert (other.energy_j, other.reasons) == (None, (Reason.GPU_COUNT_MISMATCH,))


def test_notes_and_conditions_are_all_members() -> None:
    """Notes come once each, conditions one a device."""
    conditions = [Conditions(device_uuid=f"GPU-{number}", num_samples=9) for number in (1, 2)]
    reading = add(
        make_reading("GPU-1", notes=(Note.POWER_LIMITED,), conditions=(conditions[0],)),
        make_reading("GPU-2", notes=(Note.UNALIGNED_EDGES, Note.POWER_LIMITED), conditions=(conditions[1],)),
    )
    assert reading.notes == (Note.POWER_LIMITED, Note.UNALIGNED_EDGES)
    assert list(reading.conditions) == conditions


def test_the_method_is_that_of_the_worst_member() -> None:
    """A counter that stood still, replaced by an integral, makes the sum an integral."""
    reading = add(make_reading("GPU-1"), make_reading("GPU-2", method=Method.INTEGRATED))
    assert reading.method is Method.INTEGRATED
    assert worst_method([Method.ESTIMATE, Method.COUNTER]) is Method.ESTIMATE


def trace(*points: tuple[float, float]) -> tuple[PowerSample, ...]:
    return tuple(PowerSample(time_s=time_s, power_w=power_w) for time_s, power_w in points)


def test_the_power_drawn_is_the_sum() -> None:
    """At the first member's instants, the other's power between its samples, and only where both were seen."""
    first = make_reading("GPU-1", trace=trace((1000.0, 100.0), (1001.0, 110.0), (1002.0, 120.0), (1003.0, 130.0)))
    second = make_reading("GPU-2", trace=trace((1000.5, 200.0), (1001.5, 300.0), (1002.0, 300.0)))
    assert add(first, second).trace == trace((1001.0, 360.0), (1002.0, 420.0))
    assert add(first, make_reading("GPU-2")).trace == ()


@given(
    st.lists(st.tuples(st.floats(0, 0.2), st.floats(0, 0.2), st.floats(50, 700)), min_size=1, max_size=8),
)
def test_steady_power_adds_up_whatever_the_edges(members: list[tuple[float, float, float]]) -> None:
    """With steady power the sum is exact for the common stretch, however the members' edges lie."""
    readings = [
        make_reading(
            f"GPU-{number}",
            start_s=1000.0 + late_s,
            end_s=1030.0 + longer_s,
            energy_j=power_w * (30.0 + longer_s - late_s),
        )
        for number, (late_s, longer_s, power_w) in enumerate(members, start=1)
    ]
    reading = add(*readings)
    assert reading.mean_power_w == pytest.approx(sum(power_w for _, _, power_w in members))
    assert reading.duration_s >= 29.8 - 1e-9  # a float may round down
    assert all(one.start_s <= reading.start_s and reading.end_s <= one.end_s for one in readings)


def make_meters(**changes: FakeMeter) -> dict[str, FakeMeter]:
    meters = {uuid: FakeMeter(make_reading(uuid)) for uuid in ("GPU-1", "GPU-2")}
    return meters | {name.replace("_", "-"): meter for name, meter in changes.items()}


def test_a_stretch_begins_with_the_latest_member(clock: FakeClock) -> None:
    """`start` returns the start of the member that began last, and every member was started."""
    meters = make_meters(GPU_2=FakeMeter(make_reading("GPU-2", start_s=1000.07)))
    meter = GroupMeter(meters, SOURCE, clock=clock)
    assert meter.start() == 1000.07
    assert meter.stop().start_s == 1000.07
    assert [one.num_starts for one in meters.values()] == [1, 1]


def test_a_member_that_fails_to_start_is_missing(clock: FakeClock) -> None:
    """The error is kept for the reading; the next stretch starts without it."""
    broken = FakeMeter(make_reading("GPU-2"), start_error=DeviceLost("fell off the bus"))
    meter = GroupMeter(make_meters(GPU_2=broken), SOURCE, clock=clock)
    assert meter.start() == 1000.0
    reading = meter.stop()
    assert (reading.energy_j, reading.reasons) == (None, (DeviceLost.kind, Reason.GPU_COUNT_MISMATCH))
    assert "fell off the bus" in reading.detail
    broken.start_error = None
    meter.start()
    assert meter.stop().is_valid


def test_a_member_that_fails_to_stop_is_missing(clock: FakeClock) -> None:
    """An error in place of a reading leaves no sum, and the other member's stretch is still told."""
    broken = FakeMeter(make_reading("GPU-2"), stop_error=NotSupported("gone"))
    meter = GroupMeter(make_meters(GPU_2=broken), SOURCE, clock=clock)
    meter.start()
    reading = meter.stop()
    assert (reading.energy_j, reading.reasons) == (None, (NotSupported.kind, Reason.GPU_COUNT_MISMATCH))
    assert (reading.start_s, reading.end_s) == (1000.0, 1010.0)
    assert reading.device_uuids == ("GPU-1", "GPU-2")


def test_nothing_at_all_is_no_figure(clock: FakeClock) -> None:
    """When every member fails, the stretch is empty and invalid."""
    meters = {uuid: FakeMeter(make_reading(uuid), stop_error=DeviceLost("gone")) for uuid in ("GPU-1", "GPU-2")}
    meter = GroupMeter(meters, SOURCE, clock=clock)
    meter.start()
    reading = meter.stop()
    assert (reading.energy_j, reading.duration_s) == (None, 0.0)
    assert Reason.GPU_COUNT_MISMATCH in reading.reasons


def test_closing_closes_every_member(clock: FakeClock) -> None:
    """All members' sampling ends, as often as it is asked."""
    meters = make_meters()
    meter = GroupMeter(meters, SOURCE, clock=clock)
    meter.start()
    meter.close()
    meter.close()
    assert [one.num_closes for one in meters.values()] == [2, 2]
