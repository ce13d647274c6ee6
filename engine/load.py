"""Requests and how they arrive at an engine.

Knows nothing of prompts' meaning, nor of the engine that serves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.request import Request, RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoad:
    """Keep `concurrency` requests in flight: whenever one ends, the next one arrives at that instant."""

    requests: Iterator[Request]
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What one engine step did."""

    #: Monotonic time at which the step's tokens were known.
    time_s: float
    num_running: int
    num_waiting: int
    #: Output tokens of this step.
    num_tokens: int
    #: Prompt tokens computed in this step.
    num_prompt_tokens: int
    #: Requests that got their first token in this step.
    first_tokens: tuple[str, ...] = ()
    finished: tuple[RequestRecord, ...] = ()
    kv_blocks_used: int = 0


#: Sees every step while the load runs; returning False ends the load.
Observer = Callable[[Progress], bool]
