"""Drift of a job's baseline, and which windows it leaves to be used."""

from __future__ import annotations

import math

import pytest

from tests.db.factories import make_point, make_trial
from tests.tuner.factories import measured
from tuner.aggregates import place_of_measurement
from tuner.baseline import Window, without_drift
from tuner.trial import TrialRole

METRIC = "tpot_p99_ms"
SCREENING, FINALIST, BASELINE = TrialRole.SCREENING, TrialRole.FINALIST, TrialRole.BASELINE


def window(
    number: int,
    role: TrialRole,
    tok_per_j: float,
    *,
    batch: int = 1,
    latency_ms: float = 20.0,
    reused_from: str | None = None,
    cut_by: str | None = None,
) -> Window:
    """A window of the point of that batch; batch 1 is the baseline."""
    measurement = measured(tok_per_j, latency_ms, spread=0.01, cut_by=cut_by)
    place = place_of_measurement(measurement, METRIC)
    assert place is not None
    trial = make_trial(
        number=number, role=role, point=make_point(batch), measurement=measurement, reused_from=reused_from
    )
    return Window(trial=trial, place=place)


def figures(windows: list[Window]) -> list[float | None]:
    """Return the tokens per joule of each window, None for one that is left out."""
    return [None if one.left_out else one.place.tok_per_j.value for one in windows]


def drifting(number: int, share: float = 0.003) -> float:
    return math.exp(share * number)


def test_without_repeats_of_a_baseline_nothing_changes() -> None:
    """Windows of a job without finals, or with a single baseline in them, stay as measured."""
    screened = [window(number, SCREENING, 2.0 * drifting(number), batch=number + 1) for number in range(4)]
    assert screened == without_drift(screened)
    assert [*screened, window(4, BASELINE, 2.0)] == without_drift([*screened, window(4, BASELINE, 2.0)])


def test_a_drift_within_bounds_is_divided_out_of_the_whole_job() -> None:
    """With +0.3 % a trial, equal points that were screened or repeated show equal figures; the baseline keeps its."""
    roles = [SCREENING] * 5 + [BASELINE, FINALIST, FINALIST, BASELINE]
    batches = [1, 2, 3, 4, 5, 1, 2, 3, 1]
    windows = [
        window(
            number, role, (1.0 if batch == 1 else 2.0) * drifting(number), batch=batch, latency_ms=20 * drifting(number)
        )
        for number, (role, batch) in enumerate(zip(roles, batches, strict=True))
    ]
    shown = without_drift(windows)
    points = [one for one in shown if one.trial.point != make_point(1)]
    assert all(one.is_corrected and one.left_out is None for one in points)
    assert [pytest.approx(points[0].place.tok_per_j.value)] * len(points) == [
        one.place.tok_per_j.value for one in points
    ]
    assert [pytest.approx(points[0].place.latency_ms.value)] * len(points) == [
        one.place.latency_ms.value for one in points
    ]
    assert [one for one in windows if one.trial.point == make_point(1)] == [
        one for one in shown if one.trial.point == make_point(1)
    ]


def test_after_a_change_since_screening_the_finals_stand_alone() -> None:
    """When the baseline moved before the finals, a repeated point's screening window is left out, others stay."""
    windows = [
        window(0, SCREENING, 1.0),
        window(1, SCREENING, 2.0, batch=2),
        window(2, SCREENING, 2.0, batch=3),
        window(3, BASELINE, 1.2),
        window(4, FINALIST, 2.4, batch=2),
        window(5, BASELINE, 1.2),
    ]
    shown = without_drift(windows)
    assert [None, None, 2.0, 1.2, pytest.approx(2.4), 1.2] == figures(shown)
    assert shown[1].left_out is not None
    assert shown[1].left_out.startswith("baseline_drifted: ")


def test_a_stretch_that_jumped_is_left_out_and_the_others_brought_to_one_level() -> None:
    """Between baselines 20 % apart windows are left out; stretches on both sides show what they would at one level."""
    windows = [
        window(0, SCREENING, 1.0),
        window(1, SCREENING, 2.0, batch=2),
        window(2, BASELINE, 1.0),
        window(3, FINALIST, 2.0, batch=2),
        window(4, BASELINE, 1.0),
        window(5, FINALIST, 2.2, batch=2),
        window(6, BASELINE, 1.2),
        window(7, FINALIST, 2.4, batch=2),
        window(8, BASELINE, 1.2),
    ]
    shown = without_drift(windows)
    level = math.sqrt(1.2)
    assert [None, None, 1.0, pytest.approx(2 * level), 1.0, None, 1.2, pytest.approx(2 * level), 1.2] == figures(shown)
    assert shown[5].left_out == ("baseline_drifted: the baseline changed by 20.0% within the block, 5% is allowed")


def test_windows_after_the_last_baseline_of_a_refused_block_are_left_out() -> None:
    """Finals that ended early, before the baseline that closes them, show nothing where no line fits all of them."""
    windows = [
        window(0, SCREENING, 2.0, batch=2),
        window(1, BASELINE, 1.0),
        window(2, BASELINE, 1.2),
        window(3, FINALIST, 2.0, batch=2),
    ]
    assert figures(without_drift(windows)) == [2.0, None, None, None]


def test_a_latency_that_scatters_is_left_as_measured() -> None:
    """Where the baseline's tail moved by more than 5 % but its energy did not, energy is corrected and latency not."""
    latencies = [20.0, 25.0, 30.0, 20.0, 24.0]
    roles = [SCREENING, SCREENING, BASELINE, FINALIST, BASELINE]
    windows = [
        window(i, role, drifting(i), batch=1 if i in (0, 2, 4) else 2, latency_ms=latency)
        for i, (role, latency) in enumerate(zip(roles, latencies, strict=True))
    ]
    shown = without_drift(windows)
    assert latencies == [one.place.latency_ms.value for one in shown]
    assert [one.is_corrected for one in shown] == [False, True, False, True, False]


def test_a_baseline_that_was_cut_or_taken_over_tells_of_no_drift() -> None:
    """Windows that ended early, or that another job measured, are no baseline; what was taken over stays as it is."""
    windows = [
        window(0, SCREENING, 5.0, reused_from="job/0"),
        window(1, SCREENING, 2.0, batch=2, reused_from="job/1"),
        window(2, BASELINE, 1.0),
        window(3, BASELINE, 3.0, cut_by="sla:ttft_p99_ms"),
        window(4, FINALIST, 2.0, batch=2),
        window(5, BASELINE, 1.01),
    ]
    shown = without_drift(windows)
    assert windows[:2] == shown[:2]
    assert shown[4].is_corrected
    assert all(one.left_out is None for one in shown)
