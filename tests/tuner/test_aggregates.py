"""Windows of one point as one observation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.db.factories import make_engine_info, make_point, make_trial
from tests.tuner.factories import make_request, measured
from tuner.aggregates import Aggregated, IntervalOf, aggregated
from tuner.measurement import Estimate, Measurement, mean_estimate
from tuner.request import Limit
from tuner.trial import Trial, TrialState

METRIC = "tpot_p99_ms"
LIMITED = make_request(sla=(Limit(metric=METRIC, bound_ms=40.0),))
TWO_LIMITS = make_request(sla=(*LIMITED.sla, Limit(metric="ttft_p99_ms", bound_ms=50.0)))


def shown(
    number: int, tok_per_j: float, latency_ms: float = 20.0, *, session: str | None = None, **changes: Any
) -> Trial:
    measurement = measured(tok_per_j, latency_ms, spread=0.1)
    return make_trial(**({"number": number, "measurement": measurement, "session": session or f"s{number}"} | changes))


def one_of(*trials: Trial) -> Aggregated:
    (found,) = aggregated(trials, METRIC, request=LIMITED)
    return found


def test_of_one_window_the_interval_is_its_own() -> None:
    """A point with one window has that window's interval, and says that it is of the window."""
    found = one_of(shown(0, 2.0))
    assert (found.tok_per_j, found.latency_ms) == (Estimate(2.0, 1.8, 2.2), Estimate(20.0, 18.0, 22.0))
    assert (found.interval_of, found.num_windows, found.num_sessions) == (IntervalOf.WINDOW, 1, 1)


def test_of_several_sessions_it_is_between_them() -> None:
    """A point measured in three launches has their mean with Student's t, whatever scatter each window had inside."""
    found = one_of(shown(0, 2.0), shown(1, 2.1), shown(2, 2.2))
    assert (mean_estimate([2.0, 2.1, 2.2]), IntervalOf.SESSIONS) == (found.tok_per_j, found.interval_of)
    assert (found.num_windows, found.num_sessions) == (3, 3)


def test_windows_of_one_session_have_no_interval() -> None:
    """POWER-59: windows of one launch, or of launches that nobody noted, are one session: bounds are null, not 0."""
    noted = [shown(i, 2.0 + i, session="same") for i in (0, 1)]
    unnoted = [make_trial(number=i, measurement=measured(2.0 + i, 20.0)) for i in (0, 1)]
    for trials in (noted, unnoted):
        found = one_of(*trials)
        assert (Estimate(2.5), 2, 1) == (found.tok_per_j, found.num_windows, found.num_sessions)
        assert found.interval_of is IntervalOf.WINDOW


def test_other_figures_are_combined_alike() -> None:
    """Any figure of the windows has its mean over sessions, and of one window its own interval."""
    trials = [shown(0, 2.0), shown(1, 2.2)]
    found = one_of(*trials)
    assert found.mean(lambda one: one.tok_per_j or Estimate(0.0)) == found.tok_per_j
    assert one_of(trials[0]).mean(lambda one: one.output_tok_s) == Estimate(20.0, 19.2, 20.8)


def test_points_and_origins_are_kept_apart() -> None:
    """Points are listed by their first trial, and figures of another engine version are an observation of their own."""
    other = make_trial(number=3, measurement=measured(2.0, 20.0, engine=make_engine_info(version="2")))
    trials = [shown(2, 9.0, point=make_point(16)), shown(0, 1.0), shown(1, 1.2), other]
    found = aggregated(trials, METRIC)
    assert [[trial.number for trial in one.trials] for one in found] == [[0, 1], [2], [3]]
    assert len({one.origin for one in found}) == 2


@pytest.mark.parametrize("state", [TrialState.FAILED, TrialState.INVALID, TrialState.RUNNING, TrialState.INTERRUPTED])
def test_windows_that_must_not_be_used_are_not(state: TrialState) -> None:
    """A failed, invalid or unfinished repeat leaves its point's figures as they were."""
    assert one_of(shown(0, 2.0)) == one_of(shown(0, 2.0), shown(1, 9.0, state=state))


def infeasible(number: int, latency_ms: float, **changes: Any) -> Trial:
    fields = {"state": TrialState.INFEASIBLE, "reason": f"sla:{METRIC}"} | changes
    return shown(number, 2.0, latency_ms, **fields)


def of_two(tpot_ms: float, ttft_ms: float) -> Measurement:
    return replace(measured(2.0, tpot_ms), ttft=measured(2.0, ttft_ms).ttft)


@pytest.mark.parametrize(
    ("trials", "is_feasible"),
    [
        ([shown(0, 2.0, 39.0), shown(1, 2.0, 38.0)], True),
        ([shown(0, 2.0, 38.0), infeasible(1, 41.0)], True),
        ([shown(0, 2.0, 38.0), infeasible(1, 43.0)], False),
        ([shown(0, 2.0, 38.0, session="a"), shown(1, 2.0, 38.0, session="a"), infeasible(2, 43.0)], False),
        ([shown(0, 2.0, 38.0), infeasible(1, 38.0, reason="numerics")], False),
        ([infeasible(0, 41.0)], False),
        (
            [infeasible(0, 41.0, measurement=of_two(41.0, 10.0)), infeasible(1, 10.0, measurement=of_two(10.0, 60.0))],
            False,
        ),
    ],
    ids=["all inside", "mean inside", "mean outside", "mean of sessions outside", "numerics", "one outside", "in turn"],
)
def test_a_point_is_held_to_its_limits_in_the_mean(trials: list[Trial], is_feasible: bool) -> None:
    """A point is inside a limit of 40 ms when the mean of its sessions is; what has no mean puts it outside.

    POWER-60: so does it when every window misses a limit, though each another one and none in the mean.
    """
    (found,) = aggregated(trials, METRIC, request=TWO_LIMITS)
    assert is_feasible == found.is_feasible


def test_without_limits_to_hold_it_to_one_window_outside_is_enough() -> None:
    """Where the limits are not known, a point with an infeasible window is infeasible."""
    (found,) = aggregated([shown(0, 2.0, 38.0), infeasible(1, 41.0)], METRIC)
    assert not found.is_feasible


def test_whole_windows_come_before_cut_ones() -> None:
    """A window that was cut gives figures only to a point without a whole one, and then the point says so."""
    cut = make_trial(number=1, state=TrialState.INFEASIBLE, session="s1", measurement=measured(9.0, 90.0, cut_by="sla"))
    both = one_of(shown(0, 2.0), cut)
    assert (both.tok_per_j.value, both.num_windows, both.is_cut, both.is_feasible) == (2.0, 1, False, False)
    assert one_of(cut).is_cut


def test_the_first_complete_trial_stands_for_a_point() -> None:
    """The trial shown for a point is its first that was complete, else its first."""
    assert one_of(infeasible(0, 41.0), shown(1, 2.0, 38.0)).trial.number == 1
    assert one_of(infeasible(0, 41.0), infeasible(1, 42.0)).trial.number == 0
