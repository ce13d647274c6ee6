"""Requests and how they arrive at an engine.

Knows nothing of prompts' meaning, nor of the engine that serves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLoad:
    """Requests that come while the load runs, each due when it comes: whoever puts them in decides when."""

    #: None says that no more will come.
    inbox: SimpleQueue[Request | None]


Load = ClosedLoad | OpenLoad | LiveLoad


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
    #: Request and token id of every output token, for whoever hands them on at once; told of live loads only.
    token_ids: tuple[tuple[str, int], ...] = ()


#: Sees every step while the load runs; returning False ends the load.
Observer = Callable[[Progress], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What a client and the server it speaks to, or an engine of ours, say of a load beside its requests."""

    #: Requests a second that were due, and that were sent; None of loads that keep a number in flight.
    due_per_s: float | None = None
    sent_per_s: float | None = None
    #: How long after being due requests were sent, by the client's own fault.
    mean_lag_ms: float = 0.0
    max_lag_ms: float = 0.0
    #: CPU time of the client over the time it ran: 1 is a whole core.
    client_cpu_share: float = 0.0
    #: Why the client and not the server set the pace; empty where it did not.
    client_limits: tuple[str, ...] = ()
    #: Prompt tokens that the server had in a prefix cache, of those it looked for; None where it does not say.
    prefix_hit_share: float | None = None
    #: Sequences that the server threw out of its cache and computed again; None where it does not say.
    num_preemptions: int | None = None
    #: Whether the server's counters went down meanwhile.
    has_restarted: bool = False
