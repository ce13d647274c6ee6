"""Stored records as their public JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from api.records import (
    MAX_MISSES,
    energy_out,
    front_of_job,
    front_out,
    job_out,
    measurement_out,
    nearest_misses,
    trial_out,
)
from api.stores import Stores
from probes.device import Method, Scope
from tests.api.scripted import claimed
from tests.db.factories import (
    START,
    make_conditions,
    make_measurement,
    make_point,
    make_reading,
    make_request,
    make_trial,
)
from tuner.measurement import Distribution, Estimate, Quality
from tuner.objectives import violations
from tuner.pareto import front_of
from tuner.request import Limit, QualityGate
from tuner.trial import Trial, TrialRole, TrialState


def missed(number: int, ttft_ms: float) -> Trial:
    """Return a trial that misses `ttft_p99_ms<=500`."""
    ttft = Distribution(count=9, p99=Estimate(ttft_ms))
    return make_trial(
        number=number,
        point=make_point(number + 1),
        state=TrialState.INFEASIBLE,
        reason="sla:ttft_p99_ms",
        detail=f"ttft_p99_ms is {ttft_ms:g}, the limit is 500",
        measurement=replace(make_measurement(), ttft=ttft),
    )


def test_a_job_tells_its_request_and_its_counts(stores: Stores) -> None:
    """A job's public form has the limits, the knobs and the trials by state."""
    claim = claimed(stores, make_request())
    started = stores.trials.start(claim, 0, make_point())
    stores.trials.finish(started, make_trial())
    job = job_out(stores.jobs.get(claim.job_id), START)
    assert (claim.job_id, "nightly", "running", False) == (job.id, job.name, job.state, job.is_interrupted)
    assert (job.sla, job.trials, job.budget_trials) == ({"ttft_p99_ms": 500.0}, {"complete": 1}, 4)
    assert job.knobs == {"max_batch": [8, 16, 32], "precision": ["int8", "fp32"], "rate": [1, 2.0, 0.5]}


def test_a_job_whose_worker_died_is_interrupted(stores: Stores) -> None:
    """Once the lease has run out, the job says that nobody works on it."""
    job = stores.jobs.get(claimed(stores, make_request()).job_id)
    assert job.lease_expires_at is not None
    assert not job_out(job, job.lease_expires_at - timedelta(seconds=1)).is_interrupted
    assert job_out(job, job.lease_expires_at).is_interrupted


def test_a_trial_without_figures_tells_why() -> None:
    """A failed trial has a reason, a sentence and no measurement: never a zero in its place."""
    trial = make_trial(state=TrialState.FAILED, reason="engine_died", detail="engine process 7 ended", measurement=None)
    shown = trial_out(trial)
    assert (
        shown.state,
        shown.reason,
        shown.detail,
        shown.measurement,
    ) == ("failed", "engine_died", "engine process 7 ended", None)


@pytest.mark.parametrize(("method", "is_estimate"), [(Method.ESTIMATE, True), (Method.COUNTER, False)])
def test_energy_is_told_with_where_it_comes_from(method: Method, is_estimate: bool) -> None:
    """Scope, method and whether it is an estimate stand beside every energy figure."""
    reading = make_reading(scope=Scope.CPU_SHARE, method=method, reasons=("counter_reset",))
    energy = measurement_out(make_measurement(reading=reading)).energy
    assert ("cpu_share", method.value, is_estimate) == (energy.scope, energy.method, energy.is_estimate)
    assert (energy.reasons, energy.notes, energy.device_uuids) == (["counter_reset"], ["idle before: 60 W"], ["GPU-1"])


def test_conditions_are_told_with_the_energy() -> None:
    """Clocks, temperatures, limit and the shares of clock events stand beside the energy, one record a device."""
    reading = make_reading(conditions=(make_conditions(), make_conditions(device_uuid="GPU-2", mean_clock_mhz=None)))
    first, second = measurement_out(make_measurement(reading=reading)).energy.conditions
    assert (first.device_uuid, first.mean_clock_mhz, first.power_limit_w) == ("GPU-1", 1397.5, 500.0)
    assert [(one.event, one.share) for one in first.event_shares] == [("sw_power_cap", 0.8), ("hw_slowdown", 0.003)]
    assert (second.device_uuid, second.mean_clock_mhz) == ("GPU-2", None)
    assert measurement_out(make_measurement()).energy.conditions == []


def test_the_hosts_energy_is_told_apart() -> None:
    """The host CPU's energy and idle power stand beside the device's, which stays what it was."""
    host = make_reading(scope=Scope.CPU_PACKAGE, energy_j=900.0, device_uuids=("CPU-1",))
    shown = measurement_out(make_measurement(host=host, idle_power_w=76.0))
    assert shown.host_energy is not None
    assert (shown.host_energy.energy_j, shown.host_energy.mean_power_w, shown.idle_power_w) == (900.0, 30.0, 76.0)
    assert (shown.energy.energy_j, shown.mean_power_w) == (300.0, 10.0)
    alone = measurement_out(make_measurement())
    assert (alone.host_energy, alone.idle_power_w) == (None, None)


def test_energy_that_is_not_there_has_no_power() -> None:
    """Without joules there are no mean watts: both are null, the duration is known all the same."""
    energy = energy_out(make_reading(energy_j=None, uncertainty_j=None))
    assert (energy.energy_j, energy.mean_power_w, energy.duration_s) == (None, None, 30.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_no_number_on_the_wire_is_not_finite(value: float) -> None:
    """A figure that is no number is null in JSON, which stays JSON for every reader (BUG-31)."""
    quality = Quality(num_tokens=1, perplexity=value, perplexity_ratio=value, top1_agreement=0.0)
    measurement = make_measurement(
        output_tok_s=Estimate(value, value, value), mean_power_w=value, mean_running=value, quality=quality
    )
    text = measurement_out(measurement).model_dump_json()

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} on the wire")

    wire = json.loads(text, parse_constant=refuse)
    assert wire["output_tok_s"] == {"value": None, "low": None, "high": None}
    assert (wire["mean_power_w"], wire["mean_running"], wire["quality"]["perplexity"]) == (None, None, None)


def test_gains_are_told_against_the_first_point(stores: Stores) -> None:
    """A point's gain is its tokens per joule over those of the job's default point, and null without that."""
    default, better = make_trial(), make_trial(
        number=1,
        point=make_point(16),
        measurement=make_measurement(tok_per_j=Estimate(3.0, 2.9, 3.1), tpot=Distribution(count=4, p99=Estimate(40.0))),
    )  # fmt: skip
    front = front_of([default, better], "tpot_p99_ms", created_at=START)
    job = stores.jobs.create(make_request())
    shown = front_out(job, front, [default, better], default.point)
    assert [point.gain_over_default for point in shown.points] == [1.0, 1.5]
    assert [point.gain_over_default for point in front_out(job, front, [better], default.point).points] == [None, None]
    assert [(point.latency_ms.value, point.latency_ms.low, point.latency_ms.high) for point in shown.points] == [
        (31.0, 25.0, None),
        (40.0, None, None),
    ]
    assert (
        shown.points[0].energy_scope,
        shown.points[0].energy_method,
        shown.points[0].is_estimate,
    ) == ("gpu", "counter", False)


def test_gains_are_of_figures_corrected_alike(stores: Stores) -> None:
    """Where a baseline's drift is divided out, it is out of the default point's figures as well."""
    latencies_ms = {8: 31.0, 32: 35.0, 16: 40.0}

    def window(number: int, batch: int, tok_per_j: float, role: TrialRole = TrialRole.SCREENING) -> Trial:
        latency = Distribution(count=4, p99=Estimate(latencies_ms[batch]))
        measurement = make_measurement(tok_per_j=Estimate(tok_per_j), tpot=latency)
        return make_trial(number=number, point=make_point(batch), role=role, measurement=measurement)

    # The baseline, of batch 32, loses 1 % from one window to the next, and so does everything else.
    trials = [
        window(0, 8, 2.0),
        window(1, 32, 2.2 * 0.99, TrialRole.BASELINE),
        window(2, 16, 3.0 * 0.99**2),
        window(3, 32, 2.2 * 0.99**3, TrialRole.BASELINE),
    ]
    front = front_of(trials, "tpot_p99_ms", created_at=START)
    points = front_out(stores.jobs.create(make_request()), front, trials, trials[0].point).points
    gains = [one.gain_over_default for one in points if one.gain_over_default is not None]
    assert pytest.approx([1.0, 1.1, 1.5], rel=1e-4) == gains


def test_of_a_cut_window_no_gain_is_told(stores: Stores) -> None:
    """Where all windows of the default point were cut, gains are null and the points say why."""
    cut = make_trial(state=TrialState.INFEASIBLE, measurement=make_measurement(cut_by="sla:ttft_p99_ms"))
    better = make_trial(number=1, point=make_point(16))
    front = front_of([cut, better], "tpot_p99_ms", created_at=START)
    job = stores.jobs.create(make_request())
    (point,) = front_out(job, front, [cut, better], cut.point).points
    assert point.gain_over_default is None
    assert point.note == "no gain over the default point is told: all windows of that were cut"
    whole = make_trial(number=2)
    (point,) = front_out(job, front, [cut, better, whole], cut.point).points
    assert (point.gain_over_default, point.note) == (1.0, None)


def test_a_repeated_point_is_told_by_its_mean(stores: Stores) -> None:
    """Figures of a point with three windows are means over them, with the interval between launches, and say so."""
    trials = [
        make_trial(
            number=i,
            session=f"s{i}",
            measurement=make_measurement(tok_per_j=Estimate(value), mean_power_w=10.0 + i),
        )
        for i, value in enumerate((1.9, 2.0, 2.1))
    ]
    front = front_of(trials, "tpot_p99_ms", created_at=START)
    (point,) = front_out(stores.jobs.create(make_request()), front, trials, trials[0].point).points
    assert (point.trial, point.num_windows, point.num_sessions, point.interval_of) == (0, 3, 3, "sessions")
    assert pytest.approx(2.0) == point.tok_per_j.value
    assert (point.mean_power_w, point.gain_over_default) == (11.0, 1.0)
    assert (point.tied_with, point.is_leading, point.note) == ([], True, None)
    assert point.measurement.mean_power_w == 10.0


def test_ties_and_notes_are_told(stores: Stores) -> None:
    """Points that cannot be ranked name each other, and a point whose repeats were left out says why."""
    baselines = [
        make_trial(number=n, role=TrialRole.BASELINE, measurement=make_measurement(tok_per_j=Estimate(value, 1.0, 3.0)))
        for n, value in ((2, 2.0), (4, 3.0))
    ]
    near = make_measurement(tok_per_j=Estimate(1.99, 1.9, 2.1))
    other = make_trial(number=1, point=make_point(16), measurement=near)
    repeat = make_trial(number=3, point=make_point(16), role=TrialRole.FINALIST, measurement=near)
    trials = [make_trial(), other, *baselines, repeat]
    front = front_of(trials, "tpot_p99_ms", created_at=START)
    shown = front_out(stores.jobs.create(make_request()), front, trials, trials[0].point).points
    assert [(one.trial, one.tied_with, one.is_leading) for one in shown] == [(0, [1], True), (1, [0], False)]
    assert shown[1].note == (
        "windows left out, baseline_drifted: the baseline changed by 50.0% within the block, 5% is allowed"
    )


def test_nearest_misses_come_nearest_first() -> None:
    """When nothing meets the limits, the points that miss their worst limit by least are listed (BUG-15b)."""
    trials = [missed(0, 900.0), missed(1, 550.0), missed(2, 5000.0), missed(3, 700.0)]
    shown = nearest_misses(make_request(), trials)
    assert [miss.trial for miss in shown] == [1, 3, 0]
    assert len(shown) == MAX_MISSES
    assert shown[0].missed_by == pytest.approx(0.1)
    assert (shown[0].detail, shown[0].knobs) == (
        "ttft_p99_ms is 550, the limit is 500",
        {"max_batch": 2, "precision": "fp32"},
    )


def test_cut_windows_come_after_whole_ones() -> None:
    """A cut window shows the least that its limit is missed by: it comes last, marked, or gives way to a whole one."""
    cut_early, cut_late, twice = missed(0, 450.0), missed(1, 550.0), missed(2, 520.0)
    trials = [
        *(replace(one, measurement=replace(one.measurement, cut_by="sla:ttft_p99_ms")) for one in
          (cut_early, cut_late, twice) if one.measurement is not None),
        replace(missed(3, 900.0), point=twice.point),
    ]  # fmt: skip
    shown = nearest_misses(make_request(), trials)
    assert [(miss.trial, miss.is_cut) for miss in shown] == [(3, False), (0, True), (1, True)]
    assert [pytest.approx(miss.missed_by) for miss in shown] == [0.8, 0.0, 0.1]


def test_the_worst_limit_decides_how_near_a_miss_is() -> None:
    """Of several limits that a point misses, the one missed by most counts, the quality gate among them."""
    request = make_request(
        sla=(Limit(metric="ttft_p99_ms", bound_ms=500.0),), quality=QualityGate(max_perplexity_ratio=1.0)
    )
    trial = missed(0, 505.0)
    assert trial.measurement is not None
    assert nearest_misses(request, [trial])[0].missed_by == max(violations(request, trial.measurement).values())


def test_trials_that_miss_no_limit_are_no_misses() -> None:
    """Failed trials, trials without figures, and those inside every limit are not listed as near."""
    trials = [
        make_trial(state=TrialState.FAILED, measurement=None),
        make_trial(state=TrialState.INFEASIBLE, reason="numerics", measurement=None),
        make_trial(state=TrialState.INFEASIBLE, reason="numerics"),
        make_trial(),
    ]
    assert nearest_misses(make_request(), trials) == []


def test_a_front_is_of_the_trials_so_far(stores: Stores) -> None:
    """A running job's front has what has ended; misses are listed only while the front is empty."""
    claim = claimed(stores, make_request())
    empty = front_of_job(stores, claim.job_id[:8])
    assert (claim.job_id, [], [], False) == (empty.job, empty.points, empty.nearest_misses, empty.is_final)
    stores.trials.finish(stores.trials.start(claim, 0, make_point(1)), missed(0, 600.0))
    assert [miss.trial for miss in front_of_job(stores, claim.job_id).nearest_misses] == [0]
    stores.trials.finish(stores.trials.start(claim, 1, make_point()), make_trial(number=1))
    front = front_of_job(stores, claim.job_id)
    assert ([point.trial for point in front.points], front.nearest_misses) == ([1], [])
