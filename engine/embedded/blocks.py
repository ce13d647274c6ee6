"""Which KV-cache blocks are free: bookkeeping by number, no tensors.

A block holds `block_size` consecutive tokens of one sequence. The sequence's block table lists its blocks in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.errors import EngineError, InvalidSettings, OutOfBlocks


class Holder(Protocol):
    """Whoever holds blocks."""

    block_table: list[int]
    #: Leading tokens computed in prefill chunks.
    num_prefilled: int


class BlockPool:
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
        return self._num_begun - len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that many tokens occupy."""
        return -(-num_tokens // self.block_size)

    def missing_for(self, sequence: Holder, num_tokens: int) -> int:
        """Blocks the sequence lacks to hold its first `num_tokens` tokens."""
        return max(0, self.blocks_for(num_tokens) - len(sequence.block_table))

    def grow(self, sequence: Holder, num_tokens: int) -> None:
        """Give the sequence blocks for its first `num_tokens` tokens; raise OutOfBlocks, changing nothing."""
        missing = self.missing_for(sequence, num_tokens)
        if missing > self.num_free:
            raise OutOfBlocks(f"{missing} KV-cache blocks needed, {self.num_free} free")
        if missing:
            self._begin(missing)
            sequence.block_table.extend(self._free[: -missing - 1 : -1])
            del self._free[-missing:]

    def extend(self, sequences: Sequence[Holder]) -> None:
        """Give each of the sequences one more block; raise OutOfBlocks, changing nothing."""
        if len(sequences) > self.num_free:
            raise OutOfBlocks(f"{len(sequences)} KV-cache blocks needed, {self.num_free} free")
        self._begin(len(sequences))
        take = self._free.pop
        for sequence in sequences:
            sequence.block_table.append(take())

    def release(self, sequence: Holder) -> None:
        """Take back every block of the sequence; its cached tokens are gone."""
        table = sequence.block_table
        if len(table) > self.num_used:
            raise EngineError(f"KV-cache blocks {table} were released twice: there would be more than there are")
        self._free.extend(reversed(table))
        table.clear()
        sequence.num_prefilled = 0

    def _begin(self, num_wanted: int) -> None:
        """Take blocks that were never used into the list of free ones, where that has fewer than are wanted."""
        lacking = num_wanted - len(self._free)
        if lacking > 0:
            self._free[:0] = range(self._num_begun + lacking - 1, self._num_begun - 1, -1)
            self._num_begun += lacking
