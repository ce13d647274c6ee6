"""What ends a job that does not end by itself."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import structlog

from api.heartbeat import Heartbeat
from api.stores import Stores
from api.watchdog import GRACE_S, LAST_WAIT_S, LONGEST_SILENCE_S, JobCut, Watchdog
from db.errors import LeaseLost
from probes.control.shield import shielded
from tests.api.scripted import claimed, tiny_request


@dataclass(slots=True)
class Stand:
    """A watchdog on a clock that moves when told to; nobody else looks after the job."""

    heartbeat: Heartbeat
    watchdog: Watchdog
    exit_codes: list[int]
    now_s: float = 100.0

    def ask_to_cancel(self) -> None:
        self.heartbeat.claim = replace(self.heartbeat.claim, cancel_requested=True)

    @contextmanager
    def another_thread_looks(self) -> Iterator[None]:
        """Let another thread look once, as soon as this one may be interrupted."""
        thread = threading.Thread(target=self.watchdog.look)
        thread.start()
        try:
            yield
        finally:
            thread.join()


@pytest.fixture
def stand(stores: Stores, tiny_folder: Path) -> Stand:
    heartbeat = Heartbeat(stores, claimed(stores, tiny_request(tiny_folder)))
    exit_codes: list[int] = []
    made: list[Stand] = []
    watchdog = Watchdog(
        heartbeat,
        now=lambda: made[0].now_s if made else 100.0,
        give_up=exit_codes.append,
    )
    made.append(Stand(heartbeat, watchdog, exit_codes))
    return made[0]


def end_of(stand: Stand, body: Callable[[], None]) -> Exception:
    """Watch over a stretch of work that does not end by itself; return what ended it."""
    try:
        with stand.watchdog.watching():
            body()
    except (JobCut, LeaseLost) as error:
        return error
    raise AssertionError("nobody interrupted it")


def hang() -> None:
    """Wait for what never comes, as for an engine that does not answer."""
    threading.Event().wait(60)


def test_a_job_that_nobody_wants_to_end_goes_on(stand: Stand) -> None:
    """A job that shows signs of life is left alone, however long it takes."""
    with stand.watchdog.watching():
        for _ in range(10):
            stand.now_s += LONGEST_SILENCE_S
            stand.watchdog.look()
            stand.watchdog.check()


def test_a_request_to_end_is_heard_at_the_next_step(stand: Stand) -> None:
    """Cancelled, without its lease, or over its wall time: the job's own thread ends it where it passes."""
    stand.watchdog.deadline_s = 200.0
    stand.watchdog.check()
    stand.now_s = 201.0
    with pytest.raises(JobCut) as late:
        stand.watchdog.check()
    stand.ask_to_cancel()
    with pytest.raises(JobCut) as cancelled:
        stand.watchdog.check()
    assert (late.value.because, cancelled.value.because) == ("minutes", "cancelled")
    stand.heartbeat.is_lost = True
    with pytest.raises(LeaseLost):
        stand.watchdog.check()


def test_a_job_that_hangs_is_interrupted(stand: Stand) -> None:
    """BUG-26: a thread that waits for an engine which never answers is waked, and the end says what happened."""

    def body() -> None:
        stand.now_s += LONGEST_SILENCE_S + 1
        with stand.another_thread_looks():
            hang()

    with structlog.testing.capture_logs() as logs:
        cut = end_of(stand, body)
    assert isinstance(cut, JobCut)
    assert cut.because == "hung"
    assert f"no sign of life from engine or device for {LONGEST_SILENCE_S + 1:.0f} s" in str(cut)
    assert [entry["event"] for entry in logs] == ["job_interrupted"]


@pytest.mark.parametrize(
    ("ask", "kind"),
    [
        (Stand.ask_to_cancel, JobCut),
        (lambda stand: setattr(stand.heartbeat, "is_lost", True), LeaseLost),
        (lambda stand: setattr(stand.watchdog, "deadline_s", 0.0), JobCut),
    ],
    ids=["cancelled", "lease lost", "over its time"],
)
def test_a_job_that_does_not_hear_is_interrupted_after_a_while(
    stand: Stand, ask: Callable[[Stand], None], kind: type[Exception]
) -> None:
    """A job that passes nowhere gets ten seconds to end by itself."""

    def body() -> None:
        ask(stand)
        stand.watchdog.look()
        stand.now_s += GRACE_S - 1
        stand.watchdog.look()
        stand.now_s += 1
        with stand.another_thread_looks():
            hang()

    assert isinstance(end_of(stand, body), kind)


def test_a_restore_is_finished_first(stand: Stand) -> None:
    """An interruption that comes while a device is put back waits until that is done."""
    done: list[str] = []

    def body() -> None:
        stand.now_s += LONGEST_SILENCE_S + 1
        with shielded():
            stand.watchdog.look()
            done.append("restored")

    assert isinstance(end_of(stand, body), JobCut)
    assert done == ["restored"]


def test_a_job_that_cleans_up_is_not_interrupted(stand: Stand) -> None:
    """Once the job's end has begun nothing raises in its thread; if that takes minutes, the process is given up."""
    with stand.watchdog.watching():
        stand.ask_to_cancel()
        with pytest.raises(JobCut):
            stand.watchdog.check()
        for _ in range(3):
            stand.now_s += LAST_WAIT_S / 3
            stand.watchdog.look()
        assert stand.exit_codes == []
        stand.now_s += 1
        with structlog.testing.capture_logs() as logs:
            stand.watchdog.look()
    assert (stand.exit_codes, [entry["event"] for entry in logs]) == ([75], ["worker_stuck"])


def test_the_signal_is_still_what_it_was(stand: Stand) -> None:
    """A SIGHUP from elsewhere reaches its handler while a job is watched, and after it."""
    heard: list[int] = []
    former = signal.signal(signal.SIGHUP, lambda number, _: heard.append(number))
    try:
        with stand.watchdog.watching():
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, former)
    assert heard == [signal.SIGHUP, signal.SIGHUP]


def test_another_thread_is_not_interrupted(stand: Stand) -> None:
    """Only a process's main thread takes signals: a job in another one ends where it passes, and nowhere else."""
    ended: list[str] = []

    def run() -> None:
        with stand.watchdog.watching():
            stand.now_s += LONGEST_SILENCE_S + 1
            stand.watchdog.look()
            stand.ask_to_cancel()
            try:
                stand.watchdog.check()
            except JobCut as cut:
                ended.append(cut.because)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ended == ["cancelled"]
