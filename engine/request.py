"""A request in, its token times out: the records every engine shares.

Knows nothing of how tokens are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.errors import RequestRefused

#: The class that yields to all others; 0 is the first.
LOWEST_PRIORITY = 9


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # end-of-sequence token or a stop string
    LENGTH = "length"  # max_tokens reached
    CANCELLED = "cancelled"  # the caller ended it; its tokens so far are kept
    ERROR = "error"  # the engine could not go on with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and how to continue it."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    #: Tokens to generate at most, >= 1.
    max_tokens: int
    #: 0 is greedy.
    temperature: float = 0.0
    top_p: float = 1.0
    #: Seeds this request's sampling, whatever else is in the batch; None takes one from the request id.
    seed: int | None = None
    #: The text ends before the earliest of these.
    stop: tuple[str, ...] = ()
    #: Go on after the end-of-sequence token (fixed output lengths in benchmarks).
    ignore_eos: bool = False
    #: Its class, 0 to LOWEST_PRIORITY, 0 going first; told apart under the policy `priority` only.
    priority: int = 0

    def __post_init__(self) -> None:
        """Refuse what no engine can serve, naming field and value."""
        if not self.prompt_token_ids:
            raise RequestRefused(f"request {self.request_id}: prompt is empty; give at least one token")
        if self.max_tokens < 1:
            raise RequestRefused(f"request {self.request_id}: max_tokens is {self.max_tokens}; give 1 or more")
        if not 0.0 <= self.temperature < float("inf"):
            raise RequestRefused(f"request {self.request_id}: temperature is {self.temperature}; give 0 or more")
        if not 0.0 < self.top_p <= 1.0:
            raise RequestRefused(f"request {self.request_id}: top_p is {self.top_p}; give 0 < top_p <= 1")
        if self.priority not in range(LOWEST_PRIORITY + 1):
            raise RequestRefused(
                f"request {self.request_id}: priority is {self.priority}; give 0 (first) to {LOWEST_PRIORITY}"
            )
        if "" in self.stop:
            raise RequestRefused(f"request {self.request_id}: stop holds an empty string; remove it")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """What one request showed. Times are seconds of the monotonic clock of the machine."""

    request_id: str
    num_prompt_tokens: int
    token_ids: tuple[int, ...]
    text: str
    #: When the request was due at the engine (its scheduled arrival), not when it was let in.
    arrival_s: float
    #: When each output token was known; same length as token_ids, which a server that does not name its tokens leaves
    #: empty. Tokens that came in one piece of a stream have one time.
    token_times_s: tuple[float, ...]
    finish_reason: FinishReason
    #: `kind: message` when finish_reason is ERROR.
    error: str | None = None
    num_preemptions: int = 0
    #: Prompt tokens that were found in a prefix cache; None where there is none, or where it does not say.
    num_cached_tokens: int | None = None
    #: When each piece of a stream that carried tokens came; None where every token came by itself.
    chunk_times_s: tuple[float, ...] | None = None
    #: When a client sent it; None where nothing lies between being due and being let in.
    sent_s: float | None = None
    #: When the answer began after thinking that was shown; None without any.
    first_answer_s: float | None = None
    #: Of the output tokens, shown or not.
    num_reasoning_tokens: int = 0
    #: Output tokens that the server counted and never showed: nobody knows when they were made.
    num_hidden_tokens: int = 0
    #: What is odd about it though it counts: `hidden_reasoning`, `no_finish_reason`, `no_usage`.
    notes: tuple[str, ...] = ()

    @property
    def ttft_s(self) -> float | None:
        """Time to first token; None when there was none."""
        return self.token_times_s[0] - self.arrival_s if self.token_times_s else None

    @property
    def tpot_s(self) -> float | None:
        """Mean gap between output tokens (last - first) / (n - 1); None below two tokens."""
        count = len(self.token_times_s)  # of hidden ones the time is not known
        return (self.token_times_s[-1] - self.token_times_s[0]) / (count - 1) if count > 1 else None

    @property
    def e2e_s(self) -> float | None:
        """From arrival to the last token; None without tokens."""
        return self.token_times_s[-1] - self.arrival_s if self.token_times_s else None
