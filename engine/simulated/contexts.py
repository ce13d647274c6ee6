"""How many tokens all decoding sequences attend to in a step, kept up to date instead of summed.

Layers with a window see its length at most. Knows nothing of what the tokens cost.
"""

from __future__ import annotations


class Contexts:
    """Sums over the decoding sequences; a step adds one token to each."""

    def __init__(self, window: int | None) -> None:
        self._window = window
        self._num_steps = 0
        self._num_decoding = 0
        #: Sum of all their tokens.
        self.total = 0
        #: Sum of what a layer with a window sees of them; 0 in models without one.
        self.local = 0
        # Those still shorter than the window, and how many of them reach it at which step.
        self._num_short = 0
        self._reaching: dict[int, int] = {}

    def join(self, num_tokens: int) -> None:
        """Count a sequence that decodes from the next step on."""
        self._change(num_tokens, 1)

    def leave(self, num_tokens: int) -> None:
        """Count it no longer."""
        self._change(num_tokens, -1)

    def advance(self) -> None:
        """Note a step of all of them."""
        self._num_steps += 1
        self.total += self._num_decoding
        self.local += self._num_short
        if self._reaching:
            self._num_short -= self._reaching.pop(self._num_steps, 0)

    def _change(self, num_tokens: int, sign: int) -> None:
        self._num_decoding += sign
        self.total += sign * num_tokens
        if self._window is None:
            return
        self.local += sign * min(num_tokens, self._window)
        if num_tokens < self._window:
            self._num_short += sign
            step = self._num_steps + self._window - num_tokens
            self._reaching[step] = self._reaching.get(step, 0) + sign
