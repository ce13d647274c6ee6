"""Logits to token ids: greedy, or temperature and top-p with a seed per request.

A request's draws depend on its seed and the token's place alone, not on what else is in the batch, nor on whether it
was preempted. Knows nothing of models.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence as Rows

import torch

from engine.embedded.sequence import Sequence

#: Spreads (seed, place) over the generator's seeds (Knuth's multiplicative constant for 64 bits).
_MIX = 6364136223846793005
#: Stands for None in a tensor.
_NO_TOKEN = -1


def sample(logits: torch.Tensor, sequences: Rows[Sequence]) -> list[int | None]:
    """Choose the next token of each sequence from its row of logits (rows, vocab_size).

    None where the row is not finite: there is no next token then.
    """
    best, likeliest = logits.max(dim=-1)  # NaN and +inf both surface in the maximum
    # One answer, one transfer: on a GPU each is a wait for all that was launched.
    greedy = torch.where(best.isfinite(), likeliest, _NO_TOKEN).tolist()
    chosen: list[int | None] = [None if token == _NO_TOKEN else token for token in greedy]
    drawn = [row for row, token in enumerate(chosen) if token is not None and sequences[row].request.temperature]
    if drawn:
        draws = torch.cat([_draw(logits[row], sequences[row]) for row in drawn])
        for row, token in zip(drawn, draws.tolist(), strict=True):
            chosen[row] = token
    return chosen


def _draw(row: torch.Tensor, sequence: Sequence) -> torch.Tensor:
    """Sample one token (1,) from the smallest set of likeliest tokens that holds `top_p` of the probability."""
    request = sequence.request
    probabilities = torch.softmax(row / request.temperature, dim=-1)
    if request.top_p < 1.0:
        ordered, indices = probabilities.sort(descending=True)
        outside = ordered.cumsum(dim=-1) - ordered >= request.top_p  # the first token always stays
        probabilities = torch.zeros_like(probabilities).scatter_(0, indices, ordered.masked_fill(outside, 0.0))
    generator = torch.Generator(device=row.device)
    seed = zlib.crc32(request.request_id.encode()) if request.seed is None else request.seed
    generator.manual_seed((seed * _MIX + sequence.num_output_tokens) % 2**63)
    return torch.multinomial(probabilities, 1, generator=generator)
