"""Work that no signal interrupts."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from probes.control.shield import SHIELDED, shielded


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """What arrived at the handlers of the program, in order."""
    heard: list[int] = []

    def hear(number: int, _frame: FrameType | None) -> None:
        heard.append(number)

    former = {number: signal.signal(number, hear) for number in SHIELDED}
    yield heard
    for number, handler in former.items():
        signal.signal(number, handler)


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def test_signals_wait_until_the_work_is_done(heard: list[int]) -> None:
    """Signals that arrive in the block reach the former handlers after it, each once, in order."""
    with shielded():
        send(signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        assert heard == []
    assert heard == [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


def test_the_former_handlers_are_back_afterwards(heard: list[int]) -> None:
    """After the block a signal is handled at once, as before it."""
    before = [signal.getsignal(number) for number in SHIELDED]
    with shielded():
        pass
    assert before == [signal.getsignal(number) for number in SHIELDED]
    send(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_shields_nest(heard: list[int]) -> None:
    """A signal in an inner block waits for the end of the outermost."""
    with shielded():
        with shielded():
            send(signal.SIGTERM)
        assert heard == []
    assert heard == [signal.SIGTERM]


def test_an_interrupt_is_raised_after_the_work() -> None:
    """Ctrl-C in the block lets the work finish, then raises KeyboardInterrupt as usual."""
    done: list[str] = []

    def work() -> None:
        with shielded():
            send(signal.SIGINT)
            done.append("work")

    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        signal.signal(signal.SIGINT, former)
    assert done == ["work"]


def test_a_handler_that_raises_does_not_swallow_the_next_signal(heard: list[int]) -> None:
    """After KeyboardInterrupt from the first signal the second one is delivered too."""

    def work() -> None:
        with shielded():
            send(signal.SIGINT, signal.SIGTERM)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        work()
    assert heard == [signal.SIGTERM]


def test_an_error_in_the_work_comes_out(heard: list[int]) -> None:
    """The block's own exception is raised, handlers are back, and signals delivered."""

    def work() -> None:
        with shielded():
            send(signal.SIGTERM)
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        work()
    assert heard == [signal.SIGTERM]


def test_an_ignored_signal_stays_ignored() -> None:
    """A signal that the program ignores is ignored after the block too."""
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with shielded():
            send(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, former)


def test_other_threads_pass_through() -> None:
    """Off the main thread, where no handler can be set, the block just runs."""

    def work() -> str:
        with shielded():
            return "done"

    with ThreadPoolExecutor(max_workers=1) as pool:
        assert pool.submit(work).result(timeout=30) == "done"


def test_a_process_ends_by_the_signal_after_its_work() -> None:
    """With the default handler the work is finished first, and the exit status still tells the signal."""
    code = (
        "import os, signal; from probes.control.shield import shielded\n"
        "with shielded():\n"
        "    os.kill(os.getpid(), signal.SIGTERM); print('finished', flush=True)\n"
        "print('not reached', flush=True)"
    )
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False, timeout=60)
    assert (ended.stdout, ended.returncode) == (b"finished\n", -signal.SIGTERM)


def interrupt_at_swap(monkeypatch: pytest.MonkeyPatch, number: int, interrupt: Callable[[], None]) -> None:
    """Let SIGINT arrive right after the next change of a signal's handler."""
    real, is_due = signal.signal, [True]

    def swap(changed: int, handler: Any) -> Any:
        former = real(changed, handler)
        if changed == number and is_due:
            is_due.clear()
            interrupt()
        return former

    monkeypatch.setattr(signal, "signal", swap)


#: As the kernel sends it to this thread; and as it comes through another thread, whatever this one has blocked.
INTERRUPTS = (lambda: signal.raise_signal(signal.SIGINT), _thread.interrupt_main)


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@pytest.mark.parametrize("number", SHIELDED)
def test_an_interrupt_at_the_end_loses_no_handler(
    heard: list[int], monkeypatch: pytest.MonkeyPatch, number: int, interrupt: Callable[[], None]
) -> None:
    """Ctrl-C while handlers are put back comes out after all are back and what arrived before is delivered."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = [signal.getsignal(one) for one in SHIELDED]

    def work() -> None:
        with shielded():
            send(signal.SIGTERM)
            interrupt_at_swap(monkeypatch, number, interrupt)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert [signal.getsignal(one) for one in SHIELDED] == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()).isdisjoint(SHIELDED)
    assert heard == [signal.SIGTERM]


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@pytest.mark.parametrize("number", SHIELDED)
def test_an_interrupt_at_the_beginning_waits(
    heard: list[int], monkeypatch: pytest.MonkeyPatch, number: int, interrupt: Callable[[], None]
) -> None:
    """Ctrl-C while the shield is being put up is held back like any that comes later."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt_at_swap(monkeypatch, number, interrupt)
    done: list[str] = []

    def work() -> None:
        with shielded():
            done.append("work")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["work"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()).isdisjoint(SHIELDED)
