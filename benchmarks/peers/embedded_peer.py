"""The embedded engine, in this process as in the one that `engine.host` starts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any


class Peer:
    """An engine in one precision."""

    def load(self, *, model: str, precision: str, max_batch: int, max_context: int, prefill_chunk: int) -> str:
        """Open the engine; return what it is, in words."""
        from engine.embedded.loop import EmbeddedEngine
        from engine.settings import EngineSettings

        settings = EngineSettings(
            model=Path(model).name, precision=precision, max_batch=max_batch, max_context=max_context,
            prefill_chunk=prefill_chunk,
        )  # fmt: skip
        self._opened = EmbeddedEngine(settings, Path(model))
        info = self._opened.info
        return f"embedded engine {info.version}, {precision}, {info.isa}, opened in {info.start_s:.1f} s"

    def run(self, *, prompts: list[list[int]], num_tokens: int) -> dict[str, Any]:
        """Serve the prompts at once."""
        from engine.load import ClosedLoad
        from engine.request import Request

        requests = [
            Request(request_id=str(i), prompt_token_ids=tuple(prompt), max_tokens=num_tokens, ignore_eos=True)
            for i, prompt in enumerate(prompts)
        ]
        begun_s, monotonic_s = time.perf_counter(), time.monotonic()
        load = ClosedLoad(requests=iter(requests), concurrency=len(requests))
        found = {record.request_id: record for record in self._opened.run(load, lambda progress: True)}
        total_s = time.perf_counter() - begun_s
        records = [found[request.request_id] for request in requests]
        return {
            "total_s": total_s,
            "ttft_s": [record.token_times_s[0] - monotonic_s for record in records],
            "tpot_s": [
                (record.token_times_s[-1] - record.token_times_s[0]) / max(1, num_tokens - 1) for record in records
            ],
            "token_ids": [list(record.token_ids) for record in records],
        }

    def mean_logprob(self, *, pieces: list[list[int]]) -> float:
        """Return the mean log-probability of the pieces' tokens, the first of each left out."""
        logprobs = [value for piece in pieces for value in self._opened.score(tuple(piece)).logprobs]
        return sum(logprobs) / len(logprobs)
