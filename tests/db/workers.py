"""Several workers that act at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from db.database import Database
from db.jobs import JobStore
from tests.db.factories import Clock

Result = TypeVar("Result")


def at_once(
    database_url: str, clock: Clock, act: Callable[[JobStore], Result], *, num_workers: int = 4
) -> list[Result]:
    """Let several workers, each with connections of its own, act at the same moment; return what each got."""
    results: list[Result] = []
    barrier = threading.Barrier(num_workers)

    def work() -> None:
        database = Database(database_url)
        barrier.wait(timeout=60)
        results.append(act(JobStore(database, clock.now)))
        database.dispose()

    workers = [threading.Thread(target=work) for _ in range(num_workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert num_workers == len(results)
    return results
