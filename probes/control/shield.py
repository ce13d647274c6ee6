"""A stretch of work that no signal interrupts: those that arrive in it are delivered after it.

SIGKILL cannot be held back, nor can signals that the process never handled in Python. Knows nothing of the work.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

#: What asks a process to end; the one whose usual handler raises comes first.
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

    handlers = ((number, signal.getsignal(number)) for number in SHIELDED)
    # None: not installed from Python, and could not be put back from here.
    former = [(number, handler) for number, handler in handlers if handler is not None]
    try:
        with _blocked():
            for number, _handler in former:
                signal.signal(number, remember)
        yield
    finally:
        try:
            with _blocked():
                # SIGINT last: its handler raises, and another thread, which is not blocked, may have been sent one.
                for number, handler in reversed(former):
                    signal.signal(number, handler)
        finally:
            _deliver(arrived)


@contextmanager
def _blocked() -> Iterator[None]:
    """Let no signal reach this thread while handlers change; those that come are delivered at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, SHIELDED)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _deliver(numbers: Sequence[int]) -> None:
    """Raise each signal, even where the handler of an earlier one raises, as SIGINT's usually does."""
    if numbers:
        try:
            signal.raise_signal(numbers[0])
        finally:
            _deliver(numbers[1:])
