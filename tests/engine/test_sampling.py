"""From logits to tokens."""

from __future__ import annotations

from typing import Any

import torch

from engine.embedded.sampling import sample
from engine.embedded.sequence import Sequence
from tests.engine.requests import make_request


def make_sequence(place: int = 0, **changes: Any) -> Sequence:
    sequence = Sequence.of(make_request(**changes), 0.0)
    sequence.token_ids.extend([0] * place)
    return sequence


def draws(logits: list[float], *, num: int = 2000, **changes: Any) -> list[int | None]:
    """Sample the same row at many places."""
    sequences = [make_sequence(place, seed=5, **changes) for place in range(num)]
    return sample(torch.tensor([logits] * num), sequences)


def test_temperature_zero_is_greedy() -> None:
    """The likeliest token is taken, without any draw."""
    assert sample(torch.tensor([[0.0, 3.0, 1.0]]), [make_sequence()]) == [1]


def test_temperature_gives_the_softmax_shares() -> None:
    """Draws over many places follow softmax(logits / temperature)."""
    drawn = draws([0.0, 1.0, 2.0], temperature=2.0)

    expected = torch.softmax(torch.tensor([0.0, 0.5, 1.0]), dim=0)
    for token in range(3):
        assert abs(drawn.count(token) / len(drawn) - float(expected[token])) < 0.04


def test_top_p_keeps_the_smallest_sufficient_set() -> None:
    """Tokens outside the likeliest ones that hold top_p are never drawn, and the likeliest always may be."""
    assert set(draws([3.0, 2.0, 0.0, -1.0], temperature=1.0, top_p=0.75)) == {0, 1}
    assert set(draws([3.0, 2.0, 0.0, -1.0], temperature=1.0, top_p=0.01, num=50)) == {0}


def test_rows_that_are_not_finite_give_no_token() -> None:
    """BUG-39: NaN or infinity anywhere that matters yields None for that row alone."""
    rows = torch.tensor([[0.0, float("nan"), 1.0], [0.0, float("inf"), 1.0], [0.0, 2.0, 1.0], [float("nan")] * 3])

    assert sample(rows, [make_sequence() for _ in rows]) == [None, None, 1, None]


def test_a_draw_is_the_same_beside_others() -> None:
    """Drawn rows keep their places and their draws among greedy rows and such as are not finite."""
    row = torch.tensor([0.0, 1.0, 2.0, 1.5])
    drawn = [make_sequence(place, seed=5, temperature=1.0) for place in range(20)]
    alone = [sample(row[None], [sequence])[0] for sequence in drawn]
    ill = torch.full((4,), float("nan"))

    beside = [sample(torch.stack([ill, row, row, ill]), [one, make_sequence(), one, one]) for one in drawn]

    assert len(set(alone)) > 1
    assert [[None, 2, token, None] for token in alone] == beside
