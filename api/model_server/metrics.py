"""What the endpoint tells Prometheus, under vLLM's names where vLLM has them.

Times are as seen in the server's process. Knows nothing of routes.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from engine.load import Progress
from engine.request import FinishReason, RequestRecord
from engine.settings import EngineInfo

#: Upper ends of the histograms' buckets, those of vLLM.
_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
           160.0, 640.0, 2560.0)  # fmt: skip
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_E2E_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
          1920.0, 7680.0)  # fmt: skip


class ModelMetrics:
    """The figures of one served model."""

    def __init__(self, model: str, info: EngineInfo, *, block_size: int) -> None:
        self._model = model
        self._registry = CollectorRegistry()
        self._num_kv_blocks = info.num_kv_blocks
        self._running = self._gauge("vllm:num_requests_running", "Requests that run.")
        self._waiting = self._gauge("vllm:num_requests_waiting", "Requests that wait for room in the engine.")
        self._kv_usage = self._gauge("vllm:kv_cache_usage_perc", "Share of KV-cache blocks in use; 1 is all.")
        self._preemptions = self._counter("vllm:num_preemptions", "Sequences that were put back and recomputed.")
        self._prefix_queries = self._counter(
            "vllm:prefix_cache_queries", "Prompt tokens that were looked for in the prefix cache."
        )
        self._prefix_hits = self._counter("vllm:prefix_cache_hits", "Prompt tokens that were found in it.")
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens of requests that were let in.")
        self.generation_tokens = self._counter("vllm:generation_tokens", "Output tokens.")
        self.ttft_s = self._histogram(
            "vllm:time_to_first_token_seconds", "From a request's arrival to its first token.", _TTFT_S
        )
        self.itl_s = self._histogram("vllm:inter_token_latency_seconds", "Between two tokens.", _TOKEN_S)
        self._tpot_s = self._histogram(
            "vllm:request_time_per_output_token_seconds", "Mean of one request's tokens.", _TOKEN_S
        )
        self._e2e_s = self._histogram(
            "vllm:e2e_request_latency_seconds", "From a request's arrival to its end.", _E2E_S
        )
        self._success = Counter(
            "vllm:request_success", "Requests by how they ended.", ("model_name", "finished_reason"),
            registry=self._registry,
        )  # fmt: skip
        Gauge(
            "vllm:cache_config_info", "How the KV cache is laid out.", ("block_size", "num_gpu_blocks"),
            registry=self._registry,
        ).labels(str(block_size), str(info.num_kv_blocks)).set(1)  # fmt: skip
        ProcessCollector(registry=self._registry)

    def progressed(self, progress: Progress) -> None:
        """Note a step, or that there is nothing to do."""
        self._running.set(progress.num_running)
        self._waiting.set(progress.num_waiting)
        self._kv_usage.set(progress.kv_blocks_used / self._num_kv_blocks)

    def ended(self, record: RequestRecord, begun_s: float, first_s: float | None, time_s: float) -> None:
        """Note a request's end; times of requests that failed are not among those of the others."""
        if record.num_preemptions:
            self._preemptions.inc(record.num_preemptions)
        if record.num_cached_tokens is not None:
            self._prefix_queries.inc(record.num_prompt_tokens)
            self._prefix_hits.inc(record.num_cached_tokens)
        reason = {FinishReason.CANCELLED: "abort"}.get(record.finish_reason, record.finish_reason.value)
        self._success.labels(self._model, reason).inc()
        if record.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        self._e2e_s.observe(time_s - begun_s)
        num_tokens = len(record.token_ids)
        if first_s is not None and num_tokens > 1:
            self._tpot_s.observe((time_s - first_s) / (num_tokens - 1))

    def cancelled(self) -> None:
        """Note a request whose caller has left."""
        self._success.labels(self._model, "abort").inc()

    def watch_device(self, is_in_force: Callable[[], bool]) -> None:
        """Tell at every look whether what was set on the device still holds."""
        Gauge(
            "wattfront:device_settings_in_force", "1 while the clocks and limits of the served point hold.",
            registry=self._registry,
        ).set_function(is_in_force)  # fmt: skip

    def text(self) -> bytes:
        """Return all figures in the text format of Prometheus 0.0.4."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(name, about, ("model_name",), registry=self._registry).labels(self._model)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(name, about, ("model_name",), registry=self._registry).labels(self._model)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(name, about, ("model_name",), registry=self._registry, buckets=buckets)
        return family.labels(self._model)
