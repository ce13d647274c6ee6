"""A request in the simulated engine. Its tokens are only counted, and while it decodes not even that.

Every decoding sequence gains one token a step, so how many it has follows from how many steps were taken since it
began. That makes a step of a thousand sequences as cheap as one of ten.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from engine.request import FinishReason, Request, RequestRecord


@dataclass(slots=True, eq=False)
class StepLog:
    """When each decode step of one group of GPUs ended, in seconds."""

    ends_s: list[float] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class SimulatedSequence:
    """One request, how far it is, and when its tokens came."""

    request: Request
    arrival_s: float
    num_prefilled: int = 0
    block_table: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None
    #: Of the tokens sampled before the steps below.
    past_times_s: list[float] = field(default_factory=list)
    #: The steps it takes part in while it decodes, and how many there were when it began to.
    log: StepLog | None = None
    first_step: int = 0

    @property
    def num_output_tokens(self) -> int:
        """Tokens sampled so far."""
        return len(self.past_times_s) + (len(self.log.ends_s) - self.first_step if self.log else 0)

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and what was sampled so far."""
        return len(self.request.prompt_token_ids) + self.num_output_tokens

    def begin_decoding(self, log: StepLog) -> None:
        """Take part in every step of the log from the next one on."""
        self.log, self.first_step = log, len(log.ends_s)

    def end_decoding(self) -> None:
        """Take part no longer; the tokens so far are kept."""
        if self.log:
            self.past_times_s.extend(self.log.ends_s[self.first_step :])
            self.log = None

    def record(self) -> RequestRecord:
        """Freeze what the request showed; one still running counts as cancelled. Every token has the id 0."""
        self.end_decoding()
        times_s = tuple(self.past_times_s)
        return RequestRecord(
            request_id=self.request.request_id,
            num_prompt_tokens=len(self.request.prompt_token_ids),
            token_ids=_no_tokens(len(times_s)),
            text="",
            arrival_s=self.arrival_s,
            token_times_s=times_s,
            finish_reason=self.finish_reason or FinishReason.CANCELLED,
            error=self.error,
            num_preemptions=self.num_preemptions,
        )


@lru_cache(maxsize=4096)
def _no_tokens(count: int) -> tuple[int, ...]:
    """Return so many tokens that are nobody's; made once, since thousands of records of a length may be kept."""
    return (0,) * count
