"""One caller's prompts in the engine, and the pieces of their answers in the order in which they come.

Whoever leaves before the end has cancelled what is left. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from api.model_server.api_errors import ApiError, EngineFailed
from api.model_server.engine_thread import EngineThread
from api.model_server.metrics import ModelMetrics
from api.model_server.output_text import OutputText
from engine.request import FinishReason, Request, RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one step brought of one answer; with a finish reason nothing follows it."""

    index: int
    text: str
    #: Output tokens so far.
    num_tokens: int
    #: `stop` or `length`; None while it goes on.
    finish_reason: str | None = None
    #: Prompt tokens found in a prefix cache, told with the finish reason; None without such a cache.
    num_cached_tokens: int | None = None


class Answers:
    """The answers to one HTTP request."""

    def __init__(
        self, thread: EngineThread, metrics: ModelMetrics, requests: Sequence[Request], texts: Sequence[OutputText]
    ) -> None:
        """Hand the requests to the engine. Raises Overloaded, EngineFailed."""
        self._thread = thread
        self._requests = requests
        self._metrics = metrics
        self._queue: asyncio.Queue[Piece | ApiError] = asyncio.Queue()
        self._cached: list[int | None] = []
        waiters = [
            _Answer(index, self._queue, text, metrics, num_prompt=len(request.prompt_token_ids))
            for index, (request, text) in enumerate(zip(requests, texts, strict=True))
        ]
        thread.submit(requests, waiters)
        metrics.prompt_tokens.inc(self.num_prompt_tokens)

    @property
    def num_prompt_tokens(self) -> int:
        """Of all prompts together."""
        return sum(len(request.prompt_token_ids) for request in self._requests)

    @property
    def num_cached_tokens(self) -> int | None:
        """Prompt tokens found in a prefix cache; None without one, and before all answers are complete."""
        found = [count for count in self._cached if count is not None]
        return sum(found) if len(found) == len(self._requests) else None

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield the pieces of all answers. Raises ApiError when one of them fails."""
        num_running = len(self._requests)
        while num_running:
            piece = await self._queue.get()
            if isinstance(piece, ApiError):
                raise piece
            if piece.finish_reason is not None:
                num_running -= 1
                self._cached.append(piece.num_cached_tokens)
            yield piece

    def close(self) -> None:
        """End whatever of it is still running. Idempotent."""
        for request in self._requests:
            if self._thread.cancel(request.request_id):
                self._metrics.cancelled()


class _Answer:
    """One answer; implements `Waiter`."""

    def __init__(
        self,
        index: int,
        queue: asyncio.Queue[Piece | ApiError],
        text: OutputText,
        metrics: ModelMetrics,
        *,
        num_prompt: int,
    ) -> None:
        self._index = index
        self._queue = queue
        self._text = text
        self._metrics = metrics
        self._num_prompt = num_prompt
        self._begun_s = self._last_s = time.monotonic()
        self._first_s: float | None = None
        #: Of the last token, which is shown with the reason to end: clients time every chunk.
        self._last_text = ""

    def take(self, token_ids: Sequence[int], time_s: float, *, is_last: bool) -> None:
        if self._first_s is None:
            self._first_s = time_s
            self._metrics.ttft_s.observe(time_s - self._begun_s)
        else:
            self._metrics.itl_s.observe(time_s - self._last_s)
        self._last_s = time_s
        self._metrics.generation_tokens.inc(len(token_ids))
        text = "".join([self._text.feed(token_id) for token_id in token_ids])
        if is_last:
            self._last_text = text
        else:
            self._queue.put_nowait(Piece(index=self._index, text=text, num_tokens=self._text.num_tokens))

    def end(self, record: RequestRecord, time_s: float) -> None:
        self._metrics.ended(record, self._begun_s, self._first_s, time_s)
        if record.finish_reason is FinishReason.ERROR:
            self._queue.put_nowait(_failure(record.error or "unknown"))
            return
        if record.finish_reason is FinishReason.CANCELLED:  # not by the caller: that one has left
            self._queue.put_nowait(EngineFailed("the server has ended before the answer did", code="stopped"))
            return
        self._queue.put_nowait(
            Piece(
                index=self._index,
                text=self._last_text + self._text.end(),
                num_tokens=self._text.num_tokens,
                finish_reason=record.finish_reason.value,
                num_cached_tokens=record.num_cached_tokens,
            )
        )

    def fail(self, words: str) -> None:
        self._queue.put_nowait(EngineFailed(words, code="engine_died"))


def _failure(error: str) -> ApiError:
    """Return what the caller is told of a request that failed: those that were refused are the caller's to correct."""
    kind, _, words = error.partition(": ")
    if kind.startswith("request_"):
        return ApiError(words, code=kind)
    return EngineFailed(error, code=kind)
