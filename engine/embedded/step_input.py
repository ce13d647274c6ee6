"""A step as tensors: its rows, and what each of them attends to. Knows nothing of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Rows of a step that attend together, and what they attend to.

    Rows first_row .. first_row + num_sequences x num_queries: the decodes (num_queries 1), or one prefill chunk
    (num_sequences 1).
    """

    first_row: int
    num_sequences: int
    num_queries: int
    #: Blocks to gather, (num_sequences x width,); None when the rows' own keys are all there is.
    blocks: torch.Tensor | None
    #: Added to the scores: 0 or -inf, (num_sequences, 1, num_queries, keys).
    mask: torch.Tensor
    local_mask: torch.Tensor | None

    @property
    def num_rows(self) -> int:
        """Rows of the region."""
        return self.num_sequences * self.num_queries


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What the native kernel takes in the regions' place: where each row finds the blocks of its sequence."""

    #: int64 (rows,): the row's line of `blocks`. Rows of a sequence are neighbours, in the order of their positions.
    sequences: torch.Tensor
    #: int64 (sequences, width): each sequence's blocks, as many as it needs, then anything.
    blocks: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """A step's rows as tensors."""

    #: (rows,)
    token_ids: torch.Tensor
    #: (rows,) position of each token in its sequence.
    positions: torch.Tensor
    #: (rows,) where each token's key and value go: block x block_size + offset.
    slots: torch.Tensor
    #: What the rows attend to: as regions where torch computes, as tables where the native kernel does.
    regions: Sequence[Region] = ()
    tables: Tables | None = None
