"""A database as a team has it after a year or two: thousands of jobs, a million trials, their fronts and results.

A few jobs are stored the way that a worker does it, then copied inside the database, row by row under new ids. So every
row is one that the product wrote. Measurements are one simulated window whose figures are scaled over batch and clock,
so their values mean nothing. Power traces are left out, half of a record's bytes that no read of this benchmark looks
at; of the events only those of jobs are copied, and each trial has one attempt.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, LargeBinary, func, insert, literal, select, update
from sqlalchemy.orm import Session

from api.packing import pack
from api.records import front_document
from api.stores import Stores, utc_now
from db.job import Job, JobState
from db.jobs import add_job
from db.result import workload_key
from db.service_tables import EventRow, ResultRow
from db.tables import Base, FrontPointRow, FrontRow, MeasurementRow, TrialRow
from tuner.bench import Bench
from tuner.measurement import Distribution, Estimate, Measurement
from tuner.objectives import verdict
from tuner.pareto import front_of
from tuner.point import OperatingPoint
from tuner.request import Budget, KnobRange, Limit, TuneRequest, WindowRule, WorkloadSpec
from tuner.simulation import open_simulation
from tuner.trial import Trial

NUM_TEMPLATES = 2
NUM_MODELS = 20
DEVICES = ("h100-sxm", "h200-sxm", "b200", "gb200-nvl72")
NUM_WORKLOADS = 5
NUM_KINDS = NUM_MODELS * len(DEVICES) * NUM_WORKLOADS
JOBS_AT_ONCE = 100
MAX_BATCHES = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
HIGHEST_CLOCK_MHZ = 1980
_WINDOW = WindowRule(warmup_s=1, window_s=5, max_window_s=10, min_requests=4, idle_s=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A stored job that others are copies of."""

    job: Job
    request: TuneRequest
    #: Its front as it is shown.
    front_json: str


def kind_of(number: int) -> tuple[str, str]:
    """Return model and device of the job of a number."""
    return f"model-{number % NUM_MODELS}", f"simulated:{DEVICES[number // NUM_MODELS % len(DEVICES)]}"


def request_of(number: int, num_trials: int) -> TuneRequest:
    """Return the request of the job of a number: models, devices and workloads take turns."""
    model, device = kind_of(number)
    longest = 512 + number // (NUM_MODELS * len(DEVICES)) % NUM_WORKLOADS
    return TuneRequest(
        name=f"job {number}",
        model=model,
        engine="simulated",
        device=device,
        workload=WorkloadSpec(prompt_tokens=(128, 512), output_tokens=(128, longest)),
        sla=(Limit(metric="tpot_p99_ms", bound_ms=60.0),),
        knobs=(KnobRange(name="max_batch", values=MAX_BATCHES),),
        budget=Budget(trials=num_trials),
    )


def fill(stores: Stores, *, num_jobs: int, num_trials: int) -> list[str]:
    """Store jobs that have finished, each with so many trials; return their ids."""
    window = _window()
    templates = [
        _stored(stores, request_of(number, num_trials), window, num_trials=num_trials)
        for number in range(min(NUM_TEMPLATES, num_jobs))
    ]
    ids = [template.job.id for template in templates]
    with stores.database.transaction() as session:
        strides = _strides(session)
    numbers = range(len(templates), num_jobs)
    for start in range(0, len(numbers), JOBS_AT_ONCE):
        with stores.database.transaction() as session:
            for number in numbers[start : start + JOBS_AT_ONCE]:
                copy = Copy(
                    of=templates[number % len(templates)],
                    request=request_of(number, num_trials),
                    trials_on=number * strides[TrialRow],
                    fronts_on=number * strides[FrontRow],
                    is_current=number >= num_jobs - NUM_KINDS,
                )
                ids.append(copy.store(session))
    if num_jobs > NUM_KINDS + len(templates):  # later jobs of the same kind have taken the templates' place
        former = update(ResultRow).where(ResultRow.job_id.in_(ids[: len(templates)]))
        with stores.database.transaction() as session:
            session.execute(former.values(is_current=False))
    return ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A job to be: the rows of another under ids of its own."""

    of: Template
    request: TuneRequest
    #: By how much the numbers of its trials and fronts are larger.
    trials_on: int
    fronts_on: int
    #: Whether its results are the newest of their kind.
    is_current: bool

    def store(self, session: Session) -> str:
        """Copy all rows, inside the database; return the new job's id."""
        new_id, old_id = self._store_job(session), self.of.job.id
        job: dict[str, ColumnElement[Any]] = {"job_id": literal(new_id)}
        trial, front = TrialRow.id + self.trials_on, FrontRow.id + self.fronts_on
        _copy(session, TrialRow, TrialRow.job_id == old_id, {"id": trial, **job})
        trial_ids = select(TrialRow.id).where(TrialRow.job_id == old_id)
        moved = {"trial_id": MeasurementRow.trial_id + self.trials_on}
        _copy(session, MeasurementRow, MeasurementRow.trial_id.in_(trial_ids), moved)
        document = literal(self._document(new_id), LargeBinary)
        _copy(session, FrontRow, FrontRow.job_id == old_id, {"id": front, "document": document, **job})
        front_ids = select(FrontRow.id).where(FrontRow.job_id == old_id)
        moved = {
            "front_id": FrontPointRow.front_id + self.fronts_on,
            "trial_id": FrontPointRow.trial_id + self.trials_on,
        }
        _copy(session, FrontPointRow, FrontPointRow.front_id.in_(front_ids), moved)
        kind: dict[str, ColumnElement[Any]] = {
            "model": literal(self.request.model),
            "device": literal(self.request.device),
            "workload": literal(workload_key(self.request.workload)),
            "is_current": literal(self.is_current),
        }
        _copy(session, ResultRow, ResultRow.job_id == old_id, {**job, **kind}, leave_out="id")
        is_told = (EventRow.job_id == old_id) & (EventRow.kind == "job")
        _copy(session, EventRow, is_told, job, leave_out="id")
        return new_id

    def _store_job(self, session: Session) -> str:
        row = add_job(session, self.request, now=self.of.job.created_at, submitted_by="benchmark")
        row.state, row.started_at = JobState.FINISHED, self.of.job.created_at
        row.finished_at, row.ended_because = utc_now(), "trials"
        session.flush()
        return row.id

    def _document(self, new_id: str) -> bytes:
        """Return the front's document with this job's id and model in the place of the other's."""
        named = self.of.front_json.replace(self.of.job.id, new_id)
        return pack(named.replace(json.dumps(self.of.request.model), json.dumps(self.request.model)).encode())


def _copy(
    session: Session,
    table: type[Base],
    which: ColumnElement[bool],
    changed: Mapping[str, ColumnElement[Any]],
    *,
    leave_out: str = "",
) -> None:
    """Copy rows of a table, with other values in some columns."""
    columns = [column for column in table.__table__.columns if column.name != leave_out]
    values = [changed.get(column.name, column) for column in columns]
    session.execute(insert(table).from_select([column.name for column in columns], select(*values).where(which)))


def _window() -> Measurement:
    """Return what one simulated window showed, without its trace of the power."""
    request = replace(request_of(0, 1), model="llama-3.1-8b", window=_WINDOW)
    simulation = open_simulation(request)
    bench = Bench(request, simulation.device, simulation.open_engine, rig=simulation.open_rig())
    try:
        found = bench.measure(OperatingPoint.of({"max_batch": 64}), rivals=None).measurement
    finally:
        bench.close()
    assert found is not None  # a simulated window of a fitting model
    return replace(found, reading=replace(found.reading, trace=()))


def _stored(stores: Stores, request: TuneRequest, window: Measurement, *, num_trials: int) -> Template:
    """Store a job as a worker does: its trials one by one, then front, results and end."""
    job = stores.jobs.create(request, submitted_by="benchmark")
    claim = stores.jobs.claim(job.id, "benchmark:1", 3600.0)
    for number in range(num_trials):
        point, measurement = _scaled(window, number, num_trials)
        judged = verdict(request, measurement)
        started = stores.trials.start(claim, number, point)
        trial = Trial(
            number=number,
            attempt=started.attempt,
            point=point,
            state=judged.state,
            reason=judged.reason,
            detail=judged.detail,
            measurement=measurement,
            started_at=started.started_at,
            finished_at=utc_now(),
            session=f"{number // 8}",
        )
        stores.trials.finish(started, trial)
    trials = stores.trials.history(job.id)
    front = front_of(trials, request.latency_metric, created_at=utc_now(), request=request)
    document = front_document(job, front, trials)
    stores.fronts.save(job.id, front, document)
    stores.results.save(job.id, trials, front)
    stores.jobs.finish(claim, JobState.FINISHED, "trials")
    return Template(job=job, request=request, front_json=gzip.decompress(document.body).decode())


def _scaled(window: Measurement, number: int, num_trials: int) -> tuple[OperatingPoint, Measurement]:
    """Return a point and the window with figures that are larger or smaller there."""
    batch = MAX_BATCHES[number % len(MAX_BATCHES)]
    share = 1.0 - 0.5 * (number // len(MAX_BATCHES)) / max(1, -(-num_trials // len(MAX_BATCHES)))
    point = OperatingPoint.of({"max_batch": batch, "sm_clock_cap_mhz": round(HIGHEST_CLOCK_MHZ * share)})
    slower, more = (batch / 64) ** 0.4 / share, (batch / 64) ** 0.6
    efficiency = more * (1.6 - 0.6 * share)
    return point, replace(
        window,
        output_tok_s=times(window.output_tok_s, more * share),
        tok_per_j=None if window.tok_per_j is None else times(window.tok_per_j, efficiency),
        j_per_tok=None if window.j_per_tok is None else times(window.j_per_tok, 1 / efficiency),
        ttft=slowed(window.ttft, slower),
        tpot=slowed(window.tpot, slower),
        itl=slowed(window.itl, slower),
        e2e=slowed(window.e2e, slower),
    )


def times(estimate: Estimate, factor: float) -> Estimate:
    """Return a figure and its bounds, larger by a factor."""
    low, high = (None if bound is None else bound * factor for bound in (estimate.low, estimate.high))
    return Estimate(estimate.value * factor, low, high)


def slowed(latency: Distribution, factor: float) -> Distribution:
    """Return latencies that are longer by a factor."""
    return replace(
        latency,
        mean=latency.mean and times(latency.mean, factor),
        p50=latency.p50 and times(latency.p50, factor),
        p90=latency.p90 and times(latency.p90, factor),
        p95=latency.p95 and times(latency.p95, factor),
        p99=latency.p99 and times(latency.p99, factor),
    )


def _strides(session: Session) -> Mapping[type[Base], int]:
    """Return by how much the numbers of a copy are larger than those of the one before it, by table."""
    return {kind: (session.scalar(select(func.max(kind.id))) or 0) + 1 for kind in (TrialRow, FrontRow)}
