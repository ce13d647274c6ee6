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
        # Taken from the end, so that low numbers go first and a sequence's blocks tend to be neighbours.
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks nobody holds."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks held by sequences."""
        return self.num_blocks - len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that many tokens occupy."""
        return -(-num_tokens // self.block_size)

    def missing_for(self, sequence: Holder, num_tokens: int) -> int:
        """Blocks the sequence lacks to hold its first `num_tokens` tokens."""
        return max(0, self.blocks_for(num_tokens) - len(sequence.block_table))

    def grow(self, sequence: Holder, num_tokens: int) -> None:
        """Give the sequence blocks for its first `num_tokens` tokens; raise OutOfBlocks, changing nothing."""
        missing = self.missing_for(sequence, num_tokens)
        if missing > len(self._free):
            raise OutOfBlocks(f"{missing} KV-cache blocks needed, {len(self._free)} free")
        if missing:
            sequence.block_table.extend(self._free[: -missing - 1 : -1])
            del self._free[-missing:]

    def extend(self, sequences: Sequence[Holder]) -> None:
        """Give each of the sequences one more block; raise OutOfBlocks, changing nothing."""
        if len(sequences) > len(self._free):
            raise OutOfBlocks(f"{len(sequences)} KV-cache blocks needed, {len(self._free)} free")
        take = self._free.pop
        for sequence in sequences:
            sequence.block_table.append(take())

    def release(self, sequence: Holder) -> None:
        """Take back every block of the sequence; its cached tokens are gone."""
        table = sequence.block_table
        if len(self._free) + len(table) > self.num_blocks:
            raise EngineError(f"KV-cache blocks {table} were released twice: there would be more than there are")
        self._free.extend(reversed(table))
        table.clear()
        sequence.num_prefilled = 0
