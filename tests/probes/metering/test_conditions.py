"""What a GPU was like over a window, and what speaks against it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.device import UNSET, Status
from probes.metering.conditions import (
    Limits,
    conditions_of,
    event_shares,
    judge,
    judge_gaps,
    judge_limits,
    judge_processes,
)
from probes.settings import DeviceSettings
from probes.validity import Note, Reason

CAPPED = DeviceSettings(sm_clock_cap_mhz=1200)
STEP_MHZ = 15


def make_statuses(num_plain: int, num_changed: int = 0, **changes: Any) -> list[Status]:
    """So many statuses of a card at its cap, then so many with changes."""
    plain: dict[str, Any] = {"power_w": 300.0, "clock_mhz": 1200.0, "temperature_c": 50.0}
    return [
        Status(time_s=1000.0 + i / 10, **{**plain, **(changes if i >= num_plain else {})})
        for i in range(num_plain + num_changed)
    ]


def make_limits(*set_w: float, **fixed: Any) -> list[Limits]:
    return [
        Limits(time_s=1000.0 + i, **{"set_w": limit_w, "enforced_w": limit_w, "is_persistent": True, **fixed})
        for i, limit_w in enumerate(set_w)
    ]


def reasons_of(statuses: Sequence[Status], settings: DeviceSettings = UNSET) -> tuple[str, ...]:
    reasons, _notes = judge(statuses, settings, STEP_MHZ)
    return reasons


def test_conditions_are_means_and_extremes() -> None:
    """Clocks have mean, lowest and highest, temperatures first, last and highest, the limit its last value."""
    statuses = [
        Status(
            time_s=1.0, clock_mhz=1000, memory_clock_mhz=2600, temperature_c=40, power_limit_w=700.0, events=("idle",)
        ),
        Status(time_s=2.0, clock_mhz=1500, memory_clock_mhz=2600, temperature_c=60, power_limit_w=700.0),
        Status(time_s=3.0, clock_mhz=1100, memory_clock_mhz=1600, temperature_c=55, power_limit_w=500.0),
        Status(time_s=4.0),
    ]
    found = conditions_of(statuses, "GPU-1")
    assert (found.device_uuid, found.num_samples) == ("GPU-1", 4)
    assert (found.mean_clock_mhz, found.lowest_clock_mhz, found.highest_clock_mhz) == (1200, 1000, 1500)
    assert pytest.approx(2266.7, abs=0.1) == found.mean_memory_clock_mhz
    assert (found.start_temperature_c, found.end_temperature_c, found.highest_temperature_c) == (40, 55, 60)
    assert (found.power_limit_w, found.event_shares) == (500.0, (("idle", 0.25),))


def test_conditions_of_nothing_are_unknown() -> None:
    """Without a sample every figure is None, and nothing is divided by zero."""
    found = conditions_of([], "GPU-1")
    assert (found.num_samples, found.mean_clock_mhz, found.highest_temperature_c) == (0, None, None)
    assert found.event_shares == ()


@given(st.lists(st.lists(st.sampled_from(["idle", "sw_power_cap", "hw_thermal"]), unique=True), min_size=1))
def test_shares_of_events_lie_between_none_and_all(events: list[list[str]]) -> None:
    """A share is above 0 and at most 1, and only events that were seen have one."""
    shares = event_shares([Status(time_s=float(i), events=tuple(seen)) for i, seen in enumerate(events)])
    assert all(0 < share <= 1 for share in shares.values())
    assert set(shares) == {event for seen in events for event in seen}


@pytest.mark.parametrize("event", ["hw_thermal", "sw_thermal", "hw_slowdown", "power_brake", "sync_boost"])
def test_a_frequent_clock_event_is_a_reason(event: str) -> None:
    """More than 1 % of samples with the event invalidate the window; exactly 1 % do not."""
    assert reasons_of(make_statuses(98, 2, events=(event,))) == (event,)
    assert reasons_of(make_statuses(99, 1, events=(event,))) == ()


def test_the_power_cap_is_a_note() -> None:
    """A card held by its power limit is a fact about the point, not a fault."""
    assert judge(make_statuses(50, 50, events=("sw_power_cap",)), UNSET, STEP_MHZ) == ((), (Note.POWER_LIMITED,))
    assert judge(make_statuses(99, 1, events=("sw_power_cap",)), UNSET, STEP_MHZ) == ((), ())


@pytest.mark.parametrize("event", ["idle", "display_clock", "bit_0x400"])
def test_harmless_events_say_nothing(event: str) -> None:
    """An idle card, a display clock and a bit of a later driver are no judgement."""
    assert judge(make_statuses(0, 10, events=(event,)), UNSET, STEP_MHZ) == ((), ())


@pytest.mark.parametrize(
    ("clock_mhz", "events", "is_held"),
    [
        (1215, (), True),
        (1216, (), False),
        (1185, (), True),
        (1184, (), False),
        (900, ("sw_power_cap",), True),
        (210, ("idle",), True),
        (900, ("hw_thermal",), False),
        (1980, ("sw_power_cap",), False),
    ],
)
def test_a_clock_is_held_within_one_step(clock_mhz: int, events: tuple[str, ...], is_held: bool) -> None:
    """Above the cap by more than a step is off, below it too unless the power limit or idleness explains it."""
    reasons = reasons_of(make_statuses(0, 20, clock_mhz=clock_mhz, events=events), CAPPED)
    assert is_held is (Reason.CLOCK_NOT_HELD not in reasons)


@pytest.mark.parametrize(("num_off", "is_held"), [(5, True), (6, False)])
def test_a_few_samples_off_the_cap_are_tolerated(num_off: int, is_held: bool) -> None:
    """Up to 5 % of the samples that show a clock may be off."""
    statuses = [*make_statuses(100 - num_off, num_off, clock_mhz=1980), *make_statuses(0, 11, clock_mhz=None)]
    assert is_held is (reasons_of(statuses, CAPPED) == ())


@pytest.mark.parametrize(
    ("num_known", "num_unknown", "is_held"), [(90, 10, True), (89, 11, False), (0, 300, False), (0, 0, False)]
)
def test_a_clock_that_is_not_seen_is_not_held(num_known: int, num_unknown: int, is_held: bool) -> None:
    """Under a cap nine looks in ten must show the clock; without a cap none need to."""
    statuses = make_statuses(num_known, num_unknown, clock_mhz=None)
    assert reasons_of(statuses, CAPPED) == (() if is_held else (Reason.CLOCK_NOT_HELD,))
    assert reasons_of(statuses) == ()


@pytest.mark.parametrize(
    ("times_s", "reasons"),
    [
        ([0.0, 3.0, 6.0, 9.0], ()),
        ([2.0, 5.0, 8.0], ()),
        ([1.0, 2.0, 5.1, 8.0], (Reason.SAMPLING_GAP,)),
        ([4.0, 7.0], (Reason.SAMPLING_GAP,)),
        ([3.0, 6.0], (Reason.SAMPLING_GAP,)),
        ([], (Reason.SAMPLING_GAP,)),
    ],
)
def test_three_seconds_without_a_look_are_a_gap(times_s: list[float], reasons: tuple[str, ...]) -> None:
    """Between two looks, before the first or after the last: longer than that nobody knows what the card was like."""
    assert reasons == judge_gaps(times_s, 0.0, 9.5)


def test_a_short_window_needs_no_look() -> None:
    """Nothing can hide in less than the longest gap."""
    assert judge_gaps([], 0.0, 2.9) == ()


def test_without_a_cap_any_clock_will_do() -> None:
    """A free clock is not judged."""
    assert reasons_of(make_statuses(50, 50, clock_mhz=300)) == ()


def test_a_cap_without_a_known_step_is_judged_by_the_usual_grid() -> None:
    """Where the list of clocks is not known, a step is 15 MHz."""
    assert judge(make_statuses(0, 9, clock_mhz=1214), CAPPED) == ((), ())
    assert judge(make_statuses(0, 9, clock_mhz=1217), CAPPED) == ((Reason.CLOCK_NOT_HELD,), ())


def test_limits_that_stay_are_fine() -> None:
    """An unchanged limit says nothing, nor does a watt lost by rounding."""
    assert judge_limits(make_limits(500, 500, 499), 500) == ()
    assert judge_limits(make_limits(500, 500), None) == ()


@pytest.mark.parametrize("kind", ["set_w", "enforced_w"])
def test_a_limit_that_changes_is_an_external_change(kind: str) -> None:
    """Either limit moving in mid-window means that somebody else is at work."""
    limits = [*make_limits(500, 500), *make_limits(500, **{kind: 600.0})]
    assert judge_limits(limits, None) == (Reason.EXTERNAL_CHANGE,)


def test_another_limit_than_was_set_is_an_external_change() -> None:
    """A cap that had been taken back before the window began is noticed too."""
    assert judge_limits(make_limits(700, 700), 500) == (Reason.EXTERNAL_CHANGE,)


def test_a_lower_limit_in_force_overrides_ours() -> None:
    """A limit set out of band below the one asked for is limit_overridden."""
    assert judge_limits(make_limits(500, 500, enforced_w=400.0), 500) == (Reason.LIMIT_OVERRIDDEN,)


def test_lost_persistence_is_a_reason_and_gained_or_unknown_is_not() -> None:
    """Only from on to off counts: the driver may unload, and with it go our settings."""
    on, off, unknown = (make_limits(500, is_persistent=state) for state in (True, False, None))
    assert judge_limits([*on, *unknown, *off], None) == (Reason.PERSISTENCE_LOST,)
    assert judge_limits([*off, *on], None) == ()
    assert judge_limits([*off, *off], None) == ()


def test_limits_that_cannot_be_read_say_nothing() -> None:
    """A board without limits is not judged by them."""
    assert judge_limits([Limits(time_s=1.0), Limits(time_s=2.0)], 500) == ()


@pytest.mark.parametrize(
    ("engine", "foreign", "is_elsewhere", "judgement"),
    [
        ([], [], False, ((), ())),
        ([10], [], False, ((), ())),
        ([10], [99], False, ((Reason.FOREIGN_GPU_PROCESS,), ())),
        ([], [99], False, ((), (Note.GPU_PROCESSES_UNKNOWN,))),
        ([10], [], True, ((Reason.GPU_COUNT_MISMATCH,), ())),
        ([], [99], True, ((Reason.GPU_COUNT_MISMATCH, Reason.FOREIGN_GPU_PROCESS), ())),
    ],
)
def test_processes_are_judged_by_whose_they_are(
    engine: list[int], foreign: list[int], is_elsewhere: bool, judgement: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    """Strangers beside the engine are a reason; strangers alone are numbers of another namespace."""
    assert judgement == judge_processes(engine, foreign, is_elsewhere=is_elsewhere)


def test_all_reasons_are_told() -> None:
    """A window with several faults carries each of them."""
    statuses = make_statuses(0, 10, clock_mhz=300, events=("hw_thermal", "power_brake", "sw_thermal"))
    settings = DeviceSettings(sm_clock_cap_mhz=1200, power_cap_w=500)
    reasons, notes = judge(statuses, settings, STEP_MHZ, make_limits(500, 600))
    assert set(reasons) == {"hw_thermal", "sw_thermal", "power_brake", Reason.CLOCK_NOT_HELD, Reason.EXTERNAL_CHANGE}
    assert notes == ()
