"""A request in the engine: the only mutable state there is. Knows nothing of tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.request import FinishReason, Request, RequestRecord


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """Tokens of one request, how many of them are in the KV cache, and where."""

    request: Request
    arrival_s: float
    #: Prompt, then output.
    token_ids: list[int]
    #: Leading tokens computed in prefill chunks, or found; once it decodes, all tokens but the last are in the cache.
    num_prefilled: int = 0
    block_table: list[int] = field(default_factory=list)
    #: Of its leading blocks, those that others may read, and the keys of those worked out so far (a prefix cache's).
    num_shared: int = 0
    #: Prompt tokens found when it was first let in; None without a prefix cache.
    num_cached_tokens: int | None = None
    block_keys: list[bytes] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    #: Output text so far, up to a stop string.
    text: str = ""
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None

    @classmethod
    def of(cls, request: Request, arrival_s: float) -> Sequence:
        """Start a sequence with the request's prompt."""
        return cls(request=request, arrival_s=arrival_s, token_ids=list(request.prompt_token_ids))

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the request's own prompt, whatever was generated since."""
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and what was sampled so far."""
        return len(self.token_ids)

    def record(self) -> RequestRecord:
        """Freeze what the request showed; one still running counts as cancelled."""
        return RequestRecord(
            request_id=self.request.request_id,
            num_prompt_tokens=self.num_prompt_tokens,
            token_ids=tuple(self.token_ids[self.num_prompt_tokens :]),
            text=self.text,
            arrival_s=self.arrival_s,
            token_times_s=tuple(self.token_times_s),
            finish_reason=self.finish_reason or FinishReason.CANCELLED,
            error=self.error,
            num_preemptions=self.num_preemptions,
            num_cached_tokens=self.num_cached_tokens,
        )
