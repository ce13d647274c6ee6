"""`/healthz`: the process answers. `/readyz`: the database does too.

Both are outside keys and rates, so that a crowd elsewhere takes no server out of service; so the database is asked once
a second at most, whoever asks us.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import cast

from fastapi import APIRouter, Request

from db import migrate
from db.database import Database
from db.errors import StoreError

#: How long an answer of the database is believed.
BELIEVED_S = 1.0

router = APIRouter(tags=["health"])


@router.get("/healthz")
def healthz() -> dict[str, str]:
    """Answer as long as the process lives."""
    return {"status": "ok"}


class Readiness:
    """Whether the database is there and of this version, as of the last second."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_s = float("-inf")
        self._error: StoreError | None = None

    def require(self) -> None:
        """Raise what the database said when it was last asked, if that was an error. Raises StoreError."""
        with self._lock:
            if self._clock() - self._looked_s >= BELIEVED_S:
                try:
                    migrate.require_current(self._database)
                    self._error = None
                except StoreError as error:
                    self._error = error
                self._looked_s = self._clock()
            if self._error is not None:
                raise self._error.with_traceback(None)


@router.get("/readyz")
def readyz(request: Request) -> dict[str, str]:
    """Answer when the database is there and of this version, as of the last second."""
    cast(Readiness, request.app.state.readiness).require()
    return {"status": "ok"}
