"""All logits of a sequence from our engine, for comparing with a reference."""

from __future__ import annotations

import torch

from engine.embedded.loop import EmbeddedEngine
from engine.embedded.scheduler import Batch, Slice
from engine.embedded.sequence import Sequence
from tests.engine.requests import make_request


def all_logits(opened: EmbeddedEngine, token_ids: tuple[int, ...], *, chunk: int = 10**9) -> torch.Tensor:
    """Return logits (tokens, vocab), prefilled in chunks of that many tokens."""
    sequence = Sequence.of(make_request(token_ids), 0.0)
    opened.pool.grow(sequence, len(token_ids))
    parts = []
    for start in range(0, len(token_ids), chunk):
        piece = Slice(sequence, start, min(chunk, len(token_ids) - start), False)
        parts.append(opened.runner.run(Batch((), (piece,)), all_rows=True))
    opened.pool.release(sequence)
    return torch.cat(parts)
