"""The real MLPerf LoadGen (`mlcommons-loadgen`, the extra `mlperf`) drives an opened engine.

LoadGen runs in a thread, says when a query is due, and hands it over; it becomes a request of a live load, which the
engine serves in the caller's thread. Every first token and every end is told to LoadGen at once. LoadGen keeps its own
clock and its own figures; ours are the engine's records, held against LoadGen's schedule, so that both count from the
moment at which a query was due. What is left between them is the time from a token to LoadGen's hearing of it, and
that clocks of both are matched by the query that was handed over fastest.

A simulated engine cannot be driven: LoadGen waits for real time to pass, and a simulation has a clock of its own.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType

from api.errors import UsageError
from api.loadgen_logs import Summary, read_schedule, read_summary
from engine.load import LiveLoad, Progress
from engine.request import FinishReason, Request, RequestRecord
from engine.serving import ServingEngine
from tuner.mlperf import MIN_DURATION_S, Preset, loadgen_percentile

PACKAGE = "mlcommons-loadgen"
LATENCIES = ("ttft", "tpot", "e2e")
#: Percentiles that both tell.
PERCENTS = (50, 90, 95, 99)

_SCENARIOS = {"offline": "Offline", "server": "Server", "interactive": "Server", "singlestream": "SingleStream"}
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGenSettings:
    """What LoadGen is told beside the preset."""

    preset: Preset
    #: Queries (samples under Offline) at least; LoadGen goes on until `min_duration_s` are over, too.
    num_queries: int
    min_duration_s: float
    #: Arrivals a second under server and interactive; under offline and singlestream what LoadGen expects.
    target_qps: float
    seed: int = 0

    @property
    def why_not_valid(self) -> tuple[str, ...]:
        """Why a run with these settings could not be submitted, whatever it shows."""
        short = []
        if self.min_duration_s < MIN_DURATION_S:
            short.append(f"min duration {self.min_duration_s:g} s of {MIN_DURATION_S:g} s")
        if self.num_queries < self.preset.min_samples:
            short.append(f"{self.num_queries} queries of {self.preset.min_samples}")
        # A preset names the limits; the data set and its accuracy run are MLPerf's alone.
        return (*short, "synthetic prompts, no accuracy run")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGenRun:
    """A run by both accounts."""

    settings: LoadGenSettings
    summary: Summary
    #: The engine's, with `arrival_s` as LoadGen scheduled it.
    records: tuple[RequestRecord, ...]
    #: Queries that the engine failed; LoadGen was told that they ended.
    num_failed: int
    #: By how much hand-overs to the engine came after queries were due: the mean and the longest.
    mean_lag_ms: float
    max_lag_ms: float
    #: The longest time from a token to LoadGen's having been told of it: by so much its latencies may be longer.
    max_tell_ms: float

    def percentile_ms(self, latency: str, percent: int) -> float | None:
        """Return our percentile by LoadGen's definition; None without samples."""
        ordered = sorted(self.samples_ms(latency))
        return loadgen_percentile(ordered, percent / 100) if ordered else None

    def samples_ms(self, latency: str) -> list[float]:
        """Return ttft, tpot or e2e of every query that was served."""
        values = (getattr(record, f"{latency}_s") for record in self.records)
        return [1e3 * value_s for value_s in values if value_s is not None]


def load_package() -> ModuleType:
    """Import LoadGen; raise UsageError where the extra is not installed."""
    try:
        import mlperf_loadgen
    except ImportError as error:
        raise UsageError(f"{PACKAGE} is not installed; pip install 'wattfront[mlperf]' brings it") from error
    module: ModuleType = mlperf_loadgen
    return module


def drive(serving: ServingEngine, samples: Sequence[Request], settings: LoadGenSettings, out: Path) -> LoadGenRun:
    """Let LoadGen drive an engine with these samples, and return both accounts; its files are left in `out`.

    Raises UsageError for samples that have no second token to time, and whatever ends the engine; LoadGen is then told
    that all of its queries ended, so that it does not wait for ever.
    """
    loadgen = load_package()
    if any(sample.max_tokens < 2 for sample in samples):
        raise UsageError("outputs have 1 token: a time per output token needs 2; raise workload.output_tokens")
    out.mkdir(parents=True, exist_ok=True)
    under_test = _UnderTest(loadgen, samples)
    thread = threading.Thread(
        target=_start_test, args=(loadgen, under_test, len(samples), settings, out), name="loadgen", daemon=True
    )
    thread.start()
    try:
        records = serving.run(LiveLoad(inbox=under_test.inbox), under_test.observe)
    finally:
        under_test.give_up()
        thread.join()
    return _both(under_test, records, settings, out)


def _start_test(
    loadgen: ModuleType, under_test: _UnderTest, num_samples: int, settings: LoadGenSettings, out: Path
) -> None:
    """Run LoadGen's test from begin to end, then say that no more will come."""
    sut = loadgen.ConstructSUT(under_test.issue, lambda: None)
    qsl = loadgen.ConstructQSL(num_samples, num_samples, lambda indices: None, lambda indices: None)
    try:
        # Without an audit file of that name nothing is changed; the one in the working folder is not asked for.
        audit = str(out / "audit.config")
        loadgen.StartTestWithLogSettings(
            sut, qsl, _test_settings(loadgen, settings), _log_settings(loadgen, out), audit
        )
    finally:
        loadgen.DestroyQSL(qsl)
        loadgen.DestroySUT(sut)
        under_test.inbox.put(None)


def _test_settings(loadgen: ModuleType, settings: LoadGenSettings) -> object:
    preset = settings.preset
    told = loadgen.TestSettings()
    told.scenario = getattr(loadgen.TestScenario, _SCENARIOS[preset.scenario])
    told.mode = loadgen.TestMode.PerformanceOnly
    told.min_query_count = settings.num_queries
    told.min_duration_ms = round(settings.min_duration_s * 1e3)
    told.server_target_qps = told.offline_expected_qps = settings.target_qps
    told.single_stream_expected_latency_ns = round(_NS / settings.target_qps)
    told.use_token_latencies = True
    bounds_ms = {limit.metric.partition("_")[0]: limit.bound_ms for limit in preset.limits}
    told.server_target_latency_ns = round(bounds_ms.get("e2e", 0.0) * 1e6)
    told.ttft_latency = round(bounds_ms.get("ttft", 0.0) * 1e6)
    told.tpot_latency = round(bounds_ms.get("tpot", 0.0) * 1e6)
    if "e2e" in bounds_ms:  # a model that is held to its end-to-end latency
        told.use_token_latencies = False
    told.qsl_rng_seed = told.sample_index_rng_seed = told.schedule_rng_seed = settings.seed
    return told


def _log_settings(loadgen: ModuleType, out: Path) -> object:
    told = loadgen.LogSettings()
    output = loadgen.LogOutputSettings()
    output.outdir, output.prefix = str(out), "mlperf_log_"
    told.log_output = output
    told.enable_trace = True  # it alone says when each query was due
    return told


@dataclass(slots=True)
class _Query:
    """A query that was handed over."""

    sample_id: int
    received_s: float
    has_first: bool = False


@dataclass(slots=True)
class _UnderTest:
    """What LoadGen takes for the system under test: hands queries to the engine, and tells what came of them."""

    loadgen: ModuleType
    samples: Sequence[Request]
    inbox: SimpleQueue[Request | None] = field(default_factory=SimpleQueue)
    #: In the order of issue, by request id.
    queries: dict[str, _Query] = field(default_factory=dict)
    max_tell_s: float = 0.0
    _open: set[str] = field(default_factory=set)
    _is_over: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def issue(self, query_samples: Sequence[object]) -> None:
        """Take queries of LoadGen, in its thread."""
        for query in query_samples:
            request_id = str(len(self.queries))
            with self._lock:
                self.queries[request_id] = _Query(query.id, time.monotonic())  # type: ignore[attr-defined] # C++
                self._open.add(request_id)
                is_over = self._is_over
            sample = self.samples[query.index]  # type: ignore[attr-defined] # C++
            self.inbox.put(dataclasses.replace(sample, request_id=request_id))
            if is_over:
                self._complete(request_id, 0)

    def observe(self, progress: Progress) -> bool:
        """Tell LoadGen of first tokens and ends, in the engine's thread."""
        for request_id in progress.first_tokens:
            self._first(request_id)
        for record in progress.finished:
            self._complete(record.request_id, len(record.token_times_s))
        if progress.first_tokens or progress.finished:
            self.max_tell_s = max(self.max_tell_s, time.monotonic() - progress.time_s)
        return True

    def give_up(self) -> None:
        """Tell LoadGen that whatever is still open has ended: no engine will end it."""
        with self._lock:
            self._is_over = True
            left = list(self._open)
        for request_id in left:
            self._complete(request_id, 0)

    def _first(self, request_id: str) -> None:
        query = self.queries[request_id]
        query.has_first = True
        self.loadgen.FirstTokenComplete([self.loadgen.QuerySampleResponse(query.sample_id, 0, 0)])

    def _complete(self, request_id: str, num_tokens: int) -> None:
        with self._lock:
            if request_id not in self._open:
                return
            self._open.remove(request_id)
        query = self.queries[request_id]
        if not query.has_first:
            self._first(request_id)
        # LoadGen divides by the tokens less one.
        response = self.loadgen.QuerySampleResponse(query.sample_id, 0, 0, max(2, num_tokens))
        self.loadgen.QuerySamplesComplete([response])


def _both(under_test: _UnderTest, records: Sequence[RequestRecord], settings: LoadGenSettings, out: Path) -> LoadGenRun:
    """Put LoadGen's schedule into our records."""
    due_s = read_schedule(out)
    received_s = [query.received_s for query in under_test.queries.values()]
    offset_s = min(received - due for received, due in zip(received_s, due_s, strict=True))
    lags_ms = [1e3 * (received - due - offset_s) for received, due in zip(received_s, due_s, strict=True)]
    served = [record for record in records if record.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)]
    return LoadGenRun(
        settings=settings,
        summary=read_summary(out),
        records=tuple(
            dataclasses.replace(record, arrival_s=due_s[int(record.request_id)] + offset_s) for record in served
        ),
        num_failed=len(under_test.queries) - len(served),
        mean_lag_ms=sum(lags_ms) / len(lags_ms),
        max_lag_ms=max(lags_ms),
        max_tell_ms=1e3 * under_test.max_tell_s,
    )
