"""Stores with something to see: jobs that run and have run, a night that drifted. Figures are made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from api.drift_schemas import DriftOut
from api.stores import Stores, utc_now
from db.job import Claim, JobState
from db.schedule import Night
from tests.api.night_watch import make_spec
from tests.db.factories import make_capability, make_device, make_measurement, make_point, make_reading, make_request
from tests.db.factories import make_trial as make_record
from tuner.measurement import Distribution, Estimate
from tuner.pareto import front_of
from tuner.request import TuneRequest
from tuner.trial import Trial

OWNER = "host:1:1"
#: (max_batch, tok/J, TPOT p99 in ms): the first is the default point; each later one is better and slower.
FIGURES = ((8, 2.0, 10.0), (16, 3.0, 14.0), (32, 3.6, 21.0))


def make_trials(figures: Sequence[tuple[int, float, float]] = FIGURES, *, device: str = "GPU-1") -> list[Trial]:
    """Return complete trials with these figures."""
    return [
        make_record(
            number=number,
            point=make_point(max_batch),
            measurement=replace(
                make_measurement(),
                tok_per_j=Estimate(tok_per_j, tok_per_j * 0.97, tok_per_j * 1.03),
                mean_power_w=300.0 + max_batch,
                tpot=Distribution(count=40, p90=Estimate(tpot_ms * 0.9), p99=Estimate(tpot_ms)),
                ttft=Distribution(count=40, p50=Estimate(90.0), p99=Estimate(120.0)),
                reading=make_reading(device_uuids=(device,)),
            ),
        )
        for number, (max_batch, tok_per_j, tpot_ms) in enumerate(figures)
    ]


def see_device(stores: Stores, *, uuid: str = "GPU-1", **changes: Any) -> None:
    """Store a device with something that can be had and something that cannot."""
    refused = make_capability(name="sm_clock_cap_mhz", is_available=False, reason="NVML: no permission; run the guard")
    stores.devices.seen(make_device(uuid=uuid, **changes), [make_capability(), refused])


def running_job(stores: Stores, request: TuneRequest | None = None, *, trials: Sequence[Trial] = ()) -> Claim:
    """Store a job that runs on GPU-1 and has these trials behind it."""
    see_device(stores)
    job = stores.jobs.create(request or make_request())
    claim = stores.jobs.claim(job.id, OWNER, 600.0)
    stores.jobs.set_device(claim, "GPU-1")
    for trial in trials:
        add_trial(stores, claim, trial)
    return claim


def add_trial(stores: Stores, claim: Claim, trial: Trial) -> None:
    """Store a trial that has ended just now."""
    now = utc_now()
    started = stores.trials.start(claim, trial.number, trial.point)
    stores.trials.finish(started, replace(trial, started_at=now, finished_at=now))


def finish(stores: Stores, claim: Claim, trials: Sequence[Trial], *, metric: str = "tpot_p99_ms") -> None:
    """End a job with the front of its trials, as a worker does."""
    job = stores.jobs.get(claim.job_id)
    front = front_of(trials, metric, created_at=utc_now(), request=job.request)
    stores.fronts.save(claim.job_id, front)
    stores.results.save(claim.job_id, trials, front)
    stores.jobs.finish(claim, JobState.FINISHED, "trials")


def finished_job(stores: Stores, request: TuneRequest | None = None, **changes: Any) -> str:
    """Store a job that ran to its end; `trials` and what a request has may be changed."""
    trials = changes.pop("trials", None) or make_trials()
    claim = running_job(stores, replace(request or make_request(), **changes), trials=trials)
    finish(stores, claim, trials)
    return claim.job_id


def night_with_drift(stores: Stores, *, name: str = "nightly chat", has_moved: bool = True, before: str) -> Night:
    """Store a schedule with one night that has run, and what moved since the job `before`."""
    schedule = stores.schedules.create(make_spec(name=name))
    night = stores.nights.run_now(schedule.id, now=utc_now())
    claim = stores.jobs.claim(night.job_id or "", OWNER, 600.0)
    stores.jobs.finish(claim, JobState.FINISHED, "trials")
    drift = DriftOut(
        compared_with=before,
        is_simulated=True,
        latency_metric="tpot_p99_ms",
        has_moved=has_moved,
        sentences=["1 of 3 points moved: tokens per joule fell by 6 %." if has_moved else "3 of 3 points held."],
    )
    stores.nights.set_drift(night.id, drift.model_dump(mode="json"))
    return stores.nights.list(schedule.id, limit=1)[0]
