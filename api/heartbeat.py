"""Keep a claim alive in the background while its job runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from api.stores import Stores
from db.errors import LeaseLost, StoreError
from db.job import Claim

LEASE_S = 60.0
_HEARTBEAT_S = 5.0

log = structlog.get_logger()


class Heartbeat:
    """Renews a claim's lease, and learns whether the job's end was asked for."""

    def __init__(self, stores: Stores, claim: Claim) -> None:
        self.claim = claim
        self.is_lost = False
        #: Called after each beat, from the heartbeat's thread, also once the lease is lost.
        self.on_beat: Callable[[], None] | None = None
        self._stores = stores
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._ended.wait(_HEARTBEAT_S):
            self._renew()
            if (on_beat := self.on_beat) is not None:
                on_beat()

    def _renew(self) -> None:
        if self.is_lost:
            return
        try:
            self.claim = self._stores.jobs.heartbeat(self.claim, LEASE_S)
        except LeaseLost:
            self.is_lost = True
        except StoreError as error:  # a busy database: the lease outlives several missed beats
            log.warning("heartbeat_failed", error=str(error))
