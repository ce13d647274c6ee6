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
class TimedRequest:
    """A request and when it is due."""

    #: Seconds from the load's start, 0 or more.
    offset_s: float
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoad:
    """Requests that arrive at their own times, by rising offset, however far behind the engine is."""

    requests: Iterator[TimedRequest]


Load = ClosedLoad | OpenLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What one engine step did."""

    #: Monotonic time at which the step's tokens were known.
    time_s: float
    num_running: int
    num_waiting: int
    #: Output tokens of these steps.
    num_tokens: int
    #: Prompt tokens computed in this step.
    num_prompt_tokens: int
    #: Requests that got their first token in this step.
    first_tokens: tuple[str, ...] = ()
    finished: tuple[RequestRecord, ...] = ()
    kv_blocks_used: int = 0
    #: Steps that this tells of, all alike but for their time; `time_s` is the last one's.
    num_steps: int = 1


#: Sees every step while the load runs; returning False ends the load.
Observer = Callable[[Progress], bool]
