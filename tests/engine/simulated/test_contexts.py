"""Sums of contexts, against adding them up."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from engine.simulated.contexts import Contexts


@given(window=st.one_of(st.none(), st.integers(1, 60)), seed=st.integers(0, 10_000))
def test_sums_are_those_of_the_sequences(window: int | None, seed: int) -> None:
    """After any joining, leaving and stepping, both sums are what adding up each sequence gives."""
    draw = random.Random(seed)
    contexts = Contexts(window)
    lengths: dict[int, int] = {}
    for number in range(120):
        action = draw.random()
        if action < 0.3:
            lengths[number] = draw.randint(1, 80)
            contexts.join(lengths[number])
        elif action < 0.45 and lengths:
            contexts.leave(lengths.pop(draw.choice(list(lengths))))
        else:
            contexts.advance()
            lengths = {name: length + 1 for name, length in lengths.items()}

        local = 0 if window is None else sum(min(length, window) for length in lengths.values())
        assert (contexts.total, contexts.local) == (sum(lengths.values()), local)
