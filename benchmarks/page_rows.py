"""A job of thousands of trials for the benchmark of its page, stored in seconds.

Each trial is the same simulated window with its figures scaled over precision, batch and clock and a little scatter, so
that front, intervals and states are as various as those of a search. Their values mean nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from api.records import front_document
from api.stores import Stores, utc_now
from benchmarks.service_rows import slowed, times
from db.job import JobState
from db.records import measurement_row, point_to_json, trial_columns
from db.tables import TrialRow
from tuner.bench import Bench
from tuner.measurement import Measurement
from tuner.objectives import verdict
from tuner.pareto import front_of
from tuner.point import OperatingPoint
from tuner.request import Budget, KnobRange, Limit, TuneRequest, WindowRule, WorkloadSpec
from tuner.simulation import open_simulation
from tuner.trial import Trial, TrialState

#: By how much each saves energy over bf16 here.
PRECISIONS = {"bf16": 1.0, "fp8": 1.45, "int8": 1.25}
MAX_BATCHES = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
CLOCKS_MHZ = tuple(range(990, 1981, 3))
BOUND_MS = 25.0
_TRIAL_S = 60.0
_SCATTER = 0.04
_FAILED_SHARE = 0.02
_SEED = 7
_WINDOW = WindowRule(warmup_s=1, window_s=5, max_window_s=10, min_requests=4, idle_s=0)


def fill(stores: Stores, num_trials: int) -> str:
    """Store a finished job of so many trials, 9,930 different points at most; return its id."""
    request = _request(num_trials)
    job = stores.jobs.create(request, submitted_by="benchmark")
    claim = stores.jobs.claim(job.id, "benchmark:1", 3600.0)
    trials = list(_trials(request, _window(request), num_trials))
    with stores.database.transaction() as session:
        for trial in trials:
            row = TrialRow(
                job_id=job.id,
                number=trial.number,
                attempt=trial.attempt,
                point=point_to_json(trial.point),
                role=trial.role,
                token=claim.token,
                **trial_columns(trial),
            )
            session.add(row)
            session.flush()
            if trial.measurement is not None:
                session.add(measurement_row(row.id, trial.measurement))
    front = front_of(trials, request.latency_metric, created_at=utc_now(), request=request)
    stores.fronts.save(job.id, front, front_document(job, front, trials))
    stores.results.save(job.id, trials, front)
    stores.jobs.finish(claim, JobState.FINISHED, "trials")
    return job.id


def _request(num_trials: int) -> TuneRequest:
    return TuneRequest(
        name=f"{num_trials:,} trials",
        model="llama-3.1-8b",
        engine="simulated",
        device="simulated:h100-sxm",
        workload=WorkloadSpec(prompt_tokens=(128, 512), output_tokens=(128, 512)),
        sla=(Limit(metric="tpot_p99_ms", bound_ms=BOUND_MS),),
        knobs=(
            KnobRange(name="max_batch", values=MAX_BATCHES),
            KnobRange(name="precision", values=tuple(PRECISIONS)),
            KnobRange(name="sm_clock_cap_mhz", values=CLOCKS_MHZ),
        ),
        budget=Budget(trials=num_trials),
        window=_WINDOW,
    )


def _window(request: TuneRequest) -> Measurement:
    """Return what one simulated window showed, its trace included."""
    simulation = open_simulation(request)
    bench = Bench(request, simulation.device, simulation.open_engine, rig=simulation.open_rig())
    try:
        found = bench.measure(OperatingPoint.of({"max_batch": 64}), rivals=None).measurement
    finally:
        bench.close()
    assert found is not None  # a simulated window of a fitting model
    return found


def _trials(request: TuneRequest, window: Measurement, num_trials: int) -> Iterator[Trial]:
    """Yield the default point and then others in a random order; some fail."""
    chance = random.Random(_SEED)
    points = [(name, batch, mhz) for name in PRECISIONS for batch in MAX_BATCHES for mhz in CLOCKS_MHZ]
    chance.shuffle(points)
    begin = utc_now() - timedelta(seconds=_TRIAL_S * num_trials)
    for number in range(num_trials):
        at = begin + timedelta(seconds=_TRIAL_S * number)
        precision, batch, clock_mhz = points[number % len(points)]
        point = OperatingPoint.of({"max_batch": batch, "precision": precision, "sm_clock_cap_mhz": clock_mhz})
        if number and chance.random() < _FAILED_SHARE:
            yield _failed(number, point, at)
        else:
            found = _scaled(window, PRECISIONS[precision], batch, clock_mhz, scatter=chance.gauss(1.0, _SCATTER))
            yield _measured(request, number, point, found, at)


def _failed(number: int, point: OperatingPoint, at: datetime) -> Trial:
    return Trial(
        number=number,
        point=point,
        state=TrialState.FAILED,
        reason="engine_died",
        detail="the engine's process ended with signal 9 while it loaded the model; see its last lines",
        started_at=at,
        finished_at=at + timedelta(seconds=_TRIAL_S),
        device_s=_TRIAL_S,
    )


def _measured(request: TuneRequest, number: int, point: OperatingPoint, found: Measurement, at: datetime) -> Trial:
    judged = verdict(request, found)
    return Trial(
        number=number,
        point=point,
        state=judged.state,
        reason=judged.reason,
        detail=judged.detail,
        measurement=found,
        started_at=at,
        finished_at=at + timedelta(seconds=_TRIAL_S),
        session=f"s{number // 8}",
        device_s=_TRIAL_S,
    )


def _scaled(window: Measurement, saving: float, batch: int, clock_mhz: int, *, scatter: float) -> Measurement:
    """Return the window with figures that are larger or smaller at a point."""
    share = clock_mhz / CLOCKS_MHZ[-1]
    slower = (batch / 64) ** 0.4 / (0.35 + 0.65 * share) / saving**0.5 / scatter
    more = (batch / 64) ** 0.6 * (0.35 + 0.65 * share) * saving**0.5 * scatter
    efficiency = (batch / 64) ** 0.5 * saving * (1.7 - 0.7 * share - 0.5 * (1 - share) ** 2) * scatter
    return replace(
        window,
        output_tok_s=times(window.output_tok_s, more),
        tok_per_j=None if window.tok_per_j is None else times(window.tok_per_j, efficiency),
        j_per_tok=None if window.j_per_tok is None else times(window.j_per_tok, 1 / efficiency),
        mean_power_w=None if window.mean_power_w is None else window.mean_power_w * more / efficiency,
        ttft=slowed(window.ttft, slower),
        tpot=slowed(window.tpot, slower),
        itl=slowed(window.itl, slower),
        e2e=slowed(window.e2e, slower),
    )
