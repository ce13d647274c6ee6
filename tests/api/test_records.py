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
from tuner.trial import Trial, TrialState


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
