"""Records that are right in every field, to be changed where a test cares."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from engine.settings import EngineInfo
from probes.device import Capability, Conditions, DeviceInfo, DeviceKind, Method, PowerSample, Reading, Scope
from tuner.measurement import Distribution, Estimate, Measurement, Quality
from tuner.point import OperatingPoint
from tuner.request import Budget, KnobRange, Limit, TuneRequest, WorkloadSpec
from tuner.trial import Trial, TrialState

#: Where a child process finds the packages.
REPOSITORY = Path(__file__).parents[2]
START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Clock:
    """A clock that moves only when told to."""

    def __init__(self, time: datetime = START) -> None:
        self.time = time

    def now(self) -> datetime:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


def make_request(**changes: Any) -> TuneRequest:
    request = TuneRequest(
        model="smollm2-135m",
        workload=WorkloadSpec(prompt_tokens=(8, 16), output_tokens=(4, 8), concurrency=2, seed=7),
        sla=(Limit(metric="ttft_p99_ms", bound_ms=500.0),),
        knobs=(
            KnobRange(name="max_batch", values=(8, 16, 32)),
            KnobRange(name="precision", values=("int8", "fp32")),
            KnobRange(name="rate", values=(1, 2.0, 0.5)),
        ),
        budget=Budget(trials=4, minutes=2.5),
        name="nightly",
    )
    return replace(request, **changes)


def make_point(max_batch: int = 8, **knobs: int | float | str) -> OperatingPoint:
    return OperatingPoint.of({"max_batch": max_batch, "precision": "fp32", **knobs})


def make_reading(**changes: Any) -> Reading:
    reading = Reading(
        energy_j=300.0,
        start_s=10.0,
        end_s=40.0,
        scope=Scope.GPU,
        method=Method.COUNTER,
        detail="total energy counter",
        device_uuids=("GPU-1",),
        uncertainty_j=0.5,
        notes=("idle before: 60 W",),
        trace=tuple(PowerSample(time_s=10.0 + i, power_w=9.5 + i / 7) for i in range(5)),
    )
    return replace(reading, **changes)


def make_conditions(**changes: Any) -> Conditions:
    conditions = Conditions(
        device_uuid="GPU-1",
        num_samples=300,
        mean_clock_mhz=1397.5,
        lowest_clock_mhz=1365.0,
        highest_clock_mhz=1410.0,
        mean_memory_clock_mhz=2619.0,
        start_temperature_c=55.0,
        end_temperature_c=61.0,
        highest_temperature_c=62.0,
        power_limit_w=500.0,
        event_shares=(("sw_power_cap", 0.8), ("hw_slowdown", 0.003)),
    )
    return replace(conditions, **changes)


def make_engine_info(**changes: Any) -> EngineInfo:
    info = EngineInfo(
        engine="embedded",
        version="0.1.0",
        model="smollm2-135m",
        model_hash="ab" * 32,
        precision="fp32",
        device="cpu",
        max_context=2048,
        num_kv_blocks=128,
        num_parameters=134_515_008,
        start_s=1.25,
        isa="avx512",
        pids=(4711, 4712),
    )
    return replace(info, **changes)


def make_measurement(**changes: Any) -> Measurement:
    latency = Distribution(
        count=40,
        mean=Estimate(20.0, 19.0, 21.0),
        p50=Estimate(19.5, 18.0, 21.0),
        p90=Estimate(25.0, 22.0, 31.0),
        p95=Estimate(28.0, 24.0, None),
        p99=Estimate(31.0, 25.0, None),
    )
    measurement = Measurement(
        window_s=30.0,
        warmup_s=10.0,
        output_tokens=600,
        prompt_tokens=1200,
        num_finished=40,
        num_failed=0,
        num_preemptions=1,
        mean_running=1.9,
        output_tok_s=Estimate(20.0, 19.2, 20.8),
        tok_per_j=Estimate(2.0, 1.9, 2.1),
        j_per_tok=Estimate(0.5, 0.48, 0.53),
        mean_power_w=10.0,
        ttft=latency,
        tpot=latency,
        itl=latency,
        e2e=Distribution(count=0),
        reading=make_reading(),
        engine=make_engine_info(),
        quality=Quality(num_tokens=512, perplexity=17.3, perplexity_ratio=1.01, top1_agreement=0.97),
    )
    return replace(measurement, **changes)


def make_trial(**changes: Any) -> Trial:
    trial = Trial(
        number=0,
        point=make_point(),
        state=TrialState.COMPLETE,
        measurement=make_measurement(),
        started_at=START,
        finished_at=START + timedelta(seconds=45),
    )
    return replace(trial, **changes)


def make_device(**changes: Any) -> DeviceInfo:
    info = DeviceInfo(
        uuid="GPU-1",
        name="NVIDIA H200",
        kind=DeviceKind.GPU,
        driver="580.65.06",
        details=(("pci", "0000:01:00.0"), ("power_limit_w", "700")),
    )
    return replace(info, **changes)


def make_capability(**changes: Any) -> Capability:
    return replace(Capability(name="energy_counter", is_available=True, reason="read 123.4 J"), **changes)
