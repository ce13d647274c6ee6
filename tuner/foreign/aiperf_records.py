"""AIPerf's `profile_export.jsonl`: one record a request, those that failed or were cancelled included.

Only records of the phase `profiling` count. A record without its metrics failed. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from tuner.foreign.aiperf import to_ms
from tuner.foreign.fields import Fields
from tuner.foreign.result import ForeignResult, Tool
from tuner.foreign.samples import latency_of

_PHASE = "profiling"
#: Nanoseconds since 1970 at the end of 2199.
_LATEST_NS = 7_258_118_400 * 10**9


def is_record(document: Mapping[str, Any]) -> bool:
    """Whether an object is the record of one request."""
    return isinstance(document.get("metadata"), dict) and isinstance(document.get("metrics"), dict)


def read(records: Iterable[Fields]) -> ForeignResult | None:
    """Return all records as one run, or None where none is of the profiling phase. Raises BadResultFile."""
    run = _Run()
    for record in records:
        run.add(record)
    return run.result()


class _Run:
    """The records so far, as numbers."""

    def __init__(self) -> None:
        self._sha256 = ""
        self._num_completed = self._num_failed = self._num_cancelled = 0
        self._begin_ns, self._end_ns = _LATEST_NS, 0
        self._prompt_tokens = self._output_tokens = 0
        self._samples_ms: dict[str, list[float]] = {"ttft": [], "tpot": [], "chunk": [], "e2e": []}

    def add(self, record: Fields) -> None:
        """Take in one record; warm-up is left out."""
        metadata, metrics = record.inner("metadata"), record.inner("metrics")
        if metadata is None or metrics is None:
            raise record.fault("metrics", None, "give a record with metadata and metrics, or leave the line out")
        if metadata.word("benchmark_phase") not in (_PHASE, None):
            return
        self._sha256 = record.source.sha256
        begin_ns = metadata.count("request_start_ns", _LATEST_NS)
        end_ns = metadata.count("request_end_ns", _LATEST_NS)
        if begin_ns and end_ns:
            self._begin_ns, self._end_ns = min(self._begin_ns, begin_ns), max(self._end_ns, end_ns)
        if metadata.values.get("was_cancelled") is True:
            self._num_cancelled += 1
        elif record.values.get("error") is not None:
            self._num_failed += 1
        else:
            self._num_completed += 1
            self._add_answer(metrics)

    def result(self) -> ForeignResult | None:
        """Return what the records say together."""
        if not self._num_completed + self._num_failed + self._num_cancelled:
            return None
        duration_s = max(0, self._end_ns - self._begin_ns) / 1e9
        rate = self._output_tokens / duration_s if duration_s and self._output_tokens else None
        has_time = self._end_ns > 0
        return ForeignResult(
            tool=Tool.AIPERF,
            measured_at=datetime.fromtimestamp(self._begin_ns / 1e9, UTC) if has_time else None,
            duration_s=duration_s or None,
            num_completed=self._num_completed,
            num_failed=self._num_failed,
            prompt_tokens=self._prompt_tokens or None,
            output_tokens=self._output_tokens or None,
            output_tok_s=rate,
            ttft_ms=latency_of(self._samples_ms["ttft"]),
            tpot_ms=latency_of(self._samples_ms["tpot"]),
            inter_chunk_ms=latency_of(self._samples_ms["chunk"]),
            e2e_ms=latency_of(self._samples_ms["e2e"]),
            notes=tuple(self._notes()),
            sha256=self._sha256,
        )

    def _add_answer(self, metrics: Fields) -> None:
        self._prompt_tokens += _tokens(metrics, "input_sequence_length")
        self._output_tokens += _tokens(metrics, "output_sequence_length")
        self._samples_ms["ttft"] += _times_ms(metrics, "time_to_first_token")
        self._samples_ms["tpot"] += _times_ms(metrics, "inter_token_latency")
        self._samples_ms["chunk"] += _times_ms(metrics, "inter_chunk_latency")
        self._samples_ms["e2e"] += _times_ms(metrics, "request_latency")

    def _notes(self) -> Iterable[str]:
        yield "summed up here from AIPerf's record of each request"
        if not self._num_completed:
            yield "no request was completed"
        if self._num_cancelled:
            yield f"{self._num_cancelled} cancelled and in no figure"


def _tokens(metrics: Fields, name: str) -> int:
    block = metrics.inner(name)
    return 0 if block is None else block.count("value") or 0


def _times_ms(metrics: Fields, name: str) -> list[float]:
    """Return one time or a list of times of a request, in milliseconds."""
    block = metrics.inner(name)
    if block is None:
        return []
    is_list = isinstance(block.values.get("value"), list)
    found = block.numbers("value") or [] if is_list else [block.number("value")]
    factor = to_ms(block)
    return [value * factor for value in found if value]
