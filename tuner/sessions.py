"""Conversations of several turns, flattened: when each turn is due, and what it has before it.

A file says when a conversation begins and how long each later turn waits after the answer before it (`delay`). How long
that answer takes is not known before the replay, so that a turn is due by an assumption: the answer takes as long as
MLPerf Inference v6.1 allows llama3.1-8b under Interactive, 500 ms to the first token and 30 ms for each one after it.
Turns with times of their own are due at those. Knows nothing of formats.
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.traces import BLOCK_TOKENS, RowFault, TraceBuilder

ASSUMED_TTFT_S = 0.5
ASSUMED_TPOT_S = 0.03
FLATTENED = (
    f"turns have no time of their own: they are due their delay after an answer that is assumed to take "
    f"{ASSUMED_TTFT_S * 1e3:g} ms and {ASSUMED_TPOT_S * 1e3:g} ms a token"
)
NO_DELAYS = "turns have a delay that is not used, since the file has no times"
#: Blocks of a prompt at most, so that each conversation has ids of its own: a million tokens have 1,954.
_BLOCKS_EACH = 4_096


@dataclass(slots=True)
class _Session:
    """A conversation so far."""

    number: int
    due_s: float | None = None
    #: Of the turn before.
    output_tokens: int = 0
    #: Prompt and output of the turn before: what the next one's prompt begins with.
    context_tokens: int = 0
    history: str = ""


class Sessions:
    """The conversations of one file."""

    def __init__(self, builder: TraceBuilder) -> None:
        self._builder = builder
        self._sessions: dict[str, _Session] = {}
        self._is_timed: bool | None = None

    def due_s(self, timestamp_ms: float | None, delay_ms: float | None, session: str | None) -> float | None:
        """Return when a turn is due; None where the file has no times.

        Raises RowFault for a row without a time in a file that has them, and the other way round.
        """
        if self._is_timed is None:
            self._is_timed = timestamp_ms is not None
        if not self._is_timed:
            if timestamp_ms is not None:
                raise RowFault("timestamp", timestamp_ms, "no time, as in the first row", "it has a timestamp, but the "
                               "first row has none; give all conversations one, or none")  # fmt: skip
            if delay_ms:
                self._builder.note(NO_DELAYS)
            return None
        if timestamp_ms is not None:
            return timestamp_ms / 1e3
        before = None if session is None else self._sessions.get(session)
        if before is None or before.due_s is None:
            words = "it lacks timestamp, and is no later turn of a session that has one; correct or remove the line"
            raise RowFault("timestamp", None, "a number of milliseconds", words)
        self._builder.note(FLATTENED)
        answer_s = ASSUMED_TTFT_S + ASSUMED_TPOT_S * max(0, before.output_tokens - 1)
        return before.due_s + answer_s + (delay_ms or 0.0) / 1e3

    def turn_tokens(self, session: str, tokens: int) -> tuple[int, list[int]]:
        """Return how long a turn's prompt is with all that was said before, and the ids of its blocks.

        Ids are below 0 and the conversation's own: no trace has such.
        """
        known = self._known(session)
        prompt = known.context_tokens + tokens
        first = known.number * _BLOCKS_EACH
        return prompt, [-first - place - 1 for place in range(-(-prompt // BLOCK_TOKENS))]

    def turn_text(self, session: str, text: str) -> str:
        """Return a turn's prompt with the prompts of the turns before it; their answers are not known."""
        known = self._known(session)
        known.history = f"{known.history}\n{text}" if known.history else text
        return known.history

    def said(self, session: str | None, due_s: float | None, prompt_tokens: int, output_tokens: int) -> None:
        """Note a turn for those that come after it."""
        if session is None:
            return
        known = self._known(session)
        known.due_s, known.output_tokens = due_s, output_tokens
        known.context_tokens = prompt_tokens + output_tokens

    def _known(self, session: str) -> _Session:
        return self._sessions.setdefault(session, _Session(number=len(self._sessions)))
