"""The load client: serves loads with a server that speaks the OpenAI API, and times what it answers.

Synchronous outside; the connections live in a thread of their own while a load runs (`load_run`). Knows nothing of what
the server is, or how it was started.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from engine.errors import EngineDied, InvalidSettings
from engine.load import Load, LoadReport, Observer, Progress
from engine.request import RequestRecord
from engine.servers.address import Address
from engine.servers.dialect import Dialect, TextOf
from engine.servers.load_run import LoadRun, Target

#: Without progress for so long, a request has failed: prompts of a hundred thousand tokens take minutes.
DEFAULT_TIMEOUT_S = 600.0
#: Between two questions whether the server is alive.
_ALIVE_INTERVAL_S = 1.0
#: A server's connections break a moment before its process has ended.
_DEATH_GRACE_S = 1.0


class LoadClient:
    """Sends loads to one server. Not safe for use from several threads, but for `close`."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        dialect: Dialect,
        api_key: str | None = None,
        text_of: TextOf | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        is_alive: Callable[[], str | None] | None = None,
    ) -> None:
        """Connect to nothing yet.

        `text_of` gives a prompt's text where the server takes no token ids; `timeout_s` is how long a request may stay
        without a new token; `is_alive` says why the server is gone (None: it is not), and is asked about once a second.
        Raises InvalidSettings for a url or a time-out that cannot be.
        """
        if not timeout_s > 0:
            raise InvalidSettings(f"timeout_s is {timeout_s}; give seconds above 0")
        self._target = Target(
            address=Address(url), model=model, dialect=dialect, api_key=api_key, text_of=text_of, timeout_s=timeout_s
        )
        self._why_gone = is_alive
        self._run: LoadRun | None = None
        self._report = LoadReport()

    def run(self, load: Load, observer: Observer) -> list[RequestRecord]:
        """Serve a load until it is used up or the observer says stop.

        Times are `time.monotonic()`. Records come in the order in which requests ended, then those in flight, as
        CANCELLED with the tokens they had. The observer is called in this thread, every 20 ms while something happens
        and every 100 ms while nothing does. Raises EngineDied where `is_alive` says so, and whatever the load's own
        iterator raises.
        """
        run = self._run = LoadRun(self._target, load)
        thread = threading.Thread(target=run.main, name="load-client", daemon=True)
        thread.start()
        try:
            self._observe(run, observer)
        finally:
            run.stop()
            thread.join()
            self._run = None
            self._report = run.report or LoadReport()
        if run.error is not None:
            raise run.error
        self._require_alive_after(run.records)
        return run.records

    def report(self) -> LoadReport:
        """Say at which pace the last load was asked for and sent, and what it cost this process."""
        return self._report

    def close(self) -> None:
        """End a load that is running in another thread. Idempotent."""
        if self._run is not None:
            self._run.stop()

    def _observe(self, run: LoadRun, observer: Observer) -> None:
        asked_s = time.monotonic()
        while True:
            try:
                progress = run.next_progress(_ALIVE_INTERVAL_S)
            except queue.Empty:  # the load's iterator takes its time
                progress = _NOTHING
            if progress is None:
                return
            if time.monotonic() >= asked_s + _ALIVE_INTERVAL_S or _has_lost(progress.finished):
                self._require_alive()
                asked_s = time.monotonic()
            if progress is not _NOTHING and not observer(progress):
                return

    def _require_alive(self) -> None:
        if self._why_gone is not None and (why := self._why_gone()) is not None:
            raise EngineDied(why)

    def _require_alive_after(self, records: list[RequestRecord]) -> None:
        """Look again where the load ended with a broken connection: the process may have ended only after that."""
        deadline_s = time.monotonic() + _DEATH_GRACE_S
        while self._why_gone is not None and _has_lost(tuple(records[-1:])) and time.monotonic() < deadline_s:
            self._require_alive()
            time.sleep(0.02)


#: Stands for a time in which there was nothing to tell.
_NOTHING = Progress(time_s=0.0, num_running=0, num_waiting=0, num_tokens=0, num_prompt_tokens=0)


def _has_lost(records: tuple[RequestRecord, ...]) -> bool:
    return any(record.error is not None and record.error.startswith("connection_") for record in records)
