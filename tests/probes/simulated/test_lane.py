"""The books of one group of GPUs."""

from __future__ import annotations

import pytest

from probes.simulated.lane import HOLD_S, ClockState, ClockTimes, Lane


def make_lane(num_gpus: int = 2) -> tuple[Lane, ClockTimes]:
    times = ClockTimes(300)
    return Lane(num_gpus, 0.0, times.of(1800, ()), times), times


def give(lane: Lane, state: ClockState, start_s: float, end_s: float, *, now_s: float, power_w: float = 400.0) -> None:
    lane.give(now_s, start_s, end_s, power_w, lane.num_gpus, state, 0.0)


def test_a_step_in_progress_counts_by_its_share() -> None:
    """Energy and GPU-seconds grow evenly while a step lasts, and stand still after it."""
    lane, times = make_lane()
    give(lane, times.of(1800, ()), 0.0, 2.0, now_s=0.0)
    assert [lane.energy_j(now_s) for now_s in (0.0, 0.5, 2.0, 3.0)] == [0.0, 200.0, 800.0, 800.0]
    assert [lane.busy_gpu_s(now_s) for now_s in (0.5, 3.0)] == [1.0, 4.0]


def test_work_given_ahead_begins_when_its_time_comes() -> None:
    """Steps that are given before the one in progress ends wait for their turn and change nothing until then."""
    lane, times = make_lane()
    give(lane, times.of(1800, ()), 0.0, 1.0, now_s=0.0)
    give(lane, times.of(900, ("sw_power_cap",)), 1.0, 2.0, now_s=0.5, power_w=200.0)
    give(lane, times.of(600, ()), 4.0, 5.0, now_s=0.5, power_w=100.0)
    lane.settle(0.75)
    assert (lane.energy_j(0.75), lane.shown(0.75).clock_mhz, lane.free_s) == (300.0, 1800, 5.0)
    lane.settle(1.5)
    assert (lane.energy_j(1.5), lane.shown(1.5).events) == (500.0, ("sw_power_cap",))
    lane.settle(3.0)
    assert (lane.energy_j(3.0), lane.is_running(3.0)) == (600.0, False)
    lane.settle(4.5)
    assert (lane.energy_j(4.5), lane.is_running(4.5)) == (650.0, True)


def test_every_instant_has_one_clock() -> None:
    """GPU-seconds of all states, in steps and pauses, add up to the GPUs times the time."""
    lane, times = make_lane()
    give(lane, times.of(900, ("sw_power_cap",)), 0.0, 1.0, now_s=0.0)
    give(lane, times.of(1800, ()), 3.0, 4.0, now_s=3.0)
    spent = times.gpu_s()
    for state, gpu_s in lane.unsettled(3.5).items():
        spent[state.clock_mhz, state.events] += gpu_s
    assert {key: gpu_s for key, gpu_s in spent.items() if gpu_s} == {
        (900, ("sw_power_cap",)): 2.0,
        (900, ()): 4.0,
        (1800, ()): 1.0,
    }


def test_a_clock_is_held_for_a_while_after_work() -> None:
    """In a pause the clock stays without its events, and falls to idle when the pause gets long."""
    lane, times = make_lane()
    give(lane, times.of(900, ("sw_power_cap",)), 0.0, 1.0, now_s=0.0)
    shown = [lane.shown(now_s) for now_s in (0.5, 1.0, 2.0, 1.0 + HOLD_S)]
    assert [(state.clock_mhz, state.events) for state in shown] == [
        (900, ("sw_power_cap",)),
        (900, ("sw_power_cap",)),
        (900, ()),
        (300, ("idle",)),
    ]
    assert lane.unsettled(1.0 + HOLD_S + 4.0)[times.idle] == pytest.approx(8.0)
