"""Keep a worker on the store's list while it is there. Knows nothing of what it runs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import socket
import threading
from collections.abc import Collection

import structlog

from api.owners import is_dead, owner_name
from api.stores import Stores
from db.errors import StoreError
from db.workers import EVERYTHING
from tuner.knobs import EMBEDDED, SERVERS, SIMULATED

#: Between two signs of life.
_INTERVAL_S = 10.0

log = structlog.get_logger()


class Presence:
    """Says that this worker is there, now and then and whenever its job changes; an orderly end takes it off the list.

    A list for people must stop no worker: a store that does not answer is a line in the log.
    """

    def __init__(self, stores: Stores, takes: Collection[str] | None) -> None:
        self._stores = stores
        self._devices = (EVERYTHING,) if takes is None else tuple(takes)
        self._owner = owner_name()
        self._job_id: str | None = None
        self._ended = threading.Event()
        #: Two threads say it: at once they would both register.
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._stay, name="presence", daemon=True)

    def __enter__(self) -> Presence:
        self._say()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        try:
            self._stores.workers.forget(self._owner)
        except StoreError as error:
            log.warning("presence_not_told", error=str(error))

    def runs(self, job_id: str | None) -> None:
        """Say what the worker runs now; None for nothing."""
        if job_id != self._job_id:
            self._job_id = job_id
            self._say()

    def _stay(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            self._say()

    def _say(self) -> None:
        with self._lock:
            self._say_alone()

    def _say_alone(self) -> None:
        workers = self._stores.workers
        try:
            if workers.seen(self._owner, self._job_id):
                return
            workers.forget_dead(is_dead)
            workers.register(
                self._owner,
                host=socket.gethostname(),
                version=_version(),
                devices=self._devices,
                engines=_engines(),
            )
            if self._job_id is not None:
                workers.seen(self._owner, self._job_id)
        except StoreError as error:
            log.warning("presence_not_told", error=str(error))


def _version() -> str:
    try:
        return importlib.metadata.version("wattfront")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _engines() -> tuple[str, ...]:
    """Return the engines that this process could start; whether a server is installed only its start tells."""
    return (EMBEDDED, SIMULATED, *SERVERS) if importlib.util.find_spec("torch") else (SIMULATED, *SERVERS)
