"""Which KV-cache blocks are free: bookkeeping by number, no tensors.

A block holds `block_size` consecutive tokens of one sequence. The sequence's block table lists its blocks in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from engine.errors import EngineError, InvalidSettings, OutOfBlocks


class Holder(Protocol):
    """Whoever holds blocks."""

    block_table: list[int]
    #: Leading tokens computed in prefill chunks, or found in the cache.
    num_prefilled: int

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and what was sampled so far."""


H = TypeVar("H", bound=Holder)


class BlockPool(Generic[H]):
    """Hands out blocks 0 .. num_blocks - 1 and takes them back."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1:
            raise InvalidSettings(f"num_kv_blocks is {num_blocks}; give 1 or more")
        self.num_blocks = num_blocks
        self.block_size = block_size
        # Blocks given back, the last of them the first to go out again; those from this number on were never used.
        self._free: list[int] = []
        self._num_begun = 0

    @property
    def num_free(self) -> int:
        """Blocks nobody holds."""
        return len(self._free) + self.num_blocks - self._num_begun

    @property
    def num_used(self) -> int:
        """Blocks held by sequences."""
        return self.num_blocks - self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that many tokens occupy."""
        return -(-num_tokens // self.block_size)

    def missing_for(self, sequence: H, num_tokens: int) -> int:
        """Blocks the sequence lacks to hold its first `num_tokens` tokens."""
        return max(0, self.blocks_for(num_tokens) - len(sequence.block_table))

    def can_admit(self, sequence: H) -> bool:
        """Tell whether a sequence without blocks could have them for all its known tokens."""
        return self.blocks_for(sequence.num_tokens) <= self.num_free

    def admit(self, sequence: H) -> None:
        """Give a sequence without blocks those for all its known tokens; raise OutOfBlocks, changing nothing."""
        self.grow(sequence, sequence.num_tokens)

    def grow(self, sequence: H, num_tokens: int) -> None:
        """Give the sequence blocks for its first `num_tokens` tokens; raise OutOfBlocks, changing nothing."""
        sequence.block_table.extend(self._take(self.missing_for(sequence, num_tokens)))

    def extend(self, sequences: Sequence[H]) -> None:
        """Give each of the sequences one more block; raise OutOfBlocks, changing nothing."""
        for sequence, block in zip(sequences, self._take(len(sequences)), strict=True):
            sequence.block_table.append(block)

    def release(self, sequence: H) -> None:
        """Take back every block of the sequence; its cached tokens are gone."""
        table = sequence.block_table
        if len(table) > self.num_used:
            raise EngineError(f"KV-cache blocks {table} were released twice: there would be more than there are")
        self._free.extend(reversed(table))
        table.clear()
        sequence.num_prefilled = 0

    def own_blocks(self, sequence: H) -> list[int]:
        """Return the sequence's blocks that nobody else may read."""
        return list(sequence.block_table)

    def _take(self, num_wanted: int) -> list[int]:
        """Take blocks out of the free ones, the last given back first."""
        if num_wanted > self.num_free:
            raise OutOfBlocks(f"{num_wanted} KV-cache blocks needed, {self.num_free} free")
        lacking = num_wanted - len(self._free)
        if lacking > 0:
            self._free[:0] = range(self._num_begun + lacking - 1, self._num_begun - 1, -1)
            self._num_begun += lacking
        kept = len(self._free) - num_wanted
        taken = self._free[kept:]
        del self._free[kept:]
        taken.reverse()
        return taken
