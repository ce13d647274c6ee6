"""What uncertain figures make of a front: who stays by a tie, and what repeats of a point show together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.db.factories import START, make_point, make_trial
from tests.tuner.factories import make_request, measured
from tuner.aggregates import Aggregated, aggregated
from tuner.pareto import (
    Front,
    FrontPoint,
    are_points_tied,
    beats,
    front_of,
    non_dominated,
    pair_of,
    points_of,
)
from tuner.request import Limit
from tuner.trial import Trial

#: The front's latency axis in these tests.
METRIC = "tpot_p99_ms"


def placed(tok_per_j: float, latency_ms: float, number: int = 0) -> Trial:
    """A trial of a point of its own, with figures known exactly."""
    return make_trial(number=number, point=make_point(number + 1), measurement=measured(tok_per_j, latency_ms))


def front(*trials: Trial) -> Front:
    return front_of(trials, METRIC, created_at=START)


def repeated(number: int, tok_per_j: float, latency_ms: float, *, scatter: float = 0.01) -> list[Trial]:
    """Three windows of one point in a launch each, scattered evenly by a share; the middle one shows the mean."""
    return [
        make_trial(
            number=100 * launch + number,
            point=make_point(max_batch=number + 1),
            measurement=measured(tok_per_j * share, latency_ms * share),
            session=f"{number}/{launch}",
        )
        for launch, share in enumerate((1 - scatter, 1.0, 1 + scatter))
    ]


#: A point on the plane: place, share that it is uncertain by, and windows in launches of their own.
uncertain = st.tuples(
    st.integers(1, 12), st.integers(1, 12), st.sampled_from((0.0, 0.02, 0.1, 0.3)), st.sampled_from((1, 3))
)
many_uncertain = st.lists(uncertain, max_size=8)


def trials_of(drawn: list[tuple[int, int, float, int]]) -> list[Trial]:
    trials = []
    for number, (tok_per_j, latency_ms, share, num_windows) in enumerate(drawn):
        if num_windows > 1:
            trials += repeated(number, tok_per_j, latency_ms, scatter=share)
        else:
            shown = measured(tok_per_j, latency_ms, spread=share)
            trials.append(make_trial(number=number, point=make_point(number + 1), measurement=shown))
    return trials


def members(trials: list[Trial]) -> tuple[FrontPoint, ...]:
    return points_of(front(*trials), trials)


def all_points(trials: list[Trial]) -> list[Aggregated]:
    return list(aggregated(trials, METRIC))


@settings(deadline=None, max_examples=40)
@given(drawn=many_uncertain)
def test_no_member_beats_another(drawn: list[tuple[int, int, float, int]]) -> None:
    """No point of a front is beaten beyond doubt by another of it; whoever is left out is, by a member."""
    shown = [point.aggregated for point in members(trials_of(drawn))]
    assert not any(beats(one, other) for one in shown for other in shown)
    left_out = [point for point in all_points(trials_of(drawn)) if point not in shown]
    assert all(any(beats(one, point) for one in shown) for point in left_out)


@settings(deadline=None, max_examples=40)
@given(drawn=many_uncertain)
def test_the_leaders_are_all_there(drawn: list[tuple[int, int, float, int]]) -> None:
    """Every point that none is ahead of by value is on the front and marked; the others there are not."""
    points = all_points(trials_of(drawn))
    leading = {points[i].trial.number for i in non_dominated([pair_of(point) for point in points])}
    assert leading == {point.trial.number for point in members(trials_of(drawn)) if point.is_leading}


@settings(deadline=None, max_examples=40)
@given(drawn=many_uncertain, data=st.data())
def test_a_beaten_point_changes_nothing(drawn: list[tuple[int, int, float, int]], data: st.DataObject) -> None:
    """Without a point that is left out the front has the same points, in whichever order trials come."""
    trials = trials_of(drawn)
    shown = {point.trial.number for point in members(trials)}
    beaten = [point for point in all_points(trials) if point.trial.number not in shown]
    gone = data.draw(st.sampled_from(beaten)).trials if beaten else ()
    fewer = data.draw(st.permutations([trial for trial in trials if trial not in gone]))
    assert shown == {point.trial.number for point in members(fewer)}


@settings(deadline=None, max_examples=40)
@given(drawn=many_uncertain)
def test_ties_are_mutual(drawn: list[tuple[int, int, float, int]]) -> None:
    """Where a point is tied with another, that is tied with it; one that is behind is tied with somebody."""
    shown = members(trials_of(drawn))
    tied = {(point.trial.number, other) for point in shown for other in point.tied_with}
    assert tied == {(other, one) for one, other in tied}
    assert all(point.tied_with for point in shown if not point.is_leading)


@pytest.mark.parametrize(
    ("tok_per_j", "latency_ms", "is_kept"),
    [(1.99, 20.2, True), (1.99, 30.0, True), (1.5, 20.2, True), (1.5, 30.0, False)],
    ids=["neither axis", "latency tells", "tokens tell", "both tell"],
)
def test_between_launches_both_axes_must_tell(tok_per_j: float, latency_ms: float, is_kept: bool) -> None:
    """Power case 61: of two repeated points the one behind goes only if both axes are beyond the intervals."""
    trials = [*repeated(0, 2.0, 20.0), *repeated(1, tok_per_j, latency_ms)]
    shown = members(trials)
    assert is_kept == (len(shown) == 2)
    if is_kept:
        assert [(point.is_leading, point.tied_with) for point in shown] == [(True, (1,)), (False, (0,))]


@pytest.mark.parametrize(
    ("tok_per_j", "latency_ms", "is_kept"),
    [(1.99, 20.2, True), (1.99, 30.0, False), (1.5, 20.2, False), (1.5, 30.0, False)],
    ids=["neither axis", "latency tells", "tokens tell", "both tell"],
)
def test_between_single_windows_one_axis_will_do(tok_per_j: float, latency_ms: float, is_kept: bool) -> None:
    """Of points with one window each, the one behind goes as soon as one axis tells the two apart."""
    one = make_trial(number=0, point=make_point(1), measurement=measured(2.0, 20.0, spread=0.02))
    other = make_trial(number=1, point=make_point(2), measurement=measured(tok_per_j, latency_ms, spread=0.02))
    assert is_kept == (len(front(one, other).trials) == 2)


def test_a_choice_is_no_tie() -> None:
    """Two points of which each is clearly better on one axis are neighbours on the front and not tied."""
    shown = members([*repeated(0, 2.0, 20.0), *repeated(1, 3.0, 40.0)])
    assert [(point.is_leading, point.tied_with) for point in shown] == [(True, ()), (True, ())]


def test_neighbours_within_their_intervals_are_tied() -> None:
    """Two points of which each is better on one axis, by less than is uncertain, are tied, and both lead."""
    one, other = all_points([*repeated(0, 2.0, 20.0), *repeated(1, 2.01, 20.1)])
    assert are_points_tied(one, other)
    assert all(point.is_leading for point in members([*one.trials, *other.trials]))


def test_repeats_are_one_point() -> None:
    """Windows of one point stand on a front once, at their mean, for the trial that came first."""
    trials = repeated(0, 2.0, 20.0)
    (point,) = members(trials)
    assert (trials[0], 3, 3) == (point.trial, point.aggregated.num_windows, point.aggregated.num_sessions)
    assert pytest.approx(2.0) == point.aggregated.tok_per_j.value
    assert front(*trials).hypervolume == 0.0  # it is itself the slowest


def test_the_area_reaches_to_the_jobs_limit() -> None:
    """With a limit on the latency axis the area reaches to it, whatever the slowest point inside it was."""
    request = make_request(sla=(Limit(metric=METRIC, bound_ms=60.0), Limit(metric="ttft_p99_ms", bound_ms=99.0)))
    shown = front_of([placed(2.0, 20.0)], METRIC, created_at=START, request=request)
    assert (shown.latency_reference_ms, shown.hypervolume) == (60.0, 80.0)
    empty = front_of([], METRIC, created_at=START, request=request)
    assert (empty.latency_reference_ms, empty.hypervolume) == (None, 0.0)


def test_a_window_that_was_cut_is_on_no_front() -> None:
    """What ended before its time showed too little for a front, however good it looks."""
    cut = placed(9.0, 1.0, 0)
    assert cut.measurement is not None
    cut = replace(cut, measurement=replace(cut.measurement, cut_by="dominated"))
    assert [trial.number for trial in front(cut, placed(2.0, 20.0, 1)).trials] == [1]
