"""Many callers that wait for one thing each, one query for all of them.

While a query runs, in a thread of its own, callers gather for the next. So reads stay exact, no answer is kept beyond
the query that it came from, and a crowd costs hardly more than one. Knows nothing of what is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

Key = TypeVar("Key")
Value = TypeVar("Value")

#: Keys of one query: every database takes an SQL statement with so many parameters.
MAX_BATCH = 100


class _Queue(Generic[Key, Value]):
    """Who waits in one event loop, and the task that answers them."""

    def __init__(self) -> None:
        self.waiting: dict[Key, asyncio.Future[Value | None]] = {}
        self.task: asyncio.Task[None] | None = None


class Batcher(Generic[Key, Value]):
    """Loads values by key, many at a time."""

    def __init__(
        self, name: str, load: Callable[[Sequence[Key]], Mapping[Key, Value]], *, max_batch: int = MAX_BATCH
    ) -> None:
        self._load = load
        self._max_batch = max_batch
        # One thread: a second would only take turns with it at the interpreter and at the database.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        #: A server has one event loop; tests have several.
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue[Key, Value]] = WeakKeyDictionary()

    async def get(self, key: Key) -> Value | None:
        """Return what is loaded for a key; None when there is nothing. Raises what the query raises."""
        loop = asyncio.get_running_loop()
        queue = self._queues.setdefault(loop, _Queue())
        future = queue.waiting.get(key)
        if future is None:
            future = queue.waiting[key] = loop.create_future()
        if queue.task is None or queue.task.done():
            queue.task = loop.create_task(self._answer_all(loop, queue))
        return await asyncio.shield(future)  # a caller that goes away must not take it from the others

    async def _answer_all(self, loop: asyncio.AbstractEventLoop, queue: _Queue[Key, Value]) -> None:
        while queue.waiting:
            keys = list(queue.waiting)[: self._max_batch]
            batch = {key: queue.waiting.pop(key) for key in keys}
            try:
                values = await loop.run_in_executor(self._thread, self._load, keys)
            except Exception as error:  # theirs to handle, whatever it is
                for future in batch.values():
                    future.set_exception(error)
                    future.exception()  # looked at: nobody may be left to do so
                continue
            for key, future in batch.items():
                future.set_result(values.get(key))
