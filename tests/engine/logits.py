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
    while sequence.num_pending:
        count = min(chunk, sequence.num_pending)
        piece = Slice(sequence, sequence.num_computed, count)
        parts.append(opened.runner.run(Batch((), (piece,)), all_rows=True))
        sequence.num_computed += count
    opened.pool.release(sequence)
    return torch.cat(parts)
