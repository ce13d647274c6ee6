"""Do something on several devices side by side: what waits on one must not delay the others.

Knows nothing of what is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Event, Thread
from typing import TypeVar

from probes.clock import Clock
from probes.metering.sampler import THREAD_NAME

#: How long one wait for the slowest lasts; it ends sooner when all are done.
_WAIT_S = 0.01

T = TypeVar("T")


def together(calls: Sequence[Callable[[], T]], clock: Clock) -> list[T]:
    """Run the calls at the same time, each in a thread, and return their results in order.

    Returns when all have ended; then raises what the first of those that failed raised. Waits on `clock`, so that
    tests' time moves on while the calls wait for it.
    """
    if len(calls) == 1:
        return [calls[0]()]
    futures: list[Future[T]] = [Future() for _ in calls]
    all_done = Event()

    def run(call: Callable[[], T], future: Future[T]) -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # handed to the caller, whatever it is
            future.set_exception(error)
        if all(other.done() for other in futures):
            all_done.set()

    for call, future in zip(calls, futures, strict=True):
        Thread(target=run, args=(call, future), name=THREAD_NAME, daemon=True).start()
    while futures and not clock.wait(all_done, _WAIT_S):
        pass
    return [future.result() for future in futures]
