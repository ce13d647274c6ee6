"""A bench that measures nothing: outcomes by script, for what surrounds the measuring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.stores import Stores
from db.job import Claim
from tests.db.factories import make_measurement
from tuner.bench import Outcome
from tuner.measurement import Distribution, Estimate
from tuner.point import OperatingPoint
from tuner.request import Budget, KnobRange, TuneRequest, WorkloadSpec
from tuner.trial import TrialState

#: What comes of a point: an outcome, or an error that ends the job.
Script = Callable[[OperatingPoint], Outcome]


def use_script(monkeypatch: pytest.MonkeyPatch, script: Script) -> None:
    """Let the worker measure by script."""

    class ScriptedBench:
        def __init__(self, *_: object, rig: object, qualities: object = None) -> None:
            pass

        def measure(self, point: OperatingPoint, **_: object) -> Outcome:
            return script(point)

        def close(self) -> None:
            pass

    monkeypatch.setattr("api.job_bench.Bench", ScriptedBench)


def complete(_: OperatingPoint) -> Outcome:
    """Find every point alike and good."""
    return Outcome(state=TrialState.COMPLETE, measurement=make_measurement())


def too_slow(point: OperatingPoint) -> Outcome:
    """Find every point too slow for `ttft_p99_ms<=1`: the smaller the batch, the less."""
    slow = float(point["max_batch"])
    ttft = Distribution(count=20, p99=Estimate(slow), p50=Estimate(slow))
    return Outcome(
        state=TrialState.INFEASIBLE,
        reason="sla:ttft_p99_ms",
        detail=f"ttft_p99_ms is {slow:g}, the limit is 1",
        measurement=replace(make_measurement(), ttft=ttft),
    )


def tiny_request(folder: Path, **changes: Any) -> TuneRequest:
    """Return a request that can be prepared on any machine; its space has four points."""
    request = TuneRequest(
        model=str(folder),
        device="cpu",
        workload=WorkloadSpec(prompt_tokens=(8, 16), output_tokens=(4, 8)),
        knobs=(KnobRange(name="precision", values=("fp32",)), KnobRange(name="max_batch", values=(2, 4, 8, 16))),
        budget=Budget(trials=24),
    )
    return replace(request, **changes)


def claimed(stores: Stores, request: TuneRequest) -> Claim:
    """Store a request as a job and claim it."""
    return stores.jobs.claim(stores.jobs.create(request).id, "host:1:1", 60.0)
