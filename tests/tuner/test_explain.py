"""What a job found, from trials whose figures are known."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.db.factories import START, make_reading, make_trial
from tests.tuner.factories import make_request, measured
from tuner.explain import Against, Explanation, Gain, Missing, default_trial, difference, explain
from tuner.measurement import Estimate
from tuner.point import OperatingPoint
from tuner.request import KnobRange, KnobValue, Limit, TuneRequest
from tuner.trial import Trial, TrialRole, TrialState

DEFAULT: dict[str, KnobValue] = {"max_batch": 8, "precision": "fp32", "sm_clock_cap_mhz": 2000}


def at(number: int, tok_per_j: float, latency_ms: float, tok_s: float = 20.0, **changes: Any) -> Trial:
    """A trial at the default point but for the knobs named, known to 1 % either way."""
    knobs = {name: changes.pop(name) for name in list(changes) if name in DEFAULT}
    figures = measured(tok_per_j, latency_ms, spread=0.01, output_tok_s=Estimate(tok_s, 0.99 * tok_s, 1.01 * tok_s))
    trial = make_trial(
        number=number,
        point=OperatingPoint.of(DEFAULT | knobs),
        measurement=figures,
        started_at=START + timedelta(minutes=number),
    )
    return replace(trial, **changes)


def job(**changes: Any) -> TuneRequest:
    knobs = (
        KnobRange(name="max_batch", values=(4, 8, 16)),
        KnobRange(name="precision", values=("fp32", "int8")),
        KnobRange(name="sm_clock_cap_mhz", values=(1000, 1500, 2000)),
    )
    return make_request(**{"knobs": knobs, "sla": (Limit(metric="tpot_p99_ms", bound_ms=50.0),), **changes})


def gain_over(found: Explanation, against: Against) -> Gain:
    return next(gain for gain in found.gains if gain.against is against)


class TestRecommended:
    """Which point is recommended."""

    def test_it_has_the_most_tokens_per_joule_inside_the_limits(self) -> None:
        """A point that misses a limit is not recommended, however frugal."""
        missed = at(2, 9.0, 60.0, max_batch=16, state=TrialState.INFEASIBLE, reason="sla:tpot_p99_ms")
        found = explain(job(), [at(0, 2.0, 20.0), at(1, 3.0, 40.0, max_batch=4), missed])
        assert found.recommended is not None
        assert found.recommended.trial.number == 1
        assert found.tied == ()

    def test_points_within_its_interval_are_named_the_fastest_first(self) -> None:
        """Points whose tokens per joule cannot be told apart from the best are listed by latency."""
        trials = [at(0, 3.0, 45.0), at(1, 2.97, 40.0, max_batch=4), at(2, 2.98, 20.0, max_batch=16)]
        found = explain(job(), [*trials, at(3, 2.5, 10.0, precision="int8")])
        assert [one.trial.number for one in found.tied] == [2, 1]

    def test_without_a_feasible_point_there_is_none_and_no_gain(self) -> None:
        """Where every point misses a limit nothing is recommended or compared, but the knobs are told of."""
        trials = [
            at(n, 2.0 + n, 60.0, max_batch=4 * 2**n, state=TrialState.INFEASIBLE, reason="sla:tpot_p99_ms")
            for n in range(3)
        ]
        found = explain(job(), trials)
        assert (found.recommended, found.gains) == (None, ())
        assert [step.knob for step in found.steps] == ["max_batch"]

    def test_windows_that_were_cut_and_figures_of_another_device_are_not_recommended(self) -> None:
        """Only whole windows are recommended; cut ones serve the model, those unlike the newest one nothing."""
        foreign = measured(9.0, 10.0, reading=make_reading(device_uuids=("GPU-2",)))
        cut = replace(at(1, 8.0, 10.0, max_batch=4), measurement=measured(8.0, 10.0, cut_by="dominated"))
        found = explain(job(), [at(0, 7.0, 10.0, max_batch=16, measurement=foreign), cut, at(2, 2.0, 20.0)])
        assert found.recommended is not None
        assert found.recommended.trial.number == 2
        assert found.tok_per_j.num_points == 2

    def test_of_no_trials_nothing_is_told(self) -> None:
        """A job that has only begun has an explanation without anything in it."""
        found = explain(job(), [])
        assert (found.recommended, found.gains, found.steps, found.tok_per_j.num_points) == (None, (), (), 0)


class TestGains:
    """What the recommended point has over others."""

    TRIALS = (
        at(0, 2.0, 20.0, 100.0),
        at(1, 3.0, 25.0, 80.0, sm_clock_cap_mhz=1500),
        at(2, 2.5, 30.0, 70.0, sm_clock_cap_mhz=1000),
        at(3, 4.0, 40.0, 150.0, max_batch=16, sm_clock_cap_mhz=1500),
        at(4, 3.5, 35.0, 200.0, max_batch=16),
    )

    def test_ratios_are_the_recommended_figures_over_the_others(self) -> None:
        """Over the default, the best clock with the engine at its defaults, and the fastest inside the limits."""
        found = explain(job(), self.TRIALS)
        references = {gain.against: gain.reference for gain in found.gains}
        assert {against: one.trial.number for against, one in references.items() if one is not None} == {
            Against.DEFAULT: 0,
            Against.STATIC_CLOCK: 1,
            Against.THROUGHPUT: 4,
        }
        over_default = gain_over(found, Against.DEFAULT)
        assert over_default.tok_per_j is not None
        assert over_default.latency is not None
        assert over_default.output_tok_s is not None
        assert (over_default.tok_per_j.ratio, over_default.latency.ratio) == (2.0, 2.0)
        assert over_default.output_tok_s.ratio == 1.5
        assert {gain.against: gain.num_clocks for gain in found.gains} == {
            Against.DEFAULT: None,
            Against.STATIC_CLOCK: 3,
            Against.THROUGHPUT: None,
        }

    def test_a_default_outside_the_limits_is_compared_with_all_the_same(self) -> None:
        """What it has is known, and that it misses a limit is in its record; a static clock has to be inside."""
        trials = [
            replace(trial, state=TrialState.INFEASIBLE, reason="quality:perplexity_ratio", measurement=
                    replace(trial.measurement, quality=None, reasons=()))
            if trial.number in (0, 1, 2) and trial.measurement is not None else trial
            for trial in self.TRIALS
        ]  # fmt: skip
        found = explain(job(), trials)
        default = gain_over(found, Against.DEFAULT).reference
        assert default is not None
        assert not default.is_feasible
        assert gain_over(found, Against.STATIC_CLOCK).missing is Missing.NONE_INSIDE

    @pytest.mark.parametrize(
        ("trials", "against", "missing"),
        [
            (TRIALS[1:], Against.DEFAULT, Missing.NOT_MEASURED),
            (TRIALS[1:], Against.STATIC_CLOCK, Missing.NOT_MEASURED),
            ((TRIALS[0], *TRIALS[3:]), Against.STATIC_CLOCK, Missing.NO_OTHER_CLOCK),
            (
                (replace(TRIALS[0], state=TrialState.FAILED, measurement=None), *TRIALS[1:]),
                Against.DEFAULT,
                Missing.NO_FIGURES,
            ),
        ],
    )
    def test_what_was_not_measured_is_missing_with_its_reason(
        self, trials: tuple[Trial, ...], against: Against, missing: Missing
    ) -> None:
        """A comparison that there is nothing for says why, and has no figures."""
        gain = gain_over(explain(job(), trials), against)
        assert (gain.reference, gain.missing, gain.tok_per_j) == (None, missing, None)

    def test_a_default_whose_window_was_cut_is_compared_with_all_the_same(self) -> None:
        """What it showed until it certainly missed its limit is a reference, and marked as cut."""
        cut = replace(self.TRIALS[0], measurement=measured(2.0, 60.0, cut_by="sla:tpot_p99_ms"))
        cut = replace(cut, state=TrialState.INFEASIBLE, reason="sla:tpot_p99_ms")
        found = explain(job(), [cut, *self.TRIALS[1:]])
        gain = gain_over(found, Against.DEFAULT)
        assert gain.reference is not None
        assert gain.tok_per_j is not None
        assert (gain.reference.is_cut, gain.tok_per_j.ratio, found.tok_per_j.num_points) == (True, 2.0, 5)

    def test_without_a_clock_knob_there_is_no_static_clock(self) -> None:
        """A job that searched no clock says so."""
        point = OperatingPoint.of({"max_batch": 8, "precision": "fp32"})
        gain = gain_over(explain(job(), [replace(self.TRIALS[0], point=point)]), Against.STATIC_CLOCK)
        assert gain.missing is Missing.NO_CLOCK_KNOB

    def test_repeats_are_taken_together(self) -> None:
        """A point with several windows is compared by their mean over launches."""
        again = replace(at(5, 6.0, 40.0, max_batch=16, sm_clock_cap_mhz=1500), role=TrialRole.FINALIST, session="b")
        first = replace(self.TRIALS[3], session="a")
        gain = gain_over(explain(job(), [*self.TRIALS[:3], first, again]), Against.DEFAULT)
        assert gain.tok_per_j is not None
        assert gain.tok_per_j.ratio == 2.5


class TestDifference:
    """Two figures with their intervals."""

    def test_the_interval_is_what_both_leave_open(self) -> None:
        """The lowest over the highest, and the highest over the lowest; a bound of 0 leaves the ratio open."""
        told = difference(Estimate(4.0, 3.0, 5.0), Estimate(2.0, 1.0, 2.5))
        assert (told.ratio, told.low, told.high, told.is_told_apart) == (2.0, 3.0 / 2.5, 5.0, True)
        assert difference(Estimate(4.0, 3.0, 5.0), Estimate(2.0, 0.0, 2.5)).high is None

    @pytest.mark.parametrize(
        ("one", "other", "low", "high"),
        [
            (
                Estimate(4.0, 2.0, 5.0),
                Estimate(2.0, 1.0, 2.5),
                2.0 / 2.5,
                5.0,
            ),  # they differ by a half width
            (Estimate(4.0, None, 6.5), Estimate(2.0, 1.0, 2.5), None, 6.5),
            (Estimate(4.0), Estimate(2.0), None, None),
        ],
    )
    def test_what_may_be_equal_is_not_told_apart(
        self, one: Estimate, other: Estimate, low: float | None, high: float | None
    ) -> None:
        """Figures that differ by no more than a half width, or of which nothing is known, show no difference."""
        told = difference(one, other)
        assert (told.low, told.high, told.is_told_apart) == (low, high, False)


class TestDefaultTrial:
    """Which trial is the default configuration."""

    def test_it_is_the_first_whose_knobs_are_at_their_defaults(self) -> None:
        """A job that begins with points of an earlier one has its default point behind them."""
        seeded = [at(0, 3.0, 30.0, max_batch=16), at(1, 3.0, 30.0, sm_clock_cap_mhz=1500), at(2, 2.0, 20.0)]
        found = default_trial(job(), seeded)
        assert found is not None
        assert found.number == 2

    def test_without_the_default_value_the_nearest_counts(self) -> None:
        """Of 4 and 16 the first is nearest to a batch of 8, as in the search space."""
        request = job(knobs=(KnobRange(name="max_batch", values=(4, 16)),))
        found = default_trial(request, [at(0, 3.0, 30.0, max_batch=16), at(1, 3.0, 30.0, max_batch=4)])
        assert found is not None
        assert found.number == 1

    def test_repeats_and_interrupted_trials_are_none(self) -> None:
        """Only a screened trial with an outcome is the default's."""
        trials = [at(0, 2.0, 20.0, role=TrialRole.BASELINE), at(1, 2.0, 20.0, state=TrialState.INTERRUPTED)]
        assert default_trial(job(), trials) is None
