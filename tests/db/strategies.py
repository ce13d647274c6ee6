"""Hypothesis strategies for every record that is stored, over all values that a record may have."""

from __future__ import annotations

from datetime import timedelta, timezone

from hypothesis import strategies as st

from engine.settings import EngineInfo
from probes.device import Conditions, Method, PowerSample, Reading, Scope
from tuner.measurement import Distribution, Estimate, Measurement, Quality
from tuner.pareto import Front
from tuner.point import OperatingPoint
from tuner.request import (
    LATENCY_METRICS,
    Budget,
    KnobRange,
    Limit,
    QualityGate,
    TuneRequest,
    WindowRule,
    WorkloadSpec,
)
from tuner.trial import Trial, TrialState

finite = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(min_value=0, max_value=10**12)
words = st.text(max_size=8)
names = st.lists(words, max_size=2).map(tuple)
knob_values = st.one_of(st.integers(), finite, words)
instants = st.datetimes(
    timezones=st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
).filter(lambda moment: 1 < moment.year < 9999)  # in UTC, too, its year is one to four digits

estimates = st.builds(Estimate, finite, st.none() | finite, st.none() | finite)
distributions = st.builds(
    Distribution,
    count=counts,
    mean=st.none() | estimates,
    p50=st.none() | estimates,
    p90=st.none() | estimates,
    p95=st.none() | estimates,
    p99=st.none() | estimates,
)
conditions = st.builds(
    Conditions,
    device_uuid=words,
    num_samples=counts,
    mean_clock_mhz=st.none() | finite,
    lowest_clock_mhz=st.none() | finite,
    highest_clock_mhz=st.none() | finite,
    mean_memory_clock_mhz=st.none() | finite,
    start_temperature_c=st.none() | finite,
    end_temperature_c=st.none() | finite,
    highest_temperature_c=st.none() | finite,
    power_limit_w=st.none() | finite,
    event_shares=st.lists(st.tuples(words, finite), max_size=2).map(tuple),
)
readings = st.builds(
    Reading,
    energy_j=st.none() | finite,
    start_s=finite,
    end_s=finite,
    scope=st.sampled_from(Scope),
    method=st.sampled_from(Method),
    detail=words,
    device_uuids=names,
    uncertainty_j=st.none() | finite,
    reasons=names,
    notes=names,
    trace=st.lists(st.builds(PowerSample, time_s=finite, power_w=finite), max_size=3).map(tuple),
    conditions=st.lists(conditions, max_size=2).map(tuple),
)
engine_infos = st.builds(EngineInfo, start_s=finite, pids=st.lists(counts, max_size=2).map(tuple))
measurements = st.builds(
    Measurement,
    window_s=finite,
    warmup_s=finite,
    mean_running=finite,
    output_tok_s=estimates,
    tok_per_j=st.none() | estimates,
    j_per_tok=st.none() | estimates,
    mean_power_w=st.none() | finite,
    ttft=distributions,
    tpot=distributions,
    itl=distributions,
    e2e=distributions,
    reading=readings,
    host=st.none() | readings,
    idle_power_w=st.none() | finite,
    driver=st.none() | words,
    engine=engine_infos,
    quality=st.none()
    | st.builds(Quality, num_tokens=counts, perplexity=finite, perplexity_ratio=finite, top1_agreement=finite),
    reasons=names,
)
points = st.lists(st.tuples(words, knob_values), max_size=4).map(lambda knobs: OperatingPoint(tuple(knobs)))
trials = st.builds(
    Trial,
    number=counts,
    attempt=counts,
    point=points,
    state=st.sampled_from(TrialState),
    reason=st.none() | words,
    detail=st.none() | words,
    measurement=st.none() | measurements,
    started_at=instants,
    finished_at=st.none() | instants,
)
fronts = st.builds(
    Front,
    latency_metric=st.sampled_from(LATENCY_METRICS),
    trials=st.lists(trials, max_size=2).map(tuple),
    hypervolume=finite,
    latency_reference_ms=st.none() | finite,
    created_at=instants,
)

positive = st.floats(min_value=1e-3, max_value=1e3)
ranges = st.tuples(st.integers(1, 500), st.integers(500, 1000))
knob_ranges = st.builds(
    KnobRange,
    name=words,
    values=st.one_of(
        st.lists(st.one_of(st.integers(), finite), min_size=1, max_size=4, unique=True),
        st.lists(words, min_size=1, max_size=4, unique=True),
    ).map(tuple),
)
requests = st.builds(
    TuneRequest,
    model=st.text(min_size=1, max_size=8).filter(str.strip),
    engine=words,
    device=words,
    allow_device_control=st.booleans(),
    workload=st.builds(
        WorkloadSpec,
        scenario=st.just("closed"),
        prompt_tokens=ranges,
        output_tokens=ranges,
        concurrency=st.none() | st.integers(1, 100_000),
        seed=st.integers(),
    ),
    sla=st.lists(
        st.builds(Limit, metric=st.sampled_from(LATENCY_METRICS), bound_ms=positive),
        max_size=3,
        unique_by=lambda limit: limit.metric,
    ).map(tuple),
    knobs=st.lists(knob_ranges, max_size=3, unique_by=lambda knob: knob.name).map(tuple),
    latency_metric=st.sampled_from(LATENCY_METRICS),
    budget=st.builds(Budget, trials=st.integers(1, 100_000), minutes=st.none() | positive),
    window=st.builds(
        WindowRule,
        warmup_s=positive,
        max_warmup_s=st.just(86_400.0),
        window_s=positive,
        max_window_s=st.just(86_400.0),
        min_requests=st.integers(0, 1_000_000),
        idle_s=st.floats(0, 3600),
    ),
    quality=st.builds(QualityGate, max_perplexity_ratio=st.floats(1.0, 10.0)),
    name=words,
    seed=st.integers(),
)
