"""Stop strings in text that arrives in pieces: found over piece borders, never streamed half. Pure.

Text that may be the beginning of a stop string is held back until it is known not to be one; at the end of the output
whatever is held is delivered in full. Of several stop strings the one that is complete first wins, and of two that
end with the same character the longer one: the result does not depend on where the pieces are cut.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Follows one output."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.is_stopped = False

    def feed(self, piece: str) -> str:
        """Take the next piece and return the text that may be delivered now.

        Sets `is_stopped` when a stop string was completed; what follows it is dropped.
        """
        text = self._held + piece
        ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in self._stops if stop in text]
        if ends:
            self.is_stopped = True
            self._held = ""
            return text[: min(ends)[1]]
        hold = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]

    def flush(self) -> str:
        """Return what is still held; the output has ended."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
