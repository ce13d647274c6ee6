"""Requests, spaces and steps that are right in every field, to be changed where a test cares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.load import Progress
from engine.request import FinishReason, RequestRecord
from tests.db.factories import make_measurement
from tuner.measurement import Distribution, Estimate, Measurement
from tuner.request import Budget, KnobValue, TuneRequest, WindowRule, WorkloadSpec
from tuner.space import Knob, SearchSpace


def make_request(**changes: Any) -> TuneRequest:
    """A job of short windows over the embedded engine's own knobs, without limits."""
    request = TuneRequest(
        model="smollm2-135m",
        workload=WorkloadSpec(prompt_tokens=(8, 16), output_tokens=(2, 6)),
        budget=Budget(trials=24),
        window=WindowRule(warmup_s=1.0, max_warmup_s=8.0, window_s=4.0, min_requests=4, max_window_s=12.0, idle_s=0.0),
    )
    return replace(request, **changes)


def make_knob(name: str = "max_batch", values: tuple[KnobValue, ...] = (4, 8), **changes: Any) -> Knob:
    return replace(Knob(name=name, values=values, needs_launch=True, default=values[0]), **changes)


def make_space(**values: tuple[KnobValue, ...]) -> SearchSpace:
    """A space of knobs by name; the first value of each is its default."""
    named = values or {"max_batch": (4, 8), "precision": ("fp32", "int8")}
    return SearchSpace(knobs=tuple(make_knob(name, of_one) for name, of_one in named.items()))


def make_progress(time_s: float, **changes: Any) -> Progress:
    progress = Progress(time_s=time_s, num_running=4, num_waiting=0, num_tokens=4, num_prompt_tokens=0)
    return replace(progress, **changes)


def make_record(*token_times_s: float, arrival_s: float = 0.0, **changes: Any) -> RequestRecord:
    """A request whose tokens were known at these instants."""
    record = RequestRecord(
        request_id="r",
        num_prompt_tokens=8,
        token_ids=(1,) * len(token_times_s),
        text="x" * len(token_times_s),
        arrival_s=arrival_s,
        token_times_s=token_times_s,
        finish_reason=FinishReason.LENGTH,
    )
    return replace(record, **changes)


def measured(tok_per_j: float | None, latency_ms: float | None, *, spread: float = 0.0, **changes: Any) -> Measurement:
    """A measurement at a place of the plane, known to a share of `spread`: every latency figure is `latency_ms`."""

    def near(value: float) -> Estimate:
        return Estimate(value, value * (1 - spread), value * (1 + spread))

    latency = Distribution(count=0)
    if latency_ms is not None:
        one = near(latency_ms)
        latency = Distribution(count=40, mean=one, p50=one, p90=one, p95=one, p99=one)
    return make_measurement(
        tok_per_j=None if tok_per_j is None else near(tok_per_j),
        ttft=latency,
        tpot=latency,
        itl=latency,
        e2e=latency,
        **changes,
    )
