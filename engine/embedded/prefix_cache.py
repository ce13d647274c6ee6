"""A block pool that keeps what it gets back, so that prompts that begin alike share their first blocks.

Whole blocks only, each under a chained key: a hash of its tokens and of the key before it, so that a key stands for all
tokens up to its block's end. A block is shared only once a token was sampled after it from finite logits, and is never
written again: the last known token of a sequence is always computed, into a block of the sequence's own. A shared block
counts its holders; one without any counts as free, and is kept until blocks that hold nothing are used up. Then the one
that was let go first is overwritten; of one sequence that is its last.

Knows nothing of tensors: what a number stands for lies in `engine.embedded.kv_cache`.
"""

from __future__ import annotations

import hashlib
from array import array

from engine.embedded.blocks import BlockPool
from engine.embedded.sequence import Sequence
from engine.errors import EngineError

#: Bytes of a key: no two beginnings of prompts will ever have the same.
_KEY_BYTES = 16


class PrefixCache(BlockPool[Sequence]):
    """Hands out blocks, those that are known to hold a sequence's first tokens before any others."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._num_holders = [0] * num_blocks
        self._blocks: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        # Blocks with a key that nobody holds, the first to be overwritten first; a dict keeps that order.
        self._idle: dict[int, None] = {}
        self._num_asked = 0
        self._num_found = 0

    @property
    def num_free(self) -> int:
        """Blocks nobody holds, whatever they keep."""
        return super().num_free + len(self._idle)

    @property
    def hit_share(self) -> float | None:
        """Prompt tokens found in the cache, of those of all sequences let in since `forget`; None without any."""
        return self._num_found / self._num_asked if self._num_asked else None

    def can_admit(self, sequence: Sequence) -> bool:
        """Tell whether a sequence without blocks could have them; what others hold of its beginning costs nothing."""
        if super().can_admit(sequence):
            return True
        num_held = sum(self._num_holders[block] > 0 for block in self._found(sequence))
        return self.blocks_for(sequence.num_tokens) - num_held <= self.num_free

    def admit(self, sequence: Sequence) -> None:
        """Give a sequence its blocks, the found ones first; `num_prefilled` says how far those reach."""
        found = self._found(sequence)
        for block in found:
            self._idle.pop(block, None)
            self._num_holders[block] += 1
        sequence.block_table.extend(found)
        sequence.num_prefilled = len(found) * self.block_size
        sequence.num_shared = len(found)
        try:
            self.grow(sequence, sequence.num_tokens)
        except Exception:
            self.release(sequence)
            raise
        if not sequence.num_preemptions:  # else it would find what it computed itself
            self._num_asked += sequence.num_tokens
            self._num_found += sequence.num_prefilled
            sequence.num_cached_tokens = sequence.num_prefilled

    def share(self, sequence: Sequence, num_computed: int) -> None:
        """Let others read the whole blocks of the sequence's first tokens, all computed and known to be finite."""
        num_whole = num_computed // self.block_size
        if num_whole <= sequence.num_shared:
            return
        keys = self._keys_of(sequence, num_whole)
        for place in range(sequence.num_shared, num_whole):
            block, key = sequence.block_table[place], keys[place]
            if key not in self._blocks:  # else somebody computed the same meanwhile: this one stays its own
                self._blocks[key] = block
                self._keys[block] = key
        sequence.num_shared = num_whole

    def release(self, sequence: Sequence) -> None:
        """Let go of every block of the sequence; those with a key keep what they hold until they are needed."""
        table = sequence.block_table
        for block in reversed(table):
            if not self._num_holders[block]:
                raise EngineError(f"KV-cache block {block} was released twice: nobody holds it")
            self._num_holders[block] -= 1
            if not self._num_holders[block]:
                if block in self._keys:
                    self._idle[block] = None
                else:
                    self._free.append(block)
        table.clear()
        sequence.num_prefilled = 0
        sequence.num_shared = 0

    def own_blocks(self, sequence: Sequence) -> list[int]:
        """Return the sequence's blocks that nobody else may read."""
        return [block for block in sequence.block_table if block not in self._keys and self._num_holders[block] == 1]

    def forget(self) -> None:
        """Begin as a new pool would: nothing is found of what was computed before."""
        self._free.extend(self._idle)
        self._idle.clear()
        self._keys.clear()
        self._blocks.clear()
        self._num_asked = self._num_found = 0

    def _take(self, num_wanted: int) -> list[int]:
        """Take blocks that keep nothing, then those let go first."""
        num_overwritten = min(num_wanted - super().num_free, len(self._idle))
        if num_wanted <= self.num_free:
            for _ in range(num_overwritten):
                block = next(iter(self._idle))
                del self._idle[block]
                del self._blocks[self._keys.pop(block)]
                self._free.append(block)
        taken = super()._take(num_wanted)
        for block in taken:
            self._num_holders[block] = 1
        return taken

    def _found(self, sequence: Sequence) -> list[int]:
        """Return the blocks that hold the sequence's first tokens, up to the last that must be computed."""
        found = []
        for key in self._keys_of(sequence, (sequence.num_tokens - 1) // self.block_size):
            block = self._blocks.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def _keys_of(self, sequence: Sequence, num_blocks: int) -> list[bytes]:
        """Return the keys of the sequence's first whole blocks; each is worked out once, as its tokens never change."""
        keys, size = sequence.block_keys, self.block_size
        for place in range(len(keys), num_blocks):
            tokens = array("q", sequence.token_ids[place * size : (place + 1) * size]).tobytes()
            before = keys[-1] if keys else b""
            keys.append(hashlib.blake2b(before + tokens, digest_size=_KEY_BYTES).digest())
        return keys[:num_blocks]
