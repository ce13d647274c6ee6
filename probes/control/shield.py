"""A stretch of work that no signal interrupts: those that arrive in it are delivered after it.

SIGKILL cannot be held back, nor can signals that the process never handled in Python. Knows nothing of the work.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

#: What asks a process to end.
SHIELDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def shielded() -> Iterator[None]:
    """Hold back SIGINT, SIGTERM and SIGHUP while the context is open, then deliver each once to its former handler.

    Only the main thread runs handlers, so elsewhere there is nothing to hold back, and this does nothing. Within
    another shield the outer one's handlers are the former ones, so signals wait for the end of the outermost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        if number not in arrived:
            arrived.append(number)

    former = {number: signal.getsignal(number) for number in SHIELDED}
    try:
        for number, handler in former.items():
            if handler is not None:  # None: not installed from Python, and could not be put back from here
                signal.signal(number, remember)
        yield
    finally:
        for number, handler in former.items():
            if handler is not None:
                signal.signal(number, handler)
        _deliver(arrived)


def _deliver(numbers: Sequence[int]) -> None:
    """Raise each signal, even where the handler of an earlier one raises, as SIGINT's usually does."""
    if numbers:
        try:
            signal.raise_signal(numbers[0])
        finally:
            _deliver(numbers[1:])
