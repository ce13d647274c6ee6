"""Many callers, one query."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from api.batching import Batcher


def test_a_crowd_costs_few_queries() -> None:
    """Callers that come while a query runs share the next one, and each gets what is its own."""
    asked: list[Sequence[int]] = []

    def load(keys: Sequence[int]) -> dict[int, str]:
        asked.append(keys)
        return {key: f"value {key}" for key in keys if key != 7}

    async def crowd() -> list[str | None]:
        batcher = Batcher("test", load, max_batch=50)
        return await asyncio.gather(*(batcher.get(number % 60) for number in range(300)))

    found = asyncio.run(crowd())
    assert [None if number % 60 == 7 else f"value {number % 60}" for number in range(300)] == found
    assert sorted(range(60)) == sorted(key for keys in asked for key in keys)
    assert len(asked) == 2


def test_an_error_reaches_all_who_asked_and_nobody_after() -> None:
    """A query that fails fails for those whose keys it was for; the next one is made as if nothing had been."""
    errors = iter((ValueError("no"),))

    def load(keys: Sequence[int]) -> dict[int, int]:
        for error in errors:
            raise error
        return {key: 2 * key for key in keys}

    async def ask() -> tuple[Sequence[object], int | None]:
        batcher = Batcher("test", load)
        failed = await asyncio.gather(batcher.get(1), batcher.get(2), return_exceptions=True)
        return failed, await batcher.get(3)

    failed, later = asyncio.run(ask())
    assert [ValueError, ValueError] == [type(error) for error in failed]
    assert later == 6


def test_a_caller_that_goes_away_leaves_the_others_theirs() -> None:
    """One of two callers for a key is cancelled; the other still gets the value."""

    async def ask() -> int | None:
        batcher = Batcher("test", lambda keys: {key: key for key in keys})
        first, second = asyncio.ensure_future(batcher.get(5)), asyncio.ensure_future(batcher.get(5))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await second

    assert asyncio.run(ask()) == 5
