"""The text of one answer, made token by token as the engine itself makes it: up to the first stop string. Pure."""

from __future__ import annotations

from collections.abc import Collection

from engine.embedded.stopping import StopMatcher
from engine.embedded.tokenizer import Detokenizer
from engine.request import Request


class OutputText:
    """Follows one answer."""

    def __init__(self, request: Request, detokenizer: Detokenizer, eos_token_ids: Collection[int]) -> None:
        self._detokenizer = detokenizer
        self._stops = StopMatcher(request.stop)
        self._ends = () if request.ignore_eos else eos_token_ids
        self.num_tokens = 0

    def feed(self, token_id: int) -> str:
        """Return the text that may be shown now; what may be the beginning of a stop string is held back."""
        self.num_tokens += 1
        return "" if token_id in self._ends else self._stops.feed(self._detokenizer.feed(token_id))

    def end(self) -> str:
        """Return what is still held; the answer has ended."""
        return self._stops.flush()
