"""Which KV-cache blocks are free: bookkeeping by number, no tensors.

A block holds `block_size` consecutive tokens of one sequence. The sequence's block table lists its blocks in order.
"""

from __future__ import annotations

from engine.embedded.sequence import Sequence
from engine.errors import EngineError, InvalidSettings, OutOfBlocks


class BlockPool:
    """Hands out blocks 0 .. num_blocks - 1 and takes them back."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1:
            raise InvalidSettings(f"num_kv_blocks is {num_blocks}; give 1 or more")
        self.num_blocks = num_blocks
        self.block_size = block_size
        # Popped from the end, so that low numbers go first and a sequence's blocks tend to be neighbours.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._is_used = [False] * num_blocks

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

    def missing_for(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks the sequence lacks to hold its first `num_tokens` tokens."""
        return max(0, self.blocks_for(num_tokens) - len(sequence.block_table))

    def grow(self, sequence: Sequence, num_tokens: int) -> None:
        """Give the sequence blocks for its first `num_tokens` tokens; raise OutOfBlocks, changing nothing."""
        missing = self.missing_for(sequence, num_tokens)
        if missing > len(self._free):
            raise OutOfBlocks(f"{missing} KV-cache blocks needed, {len(self._free)} free")
        for _ in range(missing):
            block = self._free.pop()
            self._is_used[block] = True
            sequence.block_table.append(block)

    def release(self, sequence: Sequence) -> None:
        """Take back every block of the sequence; its cached tokens are gone."""
        for block in reversed(sequence.block_table):
            if not self._is_used[block]:
                raise EngineError(f"KV-cache block {block} was released twice")
            self._is_used[block] = False
            self._free.append(block)
        sequence.block_table.clear()
        sequence.num_computed = 0
