"""MLPerf Inference v6.1 for language models: scenarios, their limits, and LoadGen's statistics. Pure.

The limits are those of LoadGen's configuration (`loadgen/mlperf.conf` in github.com/mlcommons/inference) and of the
rules (`inference_rules.adoc` in github.com/mlcommons/inference_policies), round v6.1. This is the one place that knows
them. What a preset does not know is the data set: lengths of prompts and outputs are the job's own, so that no figure
under a preset is an MLPerf result.

LoadGen's tail rule ("early stopping" in the rules): after t queries over the bound, the smallest h with
I(p; h, t + 1) <= 1 - c is how many within it are needed to say with confidence c that a share p is within. It is a
test with one look, taken when the run is over; `tuner.sequential` has the one for many looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from engine.request import FinishReason, RequestRecord
from tuner.errors import InvalidRequest
from tuner.request import Limit
from tuner.sequential import chance_of_at_least, is_testable

ROUND = "MLPerf Inference v6.1"
PREFIX = "mlperf"
#: Confidence of the tail rule, and the share of queries that a percentile means.
CONFIDENCE = 0.99
SHARES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
#: Of a run that may be submitted: it lasts so long, whatever the scenario.
MIN_DURATION_S = 600.0
#: Samples of Offline's one query where the data set is not smaller.
MIN_OFFLINE_SAMPLES = 24_576
#: Queries from which a p99 can be told with the tail rule though one was over (LoadGen's own for MultiStream).
USUAL_QUERIES = 662
#: Stands before every figure of a run that is shorter than the rules ask.
NOT_VALID = "not valid for submission"

#: p99 of TTFT and TPOT in milliseconds; where the rules differ from LoadGen's configuration (gpt-oss-120b interactive:
#: 20 ms in the rules' table), the stricter of the two, which LoadGen applies.
_SERVER_MS = {
    "llama2-70b": (2000, 200),
    "llama3.1-8b": (2000, 100),
    "llama3.1-405b": (6000, 175),
    "mixtral-8x7b": (2000, 200),
    "deepseek-r1": (2000, 80),
    "gpt-oss-120b": (3000, 80),
}
_INTERACTIVE_MS = {
    "llama2-70b": (450, 40),
    "llama3.1-8b": (500, 30),
    "llama3.1-405b": (4500, 80),
    "deepseek-r1": (1500, 15),
    "gpt-oss-120b": (2000, 15),
}
#: A vision model is held to its end-to-end latency: p99 in milliseconds under server and interactive.
_END_TO_END_MS = {"qwen3-vl-235b-a22b": (12_000, 1_500)}
#: Samples of Offline's query where the data set has fewer than MIN_OFFLINE_SAMPLES.
_DATA_SET_SAMPLES = {"llama3.1-8b": 13_368, "llama3.1-405b": 8_313, "mixtral-8x7b": 15_000, "deepseek-r1": 4_388}
#: Models of the edge category, which have SingleStream.
_EDGE = ("llama3.1-8b",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One scenario of one model."""

    #: offline, server, interactive or singlestream.
    scenario: str
    #: As MLPerf calls it; what is served may be another.
    model: str
    limits: tuple[Limit, ...] = ()

    @property
    def name(self) -> str:
        """How it is asked for: `mlperf:server:llama3.1-8b`."""
        return f"{PREFIX}:{self.scenario}:{self.model}"

    @property
    def workload(self) -> dict[str, Any]:
        """How requests come, in a workload's fields."""
        if self.scenario == "singlestream":
            return {"scenario": "closed", "concurrency": 1}
        return {"scenario": self.scenario}

    @property
    def latency_metric(self) -> str:
        """The latency that is told beside throughput: the tightest limit's, or SingleStream's figure."""
        if self.scenario == "singlestream":
            return "e2e_p90_ms"
        return self.limits[-1].metric if self.limits else "tpot_p99_ms"

    @property
    def min_samples(self) -> int:
        """Samples that a run needs at least to be submitted; the tail rule may ask for more."""
        if self.scenario == "offline":
            return _DATA_SET_SAMPLES.get(self.model, MIN_OFFLINE_SAMPLES)
        return min_queries(1, 0.90) if self.scenario == "singlestream" else min_queries(0, 0.99)


class TailState(StrEnum):
    """What LoadGen's rule says of one limit."""

    HELD = "held"
    #: The percentile itself is over the bound.
    MISSED = "missed"
    #: The percentile is within it, but so few queries do not show that.
    TOO_FEW = "too_few"


@dataclass(frozen=True, slots=True, kw_only=True)
class TailVerdict:
    """LoadGen's rule on one limit, at the end of a run."""

    limit: Limit
    state: TailState
    num_queries: int
    num_over: int
    #: Queries that this number over the bound asks for, those included.
    num_needed: int
    #: The percentile as LoadGen takes it; None without queries.
    value_ms: float | None

    @property
    def words(self) -> str:
        """Say it in one sentence."""
        metric = self.limit.metric
        if self.state is TailState.TOO_FEW:
            return f"{metric}: not enough queries: {self.num_queries} of {self.num_needed}"
        over = f"{self.num_over} of {self.num_queries} queries over {self.limit.bound_ms:g} ms"
        return f"{metric} {self.state}: {over}"


def preset_of(name: str) -> Preset:
    """Return the preset of a name; raise InvalidRequest that lists what there is."""
    for preset in presets():
        if preset.name == name:
            return preset
    raise InvalidRequest("scenario", name, f"choose one of {', '.join(preset.name for preset in presets())}")


@lru_cache(maxsize=1)
def presets() -> tuple[Preset, ...]:
    """Return every scenario of every model, by scenario."""
    models = (*_SERVER_MS, *_END_TO_END_MS)
    return (
        *(_latency_preset("server", model) for model in models),
        *(_latency_preset("interactive", model) for model in (*_INTERACTIVE_MS, *_END_TO_END_MS)),
        *(Preset(scenario="offline", model=model) for model in models),
        *(Preset(scenario="singlestream", model=model) for model in _EDGE),
    )


def filled(preset: Preset, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's fields, nested as in a job file, with what the preset says of those that are not given.

    The job is named after the preset unless it has a name. Windows go on until the tail rule can be met, up to the
    rules' ten minutes, unless the job says how long. Raises InvalidRequest for a field that contradicts the preset.
    """
    job = dict(fields)
    job["workload"] = _joined(preset, "workload", preset.workload, job.get("workload") or {})
    limits = {limit.metric: limit.bound_ms for limit in preset.limits}
    job["sla"] = _joined(preset, "sla", limits, job.get("sla") or {})
    metrics = [*limits] or [preset.latency_metric]
    metric = job.setdefault("latency_metric", preset.latency_metric)
    if metric not in metrics and preset.scenario != "offline":
        raise _contradiction(preset, "latency_metric", metric, " or ".join(metrics))
    window = dict(job.get("window") or {})
    if limits:
        window.setdefault("min_requests", USUAL_QUERIES)
        window.setdefault("max_window_s", max(MIN_DURATION_S, float(window.get("window_s", 0.0))))
    job["window"] = window
    job["name"] = job.get("name") or preset.name
    job["preset"] = preset.name
    return job


def _joined(preset: Preset, block: str, set_by_preset: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block of fields with the preset's; raise InvalidRequest where it is given another value."""
    for name, value in set_by_preset.items():
        if given.get(name, value) != value:
            raise _contradiction(preset, f"{block}.{name}", given[name], value)
    return {**given, **set_by_preset}


def _contradiction(preset: Preset, field: str, given: Any, wanted: Any) -> InvalidRequest:
    shown = f"{wanted:g}" if isinstance(wanted, float) else wanted
    return InvalidRequest(field, given, f"{preset.name} sets {shown}; leave it out, or leave out the scenario preset")


def _latency_preset(scenario: str, model: str) -> Preset:
    if model in _END_TO_END_MS:
        bounds_ms = {"e2e_p99_ms": _END_TO_END_MS[model][scenario == "interactive"]}
    else:
        ttft_ms, tpot_ms = (_SERVER_MS if scenario == "server" else _INTERACTIVE_MS)[model]
        bounds_ms = {"ttft_p99_ms": ttft_ms, "tpot_p99_ms": tpot_ms}
    limits = tuple(Limit(metric=metric, bound_ms=float(bound_ms)) for metric, bound_ms in bounds_ms.items())
    return Preset(scenario=scenario, model=model, limits=limits)


@lru_cache(maxsize=4096)
def min_queries(num_over: int, share: float, confidence: float = CONFIDENCE) -> int:
    """Return the queries needed, those over the bound included, to say that `share` of all are within it.

    h + t with the smallest h for which I(share; h, t + 1), the chance of t or fewer over the bound among h + t, is no
    more than 1 - confidence: 459 and 662 for the p99 with none and one over, 64 for the p90 with one.
    """
    low, high = 1, 2
    while not _is_unlikely(high, num_over, share, confidence):
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        if _is_unlikely(middle, num_over, share, confidence):
            high = middle
        else:
            low = middle + 1
    return low + num_over


def _is_unlikely(num_within: int, num_over: int, share: float, confidence: float) -> bool:
    # No more than t over the bound are no fewer than h within it.
    return chance_of_at_least(num_within, num_within + num_over, share) <= 1 - confidence


def loadgen_percentile(ordered: Sequence[float], share: float) -> float:
    """Return the percentile as LoadGen takes it: the sample of number floor(n x share), from 0, never in between.

    Ours (`tuner.measurement`) interpolate between (n - 1) x share's neighbours, so that they are no higher and lie at
    most one sample lower. Raises ValueError without samples.
    """
    if not ordered:
        raise ValueError("a percentile of no samples")
    return ordered[int(len(ordered) * share)]


def tail_verdict(limit: Limit, samples_ms: Sequence[float]) -> TailVerdict:
    """Apply LoadGen's rule once, to all latencies of a run. Raises ValueError for a limit that is no percentile."""
    if not is_testable(limit.metric):
        raise ValueError(f"{limit.metric} is no percentile of something that each request gives one of")
    share = SHARES[limit.metric.rsplit("_", 2)[1]]
    num_over = sum(value > limit.bound_ms for value in samples_ms)
    num_needed = min_queries(num_over, share)
    value_ms = loadgen_percentile(sorted(samples_ms), share) if samples_ms else None
    if value_ms is not None and value_ms > limit.bound_ms:
        state = TailState.MISSED
    else:
        state = TailState.HELD if len(samples_ms) >= num_needed else TailState.TOO_FEW
    return TailVerdict(
        limit=limit,
        state=state,
        num_queries=len(samples_ms),
        num_over=num_over,
        num_needed=num_needed,
        value_ms=value_ms,
    )


def samples_ms(records: Sequence[RequestRecord], metric: str, start_s: float, end_s: float) -> list[float]:
    """Return a latency of the requests that ended in [start_s, end_s), in milliseconds.

    As in a summary of a window, but that a TTFT counts with its request's end: LoadGen knows no query that has not
    ended. A request that failed gives none.
    """
    latency = metric.partition("_")[0]
    ended = (
        record
        for record in records
        if record.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        and record.token_times_s
        and start_s <= record.token_times_s[-1] < end_s
    )
    return [1e3 * value_s for record in ended if (value_s := getattr(record, f"{latency}_s")) is not None]


def worst_tail(
    limits: Sequence[Limit], records: Sequence[RequestRecord], start_s: float, end_s: float
) -> TailVerdict | None:
    """Return the first limit that a window misses by LoadGen's rule, else the first with too few queries, else None.

    To be asked once, when the window is over. Limits that are no percentiles are left to their own test.
    """
    verdicts = [
        tail_verdict(limit, samples_ms(records, limit.metric, start_s, end_s))
        for limit in limits
        if is_testable(limit.metric)
    ]
    for state in (TailState.MISSED, TailState.TOO_FEW):
        for verdict in verdicts:
            if verdict.state is state:
                return verdict
    return None
