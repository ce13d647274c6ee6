"""Jobs on simulated devices, short enough for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.tuner.factories import make_request
from tuner.bench import Bench
from tuner.request import TuneRequest, WindowRule, WorkloadSpec
from tuner.simulation import open_simulation

WINDOW = WindowRule(warmup_s=1.0, max_warmup_s=10.0, window_s=2.0, min_requests=4, max_window_s=10.0, idle_s=0.0)


def make_simulated(**changes: Any) -> TuneRequest:
    """A job of Llama-3.1-8B on one H100, over seconds of virtual time."""
    request = make_request(
        model="llama-3.1-8b",
        engine="simulated",
        device="simulated:h100-sxm",
        workload=WorkloadSpec(prompt_tokens=(32, 64), output_tokens=(16, 32)),
        window=WINDOW,
    )
    return replace(request, **changes)


def open_bench(request: TuneRequest) -> Bench:
    """Return a bench on a device of its own."""
    simulation = open_simulation(request)
    return Bench(request, simulation.device, simulation.open_engine, rig=simulation.open_rig())
