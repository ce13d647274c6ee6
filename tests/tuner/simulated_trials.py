"""Trials of simulated GPUs, run here and now on a virtual clock: some ten a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from engine.simulated.shapes import load_shape
from probes.simulated.accelerators import ACCELERATORS, Accelerator
from probes.simulated.device import SimulatedDevice
from tests.tuner.factories import make_request
from tuner.bench import Bench
from tuner.observations import JobTrials
from tuner.point import OperatingPoint
from tuner.request import KnobValue, TuneRequest, WindowRule, WorkloadSpec
from tuner.simulation import Simulation
from tuner.trial import Trial

H100 = ACCELERATORS["h100-sxm"]
JOB_ID = "0123456789abcdef0123456789abcdef"
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

Point = dict[str, KnobValue]


def chat_request(**changes: object) -> TuneRequest:
    """Chats with an 8B model on a simulated H100, in windows of a few virtual seconds."""
    request = make_request(
        model="llama-3.1-8b",
        engine="simulated",
        device="simulated:h100-sxm",
        workload=WorkloadSpec(prompt_tokens=(100, 300), output_tokens=(100, 300)),
        window=WindowRule(
            warmup_s=3.0, max_warmup_s=30.0, window_s=8.0, min_requests=20, max_window_s=20.0, idle_s=0.0
        ),
    )
    return replace(request, **changes)  # type: ignore[arg-type] # whichever fields a test names


def changed(accelerator: Accelerator, **factors: float) -> Accelerator:
    """An accelerator with some coefficients multiplied."""
    given = accelerator.coefficients
    moved = {name: getattr(given, name) * factor for name, factor in factors.items()}
    return replace(accelerator, coefficients=replace(given, **moved))


def run_trials(
    request: TuneRequest, device: SimulatedDevice, points: Sequence[Point], *, job_id: str = JOB_ID
) -> JobTrials:
    """Measure the points one after the other as a job would."""
    simulation = Simulation(device=device, shape=load_shape(request.model))
    bench = Bench(request, device, simulation.open_engine, rig=simulation.open_rig())
    trials = []
    for number, knobs in enumerate(points):
        point = OperatingPoint.of(knobs)
        outcome = bench.measure(point)
        trials.append(
            Trial(
                number=number,
                point=point,
                state=outcome.state,
                reason=outcome.reason,
                detail=outcome.detail,
                measurement=outcome.measurement,
                started_at=NOW,
                finished_at=NOW,
            )
        )
    return JobTrials(job_id=job_id, request=request, shape=simulation.shape, trials=tuple(trials))
