"""Ends a running job in bounded time: when its end was asked for, its lease is lost, its time is over, or it hangs.

Wherever the job's own thread passes (each step of a load, each call of an engine, each report of a download) it calls
`check`, which raises what ends the job and otherwise counts as a sign of life. A thread that passes nowhere, because an
engine or a driver does not answer, is interrupted from the heartbeat's thread by a signal; one that not even a signal
wakes is left with its process, so that the next worker can put the device back. Knows nothing of engines or devices.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import structlog

from api.heartbeat import Heartbeat
from db.errors import LeaseLost

#: From a request to end until the job's thread is interrupted where it stands: longer than between two steps of a load.
GRACE_S = 10.0
#: Without a sign of life for so long a job hangs. An engine's own limit is 180 s (`engine.host`); a cool-down takes 60.
LONGEST_SILENCE_S = 900.0
#: From the interruption until the process is given up: an engine has 5 s to end, a restore is tried several times.
LAST_WAIT_S = 120.0
#: Held back while a device is put back (`probes.control.shield`), so that a job's end never leaves one set.
_SIGNAL = signal.SIGHUP
#: sysexits.h: EX_TEMPFAIL.
_EXIT_CODE = 75

log = structlog.get_logger()


class JobCut(Exception):
    """The job ends now, in the midst of what it does: see `because`; what its trials found is kept."""

    def __init__(self, because: str, message: str | None = None) -> None:
        super().__init__(message or because)
        #: cancelled, minutes or hung, as in `Job.ended_because`.
        self.because = because
        self.message = message


class Watchdog:
    """Watches over one job, whose heartbeat looks here after each beat."""

    def __init__(
        self,
        heartbeat: Heartbeat,
        *,
        longest_silence_s: float = LONGEST_SILENCE_S,
        grace_s: float = GRACE_S,
        last_wait_s: float = LAST_WAIT_S,
        now: Callable[[], float] = time.monotonic,
        give_up: Callable[[int], None] = os._exit,
    ) -> None:
        self._heartbeat = heartbeat
        self._longest_silence_s = longest_silence_s
        self._grace_s = grace_s
        self._last_wait_s = last_wait_s
        self._now = now
        self._give_up = give_up
        self._lock = threading.Lock()
        self._thread_id: int | None = None
        self._sign_s = now()
        self._asked_s: float | None = None
        self._pending: JobCut | LeaseLost | None = None
        #: Since when the job's thread cleans up, or should.
        self._ending_s: float | None = None
        #: When the job's wall time is over, on the clock of `now`.
        self.deadline_s: float | None = None

    def check(self) -> None:
        """Count as a sign of life; raise JobCut or LeaseLost where the job is to end now."""
        self._sign_s = self._now()
        error = self._asked()
        if error is not None:
            self.stand_down()
            raise error

    def stand_down(self) -> None:
        """Interrupt the job's thread no more: it is cleaning up."""
        self._thread_id = None  # before the lock: while it is waited for, the handler must not raise
        with self._lock:
            self._ending_s = self._now() if self._ending_s is None else self._ending_s

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch over this thread while the context is open; only the main thread can be interrupted."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        former = signal.getsignal(_SIGNAL)

        def handle(number: int, frame: FrameType | None) -> None:
            if self._pending is None:
                _call(former, number, frame)
            elif self._thread_id is not None:  # else it came too late: the job has ended by itself
                self._thread_id = None
                raise self._pending

        signal.signal(_SIGNAL, handle)
        self._sign_s = self._now()
        self._thread_id = threading.get_ident()
        self._heartbeat.on_beat = self.look
        try:
            yield
        finally:
            self._heartbeat.on_beat = None
            self.stand_down()
            signal.signal(_SIGNAL, former)

    def look(self) -> None:
        """Interrupt the job's thread if it should have ended by itself; called now and then from another thread."""
        now_s = self._now()
        job_id = self._heartbeat.claim.job_id
        if self._ending_s is not None:
            if now_s - self._ending_s > self._last_wait_s:
                log.critical("worker_stuck", job=job_id, exit_code=_EXIT_CODE)
                self._give_up(_EXIT_CODE)
            return
        error = self._overdue(now_s)
        with self._lock:
            thread_id = self._thread_id
            if error is None or thread_id is None:
                return
            log.warning("job_interrupted", job=job_id, reason=str(error))
            self._pending, self._ending_s = error, now_s
            signal.pthread_kill(thread_id, _SIGNAL)

    def _asked(self) -> JobCut | LeaseLost | None:
        """Return what somebody else wants of the job, or its time."""
        claim = self._heartbeat.claim
        if self._heartbeat.is_lost:
            return LeaseLost(claim.job_id, owner=claim.owner)
        if claim.cancel_requested:
            return JobCut("cancelled")
        if self.deadline_s is not None and self._now() > self.deadline_s:
            return JobCut("minutes", "its wall time was over in the midst of a trial, which was cut short")
        return None

    def _overdue(self, now_s: float) -> JobCut | LeaseLost | None:
        """Return why the job's thread must be interrupted, if it has had its time to end by itself."""
        asked = self._asked()
        if asked is None:
            self._asked_s = None
        elif self._asked_s is None:
            self._asked_s = now_s
        if asked is not None and self._asked_s is not None and now_s - self._asked_s >= self._grace_s:
            return asked
        silence_s = now_s - self._sign_s
        if silence_s <= self._longest_silence_s:
            return None
        return JobCut(
            "hung",
            f"no sign of life from engine or device for {silence_s:.0f} s: its trial was cut short, its device given "
            "back. See the worker's log; then begin anew with what was measured: wattfront tune JOB.yaml --after "
            f"{self._heartbeat.claim.job_id[:8]}",
        )


def _call(handler: object, number: int, frame: FrameType | None) -> None:
    """Do what a signal did before."""
    if callable(handler):
        handler(number, frame)
    elif handler == signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
