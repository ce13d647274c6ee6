"""Trials as evidence: what counts as figures, what as a failure, what as neither."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.db.factories import make_conditions, make_measurement, make_point, make_reading, make_trial
from tests.tuner.factories import make_request, measured
from tuner.evidence import FREE_POWER_SHARE, LEAST_LOOKS, Evidence, Observation
from tuner.measurement import Distribution, Estimate, Measurement, Quality
from tuner.request import Limit
from tuner.trial import Trial, TrialState

#: A p99 between tokens up to 30 ms, the front's axis, and a first token within 500 ms.
REQUEST = make_request(sla=(Limit(metric="tpot_p99_ms", bound_ms=30.0), Limit(metric="ttft_p99_ms", bound_ms=500.0)))
MISSED: dict[str, Any] = {"state": TrialState.INFEASIBLE, "reason": "sla:tpot_p99_ms"}


def placed(tok_per_j: float | None, latency_ms: float | None, batch: int = 8, **changes: Any) -> Trial:
    """A trial of a batch size with one latency for all."""
    shown = measured(tok_per_j, latency_ms, quality=None)
    return make_trial(point=make_point(batch), measurement=shown, **changes)


def failed(batch: int = 8, reason: str = "engine_died") -> Trial:
    return make_trial(point=make_point(batch), state=TrialState.FAILED, reason=reason, measurement=None)


def evidence(*trials: Trial) -> Evidence:
    return Evidence.of(REQUEST, trials)


class TestObservations:
    """Points with figures."""

    def test_a_trial_gives_the_logarithms_of_its_figures(self) -> None:
        """Energy, latency, step and limits of one trial are there as logarithms; limits over their bound."""
        (one,) = evidence(placed(4.0, 20.0)).observations
        assert (one.point, one.num_windows, one.is_feasible) == (make_point(8), 1, True)
        assert (one.log_tok_per_j, one.log_latency_ms) == (math.log(4.0), math.log(20.0))
        assert one.log_step_ms == math.log(20.0)
        assert one.log_limits == pytest.approx(
            {"sla:tpot_p99_ms": math.log(20 / 30), "sla:ttft_p99_ms": math.log(20 / 500)}
        )

    def test_repeats_are_one_observation(self) -> None:
        """Two windows of one point count as one, by the mean of their logarithms; the higher peak counts."""
        one = placed(2.0, 10.0)
        other = replace(placed(8.0, 40.0, **MISSED), number=1)
        trials = [
            replace(trial, measurement=replace(shown(trial), peak_running=peak))
            for trial, peak in ((one, 5), (other, 7))
        ]
        (merged,) = evidence(*trials).observations
        assert (merged.num_windows, merged.peak_running) == (2, 7)
        assert math.exp(merged.log_tok_per_j) == pytest.approx(4.0)
        assert math.exp(merged.log_latency_ms) == pytest.approx(20.0)
        assert merged.log_step_ms == pytest.approx(math.log(20.0))
        assert merged.log_limits["sla:tpot_p99_ms"] == pytest.approx(math.log(20 / 30))
        assert not merged.is_feasible

    def test_a_limit_counts_by_the_windows_that_have_a_figure_of_it(self) -> None:
        """Of two windows, one with a first token that is no number, the other one's figure counts."""
        slow = Distribution(count=3, p99=Estimate(math.nan))
        broken = replace(placed(4.0, 20.0), measurement=replace(shown(placed(4.0, 20.0)), ttft=slow))
        for trials in ((broken, placed(4.0, 20.0)), (placed(4.0, 20.0), broken)):
            (one,) = evidence(*trials).observations
            assert one.log_limits["sla:ttft_p99_ms"] == pytest.approx(math.log(20 / 500))

    def test_points_come_in_the_order_in_which_they_were_first_tried(self) -> None:
        """A repeat of the first point does not move it behind the second."""
        found = evidence(placed(1.0, 20.0, 16), placed(1.0, 20.0, 8), placed(1.0, 20.0, 16)).observations
        assert [make_point(16), make_point(8)] == [one.point for one in found]

    def test_a_missed_limit_leaves_figures(self) -> None:
        """A trial outside a limit is an observation that is not feasible."""
        (one,) = evidence(placed(4.0, 60.0, **MISSED)).observations
        assert not one.is_feasible
        assert one.log_limits["sla:tpot_p99_ms"] == pytest.approx(math.log(2.0))

    @pytest.mark.parametrize(
        ("state", "cut_by"), [(TrialState.INFEASIBLE, "sla:ttft_p99_ms"), (TrialState.COMPLETE, "dominated")]
    )
    def test_a_cut_window_keeps_what_it_showed(self, state: TrialState, cut_by: str) -> None:
        """A window that ended early gives figures, even where they do not miss the limit that it was cut by."""
        cut = replace(placed(4.0, 20.0), state=state, measurement=replace(shown(placed(4.0, 20.0)), cut_by=cut_by))
        (one,) = evidence(cut).observations
        assert one.is_feasible == (state is TrialState.COMPLETE)
        assert one.log_tok_per_j == math.log(4.0)

    def test_a_latency_without_samples_misses_its_limit_by_the_whole_bound(self) -> None:
        """A first token that never came counts as twice the bound."""
        shown_one = replace(shown(placed(4.0, 20.0)), ttft=Distribution(count=0))
        (one,) = evidence(replace(placed(4.0, 20.0, **MISSED), measurement=shown_one)).observations
        assert one.log_limits["sla:ttft_p99_ms"] == pytest.approx(math.log(2.0))

    @pytest.mark.parametrize("latency_ms", [1e6, math.inf])
    def test_a_limit_that_is_missed_by_far_teaches_no_more_than_a_bound(self, latency_ms: float) -> None:
        """A first token after 1,000 s, or never, counts as 21 times the bound."""
        slow = Distribution(count=3, p99=Estimate(latency_ms))
        trial = replace(placed(4.0, 20.0, **MISSED), measurement=replace(shown(placed(4.0, 20.0)), ttft=slow))
        (one,) = evidence(trial).observations
        assert one.log_limits["sla:ttft_p99_ms"] == pytest.approx(math.log(21.0))

    def test_a_limit_whose_figure_is_no_number_is_left_out(self) -> None:
        """What is not a number says nothing of its limit, and the rest of the trial still counts."""
        slow = Distribution(count=3, p99=Estimate(math.nan))
        trial = replace(placed(4.0, 20.0), measurement=replace(shown(placed(4.0, 20.0)), ttft=slow))
        (one,) = evidence(trial).observations
        assert {"sla:tpot_p99_ms"} == set(one.log_limits)

    @pytest.mark.parametrize("step_ms", [0.0, math.inf, math.nan])
    def test_a_step_that_is_no_positive_number_is_none(self, step_ms: float) -> None:
        """A step of 0 ms or of no finite length is not known; what the trial showed beside it is."""
        trial = placed(4.0, 20.0)
        steps = replace(shown(trial).tpot, p50=Estimate(step_ms))
        (one,) = evidence(replace(trial, measurement=replace(shown(trial), tpot=steps))).observations
        assert (one.log_step_ms, one.log_tok_per_j) == (None, math.log(4.0))

    def test_a_step_is_read_off_gaps_where_no_request_ended(self) -> None:
        """Without a time per output token the median gap between tokens is the step."""
        request = make_request(latency_metric="itl_p99_ms")
        trial = placed(4.0, 20.0)
        no_tpot = replace(trial, measurement=replace(shown(trial), tpot=Distribution(count=0)))
        (one,) = Evidence.of(request, [no_tpot]).observations
        assert one.log_step_ms == math.log(20.0)


def seen(*conditions: dict[str, Any], power_w: float = 100.0, **changes: Any) -> Observation:
    """A window of 30 s on devices that were like this."""
    looked = tuple(make_conditions(**(FREE | one)) for one in conditions)
    reading = make_reading(energy_j=30 * power_w, conditions=looked)
    trial = placed(4.0, 20.0)
    (one,) = evidence(replace(trial, measurement=replace(shown(trial), reading=reading, **changes))).observations
    return one


#: A device of 500 W that nothing held down.
FREE: dict[str, Any] = {"event_shares": (), "power_limit_w": 500.0, "highest_clock_mhz": 1410.0}
HELD: dict[str, Any] = {"event_shares": (("sw_power_cap", 0.01),)}


class TestCaps:
    """Whether caps bound."""

    def test_a_device_that_shows_no_power_cap_is_free(self) -> None:
        """Where no look of any device showed the power cap it did not bind, and the highest clock of all is told."""
        one = seen({}, {"highest_clock_mhz": 1500.0, "event_shares": (("idle", 0.5),)})
        assert (one.is_power_capped, one.highest_clock_mhz) == (False, 1500.0)

    def test_one_look_at_one_device_is_enough_to_hold_it(self) -> None:
        """Where one of two devices was held down now and then, the cap bound."""
        assert seen({}, HELD).is_power_capped is True

    @pytest.mark.parametrize(
        "conditions", [(), ({"num_samples": LEAST_LOOKS - 1},), ({}, {"num_samples": 0})], ids=["none", "few", "one"]
    )
    def test_devices_that_were_not_looked_at_say_nothing(self, conditions: tuple[dict[str, Any], ...]) -> None:
        """Without some hundred looks at every device nothing is known of either cap."""
        one = seen(*conditions)
        assert (one.is_power_capped, one.highest_clock_mhz) == (None, None)

    def test_a_cut_window_says_nothing(self) -> None:
        """A window that ended early may not have seen the cap bind."""
        one = seen({}, cut_by="dominated")
        assert (one.is_power_capped, one.highest_clock_mhz) == (None, None)

    def test_a_device_that_draws_nearly_its_cap_is_not_taken_for_free(self) -> None:
        """Where two devices draw nearly what both may, or a limit is not known, silence about events proves nothing."""
        most_w = FREE_POWER_SHARE * 1000
        assert [seen({}, {}, power_w=power_w).is_power_capped for power_w in (most_w - 1, most_w + 1)] == [False, None]
        assert seen({}, {"power_limit_w": None}).is_power_capped is None

    def test_a_device_that_tells_no_clock_leaves_the_clock_unknown(self) -> None:
        """Where one of two devices says nothing of its clock the highest is not known; the power cap still is."""
        one = seen({}, {"highest_clock_mhz": None})
        assert (one.is_power_capped, one.highest_clock_mhz) == (False, None)

    @pytest.mark.parametrize(
        ("events", "is_power_capped"), [(((), HELD), True), (((), {"num_samples": 1}), False)], ids=["held", "unknown"]
    )
    def test_repeats_are_taken_together(self, events: tuple[Any, ...], is_power_capped: bool) -> None:
        """The cap bound where it did in any window that can tell; the highest clock of them counts."""
        trials = [
            replace(
                placed(4.0, 20.0),
                number=i,
                measurement=replace(
                    shown(placed(4.0, 20.0)),
                    reading=make_reading(conditions=(make_conditions(**(FREE | dict(one))),)),
                ),
            )
            for i, one in enumerate(events)
        ]
        (one,) = evidence(*trials).observations
        assert (one.is_power_capped, one.highest_clock_mhz) == (is_power_capped, 1410.0)


def shown(trial: Trial) -> Measurement:
    assert trial.measurement is not None
    return trial.measurement


class TestFailures:
    """Points without figures."""

    @pytest.mark.parametrize(
        ("tok_per_j", "latency_ms"),
        [(None, 20.0), (4.0, None), (0.0, 20.0), (-1.0, 20.0), (4.0, 0.0), (math.inf, 20.0), (4.0, math.nan)],
    )
    def test_figures_that_are_not_positive_numbers_are_none(
        self, tok_per_j: float | None, latency_ms: float | None
    ) -> None:
        """A point whose energy or latency is missing, not positive or not finite is a failure, not an observation."""
        found = evidence(placed(tok_per_j, latency_ms))
        assert found.observations == ()
        assert set(found.failures) == {make_point(8)}

    @pytest.mark.parametrize("reason", ["engine_died", "out_of_memory", "no_tokens"])
    def test_a_failed_trial_is_a_failure_with_its_reason(self, reason: str) -> None:
        """A crash teaches where not to go, and the reason is kept."""
        assert evidence(failed(reason=reason)).failures == {make_point(8): reason}

    def test_an_invalid_window_gives_no_figures(self) -> None:
        """Figures of a window that must not be used are not used."""
        trial = placed(4.0, 20.0, state=TrialState.INVALID, reason="no_steady_state")
        spoiled = replace(trial, measurement=replace(shown(trial), reasons=("no_steady_state",)))
        assert evidence(spoiled).observations == ()
        assert evidence(spoiled).failures == {make_point(8): "no_steady_state"}

    @pytest.mark.parametrize("reason", ["foreign_gpu_process", "hw_thermal", "device_lost"])
    def test_a_mishap_of_the_device_teaches_nothing(self, reason: str) -> None:
        """What would have struck any point is no failure of this one; the point counts as tried all the same."""
        found = evidence(failed(reason=reason))
        assert (found.observations, found.failures) == ((), {})
        assert found.tried == {make_point(8)}

    def test_a_cut_window_says_nothing_of_the_batch(self) -> None:
        """The queue of a window that was cut was still growing: what ran at once in it is no bound."""
        trial = placed(4.0, 20.0)
        cut = replace(trial, measurement=replace(shown(trial), peak_running=3, cut_by="sla:ttft_p99_ms"))
        assert evidence(cut).observations[0].peak_running is None

    def test_infeasible_without_a_missed_limit_gives_no_figures(self) -> None:
        """A point that numerics or overload ruled out shows figures inside every limit that must not be believed."""
        trial = placed(4.0, 20.0, state=TrialState.INFEASIBLE, reason="overloaded")
        assert evidence(trial).observations == ()
        assert evidence(trial).failures == {make_point(8): "overloaded"}

    def test_a_failure_beside_figures_is_none(self) -> None:
        """A point that crashed once and was measured once counts by what was measured."""
        found = evidence(failed(), placed(4.0, 20.0))
        assert len(found.observations) == 1
        assert found.failures == {}

    def test_all_of_them_were_tried(self) -> None:
        """Points with figures and points without were tried."""
        assert evidence(placed(4.0, 20.0, 8), failed(16)).tried == {make_point(8), make_point(16)}

    def test_nothing_is_known_of_no_trials(self) -> None:
        """Without trials there is no evidence."""
        assert evidence() == Evidence(observations=(), failures={}, refused=())


class TestRefused:
    """Points that failed the quality gate."""

    def test_a_point_that_was_refused_before_its_window(self) -> None:
        """A precision that is known to fail the gate is refused, and has no figures."""
        trial = make_trial(
            point=make_point(8), state=TrialState.INFEASIBLE, reason="quality:perplexity_ratio", measurement=None
        )
        assert evidence(trial).refused == (make_point(8),)
        assert set(evidence(trial).failures) == {make_point(8)}

    def test_a_point_that_was_refused_after_its_window(self) -> None:
        """One that was measured and failed the gate is refused and has figures, outside the limits."""
        poor = Quality(num_tokens=10, perplexity=30.0, perplexity_ratio=1.5, top1_agreement=0.5)
        trial = make_trial(
            state=TrialState.INFEASIBLE, reason="quality:perplexity_ratio", measurement=make_measurement(quality=poor)
        )
        found = evidence(trial)
        assert found.refused == (make_point(8),)
        assert [one.is_feasible for one in found.observations] == [False]

    def test_a_missed_latency_limit_refuses_nothing(self) -> None:
        """Too slow is not too poor."""
        assert evidence(placed(4.0, 60.0, **MISSED)).refused == ()
