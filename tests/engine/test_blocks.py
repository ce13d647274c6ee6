"""Bookkeeping of KV-cache blocks."""

from __future__ import annotations

import pytest

from engine.embedded.blocks import BlockPool
from engine.embedded.sequence import Sequence
from engine.errors import EngineError, InvalidSettings, OutOfBlocks
from tests.engine.requests import make_request


def make_pool(num_blocks: int) -> BlockPool[Sequence]:
    return BlockPool(num_blocks, 16)


def make_sequence() -> Sequence:
    return Sequence.of(make_request(), 0.0)


def test_blocks_are_rounded_up() -> None:
    """A block is needed as soon as its first token is."""
    pool = make_pool(10)

    assert [pool.blocks_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_growing_gives_only_what_is_missing() -> None:
    """A sequence keeps its blocks and gets the ones beyond them."""
    pool, sequence = make_pool(10), make_sequence()
    pool.grow(sequence, 16)
    first = list(sequence.block_table)

    pool.grow(sequence, 40)

    assert sequence.block_table[:1] == first
    assert len(sequence.block_table) == 3
    assert pool.num_used == 3


def test_too_many_blocks_change_nothing() -> None:
    """A refused growth leaves pool and sequence as they were."""
    pool, sequence = make_pool(2), make_sequence()
    pool.grow(sequence, 10)

    with pytest.raises(OutOfBlocks, match="2 KV-cache blocks needed, 1 free"):
        pool.grow(sequence, 48)

    assert (pool.num_free, len(sequence.block_table)) == (1, 1)


def test_a_block_released_twice_is_noticed() -> None:
    """A double release is an error, not a block that two sequences share."""
    pool, sequence = make_pool(4), make_sequence()
    pool.grow(sequence, 16)
    stolen = list(sequence.block_table)
    pool.release(sequence)
    sequence.block_table.extend(stolen)

    with pytest.raises(EngineError, match="released twice"):
        pool.release(sequence)


def test_a_pool_needs_a_block() -> None:
    """A pool of no blocks is refused."""
    with pytest.raises(InvalidSettings, match="num_kv_blocks is 0"):
        BlockPool(0, 16)
