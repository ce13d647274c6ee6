"""ShareGPT's talks as requests: roles decide what is asked and what is answered, not where a turn stands.

Each answer to something is a request; its prompt is all that was said before it. What is no use is left out and counted
by its reason. Knows nothing of files, nor of tokenizers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tuner.traces import Text, TraceBuilder

ASKING = ("human", "user")
ANSWERING = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
SYSTEM = ("system",)
NO_TALK = "talks have no conversations and were left out"
EMPTY = "talks are empty and were left out"
UNREADABLE = "talks have a turn without role or text, and were left out from there on"
OTHER_ROLE = "turns of other roles were left out"
NO_QUESTION = "answers have no question before them and were left out"
NO_ANSWER = "questions have no answer and were left out"


class ShareGptTalks:
    """Turns talks into requests."""

    def __init__(self, builder: TraceBuilder) -> None:
        self._builder = builder

    def take(self, talk: Mapping[str, Any]) -> None:
        """Add the requests of one talk, without times."""
        turns = talk.get("conversations", talk.get("conversation"))
        if not isinstance(turns, list):
            self._builder.note(NO_TALK)
            return
        if not turns:
            self._builder.note(EMPTY)
            return
        system = talk.get("system", talk.get("system_prompt"))
        said = [system] if isinstance(system, str) and system.strip() else []
        is_asked = False
        for role, text in self._readable(turns):
            if role in ANSWERING:
                if is_asked:
                    self._builder.add_text(None, Text(prompt="\n".join(said), answer=text), 0)
                else:
                    self._builder.note(NO_QUESTION)
                    continue
                is_asked = False
            elif role in ASKING:
                is_asked = True
            said.append(text)
        if is_asked:
            self._builder.note(NO_ANSWER)

    def _readable(self, turns: list[Any]) -> Iterator[tuple[str, str]]:
        """Yield role and text of the turns up to the first that cannot be read."""
        for turn in turns:
            role = turn.get("from", turn.get("role")) if isinstance(turn, dict) else None
            text = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
            if not isinstance(role, str) or not isinstance(text, str) or not text.strip():
                self._builder.note(UNREADABLE)
                return
            role = role.strip().lower()
            if role in ASKING + ANSWERING + SYSTEM:
                yield role, text
            else:
                self._builder.note(OTHER_ROLE)
