"""How many tokens came when: the pieces of one stream against the server's own counts.

What a server may tell, from best to worst: the tokens of every piece (their ids, or a running count), the count of all
at the end, nothing. Knows nothing of JSON texts' way here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class Usage:
    """The server's counts, the latest it told."""

    def __init__(self) -> None:
        #: Output tokens, thinking included.
        self.num_output: int | None = None
        self.num_prompt: int | None = None
        #: Prompt tokens that the server already had in a cache.
        self.num_cached: int | None = None
        self.num_reasoning: int | None = None
        #: By how much the latest count went up.
        self.num_new = 0
        #: Whether it counts along, piece by piece.
        self.is_continuous = False

    def take(self, usage: object) -> bool:
        """Take a usage object, and tell whether its output tokens went up."""
        if not isinstance(usage, dict):
            return False
        before = self.num_output
        self.num_output = _count(usage, "completion_tokens", before)
        self.num_prompt = _count(usage, "prompt_tokens", self.num_prompt)
        self.num_cached = _count(usage.get("prompt_tokens_details"), "cached_tokens", self.num_cached)
        self.num_reasoning = _count(usage.get("completion_tokens_details"), "reasoning_tokens", self.num_reasoning)
        self.is_continuous = self.is_continuous or before is not None
        self.num_new = max(0, (self.num_output or 0) - (before or 0))
        return self.num_new > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTimes:
    """The output tokens of a stream."""

    #: One for each token that was shown.
    times_s: tuple[float, ...]
    #: Of the answer, where thinking came before it.
    first_answer_s: float | None
    num_reasoning: int
    num_hidden: int
    #: Whether the number is the server's own.
    is_told: bool
    notes: tuple[str, ...]

    @property
    def num_tokens(self) -> int:
        """Output tokens, shown or not."""
        return len(self.times_s) + self.num_hidden


class Pieces:
    """Those parts of a stream that carried tokens."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        #: Tokens of each; 0 where that was not told.
        self._counts: list[int] = []
        self._is_thinking: list[bool] = []
        #: Tokens so far, one for a piece that is not counted.
        self.num_seen = 0

    @property
    def is_thinking(self) -> bool:
        """Whether the last piece was a thought."""
        return bool(self._is_thinking) and self._is_thinking[-1]

    def add(self, time_s: float, count: int, *, is_thinking: bool) -> None:
        """Note a piece with so many tokens (0: not told)."""
        self.times_s.append(time_s)
        self._counts.append(count)
        self._is_thinking.append(is_thinking)
        self.num_seen += count or 1

    def tokens(self, usage: Usage, *, is_complete: bool) -> TokenTimes:
        """Tell all tokens' times; a count of the whole stream needs one that came to its end (`is_complete`)."""
        thinking = [time_s for time_s, is_thought in zip(self.times_s, self._is_thinking, strict=True) if is_thought]
        answer = [time_s for time_s, is_thought in zip(self.times_s, self._is_thinking, strict=True) if not is_thought]
        notes: list[str] = []
        if self.times_s and not thinking and usage.num_reasoning:
            notes.append("hidden_reasoning")
        if thinking and not answer and is_complete:
            notes.append("no_answer")
        total = self._total(usage, is_complete=is_complete)
        if total is None and is_complete:
            notes.append("no_usage")
        hidden = self._num_hidden(usage, total, has_thoughts=bool(thinking))
        counts = self._told_counts(total)
        if counts is not None:
            times = _repeated(self.times_s, counts)
            reasoning = sum(n for n, thought in zip(counts, self._is_thinking, strict=True) if thought)
        else:
            times, reasoning = self._spread(thinking, answer, usage, (total or 0) - hidden)
        return TokenTimes(
            times_s=tuple(times),
            first_answer_s=answer[0] if thinking and answer else None,
            num_reasoning=usage.num_reasoning if usage.num_reasoning is not None else reasoning,
            num_hidden=hidden,
            is_told=total is not None,
            notes=tuple(notes),
        )

    def _total(self, usage: Usage, *, is_complete: bool) -> int | None:
        """Output tokens by the server's count, where that is of the whole stream and can be true."""
        if all(self._counts) and self._counts and not is_complete:
            return sum(self._counts)
        if usage.num_output is None or not is_complete:
            return None
        return usage.num_output if usage.num_output > 0 or not self.times_s else None

    def _num_hidden(self, usage: Usage, total: int | None, *, has_thoughts: bool) -> int:
        """Tokens that were counted and never shown."""
        if total is None:
            return 0
        if not self.times_s:
            return total
        if has_thoughts or not usage.num_reasoning:
            return 0
        return min(usage.num_reasoning, total - 1)

    def _told_counts(self, total: int | None) -> list[int] | None:
        """Tokens of every piece, where the server told them and they add up."""
        if not self._counts or not all(self._counts):
            return None
        return self._counts if total is None or total == sum(self._counts) else None

    def _spread(
        self, thinking: Sequence[float], answer: Sequence[float], usage: Usage, num_shown: int
    ) -> tuple[list[float], int]:
        """Spread a total over the pieces, thoughts and answer each by their own where they are told apart."""
        if num_shown <= 0:
            return list(self.times_s), len(thinking)
        told = usage.num_reasoning
        if thinking and answer and told is not None and len(thinking) <= told <= num_shown - len(answer):
            times = spread(thinking, told) + spread(answer, num_shown - told)
            return sorted(times), told
        times = spread(self.times_s, num_shown)
        return times, round(num_shown * len(thinking) / len(self.times_s)) if self.times_s else 0


def spread(times_s: Sequence[float], num_tokens: int) -> list[float]:
    """Give so many tokens the times of the pieces they came in, as evenly as whole numbers allow.

    First and last piece keep theirs where there are tokens enough, so that neither TTFT nor TPOT depends on the rest.
    """
    num_pieces = len(times_s)
    if num_tokens >= num_pieces:
        return [times_s[number * num_pieces // num_tokens] for number in range(num_tokens)] if num_pieces else []
    if num_tokens == 1:
        return [times_s[0]]
    return [times_s[number * (num_pieces - 1) // (num_tokens - 1)] for number in range(num_tokens)]


def _repeated(times_s: Sequence[float], counts: Sequence[int]) -> list[float]:
    return [time_s for time_s, count in zip(times_s, counts, strict=True) for _ in range(count)]


def _count(fields: Any, name: str, otherwise: int | None) -> int | None:
    value = fields.get(name) if isinstance(fields, dict) else None
    return value if isinstance(value, int) and value >= 0 else otherwise
