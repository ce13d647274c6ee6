"""Faults of statistics: drift, single windows, ties, figures of another origin, loads in step with a sensor, tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import RequestRecord
from probes.device import PowerSample, Scope
from probes.metering.integral import integrate
from probes.settle import start_delays
from tests.db.factories import START, make_engine_info, make_point, make_reading, make_trial
from tests.tuner.factories import make_record, make_request, make_space, measured
from tuner.aggregates import aggregated
from tuner.drift import BaselineDrifted, Drift, interleaved
from tuner.finalists import next_repeat
from tuner.measurement import Distribution, Estimate, Measurement, distribution, mean_estimate, summarise
from tuner.objectives import verdict
from tuner.pareto import front_of, points_of
from tuner.point import OperatingPoint
from tuner.repeats import Place, Repeat, combined, dominates_with_margin
from tuner.request import RepeatRule
from tuner.trial import Trial, TrialRole, TrialState

METRIC = "tpot_p99_ms"

TRIAL_S = 60.0
BASELINE = -1
#: Steps of 0.2 %, less than the drift of 0.3 % from one trial to the next.
TRUE_TOK_PER_J = {BASELINE: 2.0} | {point: 2.0 * 1.002**point for point in range(12)}
BEST_FIRST = sorted(range(12), reverse=True)


def drifted(order: Sequence[int], true: dict[int, float]) -> list[tuple[int, float, float]]:
    """Measure points one after the other, +3 % per 10 trials: point, time and the figure it shows."""
    return [(point, TRIAL_S * i, true[point] * (1 + 0.003 * i)) for i, point in enumerate(order)]


def ranked(figures: dict[int, float]) -> list[int]:
    """Return the points by figure, best first."""
    return sorted(figures, key=lambda point: figures[point], reverse=True)


@pytest.mark.parametrize("seed", range(5))
def test_power_57_interleaved_baselines_recover_the_true_order_under_drift(seed: int) -> None:
    """POWER-57: with +3 % per 10 trials, points corrected by an interleaved baseline rank as they truly do."""
    order = interleaved(range(12), BASELINE, rng=random.Random(seed))
    shown = drifted(order, TRUE_TOK_PER_J)
    baselines = [(time_s, figure) for point, time_s, figure in shown if point == BASELINE]
    drift = Drift.fit(*zip(*baselines, strict=True))
    assert isinstance(drift, Drift)
    corrected = {p: drift.corrected(time_s, Estimate(figure)).value for p, time_s, figure in shown if p != BASELINE}
    raw = {point: figure for point, _, figure in shown if point != BASELINE}
    assert ranked(corrected) == BEST_FIRST
    assert ranked(raw) != BEST_FIRST


def test_power_57_a_fixed_order_does_not() -> None:
    """POWER-57: measured best first and left uncorrected, drift turns the order round and the worst looks best."""
    shown = {point: figure for point, _, figure in drifted(BEST_FIRST, TRUE_TOK_PER_J)}
    assert BEST_FIRST[::-1] == ranked(shown)


def test_power_58_a_block_whose_baseline_changed_by_more_than_five_percent_is_refused() -> None:
    """POWER-58: 24 points at +3 % per 10 trials move the baseline by 8 %: no correction, but a reason code."""
    true = {BASELINE: 2.0} | dict.fromkeys(range(24), 2.0)
    shown = drifted(interleaved(range(24), BASELINE, rng=random.Random(1)), true)
    baselines = [(time_s, figure) for point, time_s, figure in shown if point == BASELINE]
    refused = Drift.fit(*zip(*baselines, strict=True))
    assert isinstance(refused, BaselineDrifted)
    assert refused.reason == "baseline_drifted"
    assert pytest.approx(0.003 * 28) == refused.change_share


#: Ten points, each more frugal by 0.2 % and slower than the one before; the first is the default and the baseline.
POINTS = make_space(max_batch=tuple(range(1, 11)))


def finals_under_drift(share_a_trial: float) -> list[Trial]:
    """Screen all points and repeat six of them, while tokens per joule rise by a share from one trial to the next."""
    request = make_request(repeats=RepeatRule(windows=3, finalists=6))
    trials: list[Trial] = []

    def add(point: OperatingPoint, role: TrialRole) -> None:
        number, batch = len(trials), int(point["max_batch"])
        shown = measured(2.0 * 1.002**batch * (1 + share_a_trial * number), 10.0 * batch, spread=0.002)
        trials.append(make_trial(number=number, point=point, role=role, measurement=shown, session=str(number)))

    for point in POINTS.points():
        add(point, TrialRole.SCREENING)
    while (repeat := next_repeat(request, POINTS, trials)) is not None:
        add(repeat.point, repeat.role)
    return trials


def test_power_57_a_jobs_finals_rank_as_they_truly_do() -> None:
    """POWER-57: with +3 % per 10 trials the finals' means are out of order as measured, and in it once corrected."""
    trials = finals_under_drift(0.003)
    points = [one for one in aggregated(trials, METRIC) if one.is_corrected]
    shown = {int(one.point["max_batch"]): one.tok_per_j.value for one in points}
    raw = {
        int(one.point["max_batch"]): one.mean(lambda window: window.tok_per_j or Estimate(0.0)).value for one in points
    }
    assert [one.num_windows for one in points] == [2] * 5  # the sixth finalist is the baseline itself
    assert ranked(shown) == sorted(shown, reverse=True)
    assert ranked(raw) != sorted(raw, reverse=True)
    first = min(shown)
    assert {batch: pytest.approx(shown[first] * 1.002 ** (batch - first), rel=1e-3) for batch in shown} == shown


def test_power_58_finals_whose_baseline_changed_by_more_than_five_percent_are_not_used() -> None:
    """POWER-58: at +3 % a trial no stretch of the finals can be mended: its windows are left out, with the reason."""
    trials = finals_under_drift(0.03)
    front = front_of(trials, METRIC, created_at=START)
    repeated = {trial.point for trial in trials if trial.role is TrialRole.FINALIST}
    shown = [point.aggregated for point in points_of(front, trials) if point.trial.point in repeated]
    assert shown
    assert {(1, False)} == {(one.num_windows, one.is_corrected) for one in shown}
    assert all(one.left_out is not None and one.left_out.startswith("baseline_drifted: ") for one in shown)


def test_power_59_of_one_window_no_interval_is_known() -> None:
    """POWER-59: with n = 1 an interval is None, never 0 wide, whether of samples, of windows or of sessions."""
    once = Estimate(2.0, None, None)
    assert (once, once) == (mean_estimate([2.0]), combined([Repeat(value=2.0, session="a")]).estimate)
    assert once == combined([Repeat(value=2.0, session="a"), Repeat(value=2.0, session="a")]).estimate
    assert Distribution(count=1, mean=once, p50=once, p90=once, p95=once, p99=once) == distribution([2.0])


@pytest.mark.parametrize("state", [state for state in TrialState if state is not TrialState.COMPLETE])
def test_power_60_a_trial_that_is_not_complete_never_reaches_the_front(state: TrialState) -> None:
    """POWER-60: however good its figures, a failed, invalid, infeasible or unfinished trial stands on no front."""
    best = make_trial(number=0, point=make_point(1), state=state, measurement=measured(99.0, 0.001))
    good = make_trial(number=1, measurement=measured(1.0, 10.0))
    front = front_of([best, good], METRIC, created_at=START)
    assert ((good,), 10.0) == (front.trials, front.latency_reference_ms)


def repeated(*tok_per_j: float, latency_ms: Sequence[float]) -> Place:
    """A point of several sessions, one window each."""
    tokens, latencies = (
        combined([Repeat(value=value, session=str(i)) for i, value in enumerate(values)]).estimate
        for values in (tok_per_j, latency_ms)
    )
    return Place(tok_per_j=tokens, latency_ms=latencies)


def test_power_61_points_within_each_others_intervals_are_both_kept() -> None:
    """POWER-61: a point a little better on both axes does not dominate; one better beyond the intervals does."""
    point = repeated(2.00, 2.02, 1.98, latency_ms=(20.0, 20.2, 19.8))
    little = repeated(2.02, 2.04, 2.00, latency_ms=(19.8, 20.0, 19.6))
    clear = repeated(2.20, 2.22, 2.18, latency_ms=(18.0, 18.2, 17.8))
    assert little.tok_per_j.value > point.tok_per_j.value
    assert little.latency_ms.value < point.latency_ms.value
    assert [dominates_with_margin(little, point), dominates_with_margin(point, little)] == [False, False]
    assert [dominates_with_margin(clear, point), dominates_with_margin(point, clear)] == [True, False]


@pytest.mark.parametrize(
    "changes",
    [
        {"reading": make_reading(scope=Scope.MODULE)},
        {"reading": make_reading(device_uuids=("GPU-2",))},
        {"reading": make_reading(device_uuids=("GPU-1", "GPU-2"))},
        {"driver": "535.54.03"},
        {"engine": make_engine_info(model_hash="cd" * 32)},
        {"engine": make_engine_info(engine="other")},
        {"engine": make_engine_info(version="2")},
    ],
    ids=["scope", "uuid", "more GPUs", "driver", "model", "engine", "engine version"],
)
def test_power_62_figures_of_another_origin_stay_out_of_the_front(changes: dict[str, Any]) -> None:
    """POWER-62: a trial of another scope, device, driver, model or engine never joins the newest."""
    old = make_trial(number=0, measurement=measured(99.0, 1.0, **changes))
    new = make_trial(number=1, measurement=measured(2.0, 10.0), started_at=START + timedelta(hours=1))
    assert front_of([new], METRIC, created_at=START) == front_of([old, new], METRIC, created_at=START)


PERIOD_S = 0.1
LOOK_S = 0.025
WINDOW_S = 30.0
SETTLE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsedLoad:
    """High power for the first part of every PERIOD_S since it began, low power for the rest."""

    begun_s: float
    high_w: float = 400.0
    low_w: float = 200.0
    high_share: float = 0.5

    @property
    def mean_w(self) -> float:
        return self.high_share * self.high_w + (1 - self.high_share) * self.low_w

    def energy_until_j(self, time_s: float) -> float:
        """Joules since it began, exactly."""
        whole, part_s = divmod(time_s - self.begun_s, PERIOD_S)
        high_s = min(part_s, self.high_share * PERIOD_S)
        return whole * PERIOD_S * self.mean_w + high_s * self.high_w + (part_s - high_s) * self.low_w

    def seen_w(self, time_s: float) -> float:
        """What a sensor reports that looks at the last LOOK_S of its period only."""
        return (self.energy_until_j(time_s) - self.energy_until_j(time_s - LOOK_S)) / LOOK_S


def sensed_power_w(load: PulsedLoad) -> float:
    """Integrate what the sensor reports at its own ticks, whole multiples of PERIOD_S, over one window."""
    start_s = load.begun_s + SETTLE_S
    first, last = int(start_s / PERIOD_S) - 1, int((start_s + WINDOW_S) / PERIOD_S) + 1
    ticks_s = [tick * PERIOD_S for tick in range(first, last + 1)]
    samples = [PowerSample(time_s=tick_s, power_w=load.seen_w(tick_s)) for tick_s in ticks_s]
    energy_j, reasons = integrate(samples, start_s, start_s + WINDOW_S)
    assert energy_j is not None, reasons
    return energy_j / WINDOW_S


@pytest.mark.parametrize(("begun_s", "seen_w"), [(10.06, 400.0), (10.01, 200.0)], ids=["high part", "low part"])
def test_power_63_one_window_in_step_with_the_sensor_is_biased(begun_s: float, seen_w: float) -> None:
    """POWER-63: a sensor that looks at 25 of 100 ms sees one part of a load in step with it: 33 % off, validly."""
    load = PulsedLoad(begun_s=begun_s)
    assert pytest.approx(seen_w) == sensed_power_w(load)
    assert abs(sensed_power_w(load) / load.mean_w - 1) > 0.10


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(),
    begun_s=st.floats(10.0, 10.1),
    low_w=st.floats(100.0, 400.0),
    high_share=st.floats(0.1, 0.9),
)
def test_power_63_repeats_with_start_delays_are_not(seed: int, begun_s: float, low_w: float, high_share: float) -> None:
    """POWER-63: the mean of 8 repeats with start delays is within 2 %, whatever seed, phase and shape of the load."""
    delays_s = start_delays(8, sensor_period_s=PERIOD_S, rng=random.Random(seed))
    loads = [PulsedLoad(begun_s=begun_s + delay_s, low_w=low_w, high_share=high_share) for delay_s in delays_s]
    mean_w = sum(map(sensed_power_w, loads)) / len(loads)
    assert pytest.approx(loads[0].mean_w, rel=0.02) == mean_w


def summarised(*records: RequestRecord) -> Measurement:
    """The window of `make_reading`, from 10 to 40 s."""
    return summarise(
        records, make_reading(), engine=make_engine_info(), warmup_s=10.0, mean_running=4.0, prompt_tokens=64
    )


@pytest.mark.parametrize("records", [[], [make_record(5.0, 9.0), make_record(41.0)]], ids=["no request", "outside"])
def test_power_64_a_window_without_tokens_has_no_figure_and_no_place(records: list[RequestRecord]) -> None:
    """POWER-64: with energy but no token in the window nothing is divided, and its trial has failed with a reason."""
    measurement = summarised(*records)
    assert (measurement.output_tokens, measurement.tok_per_j, measurement.j_per_tok) == (0, None, None)
    judged = verdict(make_request(), measurement)
    assert (judged.state, judged.reason) == (TrialState.FAILED, "no_tokens")
    failed = make_trial(state=judged.state, measurement=measurement)
    assert front_of([failed], METRIC, created_at=START).trials == ()


def test_power_65_tokens_are_counted_by_id_and_not_by_chunk() -> None:
    """POWER-65: six tokens that came out in two chunks are six, for rate, energy and time per token alike."""
    record = make_record(12.0, 12.0, 12.0, 14.0, 14.0, 14.0, arrival_s=11.0, text="two words")
    measurement = summarised(record)
    assert len(record.token_ids) == measurement.output_tokens == 6
    assert measurement.tok_per_j is not None
    assert pytest.approx(6 / 300.0) == measurement.tok_per_j.value
    assert pytest.approx(6 / 30.0) == measurement.output_tok_s.value
    assert measurement.tpot.mean is not None
    assert pytest.approx(1e3 * 2.0 / 5) == measurement.tpot.mean.value
