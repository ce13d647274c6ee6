"""What a person can get wrong at the edge; each message is a sentence with field, value and remedy.

Those that only a caller over HTTP can get wrong, `Refusal` and its kinds, carry status and title of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from api.complaints import cut
from db.errors import StoreError
from engine.errors import CheckpointError, InvalidSettings, UnknownModel
from probes.errors import ProbeError
from tuner.errors import InvalidRequest


class UsageError(Exception):
    """Correct what the message names."""


class JobFileError(UsageError):
    """Correct the line that the message names."""


class Refusal(UsageError):
    """Correct what the message names; nothing was stored."""

    status: ClassVar[int] = 422
    title: ClassVar[str] = "request refused"

    def headers(self) -> dict[str, str]:
        """Return what the answer's header says beside the problem."""
        return {}

    def members(self) -> dict[str, Any]:
        """Return what the problem says in fields of its own, beside its sentence."""
        return {}


class WrongFields(Refusal):
    """Correct the fields that `errors` names, each with a sentence; the message is the first of them."""

    def __init__(self, complaints: Mapping[str, str]) -> None:
        super().__init__(next(iter(complaints.values())))
        self._complaints = dict(complaints)

    def members(self) -> dict[str, Any]:
        """Return every complaint with the field that it is of."""
        return {"errors": [{"field": cut(field), "detail": cut(words)} for field, words in self._complaints.items()]}


class NotJson(Refusal):
    """Send one JSON object in UTF-8."""

    status = 400
    title = "not JSON"


class UnreadableUrl(Refusal):
    """Ask with a path and a query of printable characters."""

    status = 400
    title = "unreadable URL"


class UnknownHost(Refusal):
    """Ask for a name that the service answers to; WATTFRONT_ALLOWED_HOSTS adds names."""

    status = 400
    title = "unknown host"


class KeyNeeded(Refusal):
    """Send `Authorization: Bearer KEY` with a key of `wattfront keys create`."""

    status = 401
    title = "key needed"

    def headers(self) -> dict[str, str]:
        """Name the way to send a key."""
        return {"WWW-Authenticate": 'Bearer realm="wattfront"'}


class ScopeTooSmall(Refusal):
    """Use a key of the scope that the message names."""

    status = 403
    title = "scope too small"


class ForeignOrigin(Refusal):
    """Post from a program, or from a page of this service."""

    status = 403
    title = "foreign origin"


class KeyTaken(Refusal):
    """Use a new idempotency key for another request."""

    status = 409
    title = "idempotency key in use"


class BodyTooLarge(Refusal):
    """Send less."""

    status = 413
    title = "body too large"


class QueryTooLong(Refusal):
    """Ask with a shorter URL."""

    status = 414
    title = "query too long"


class NotJsonMedia(Refusal):
    """Say `Content-Type: application/json`."""

    status = 415
    title = "wrong media type"


class NotFormMedia(Refusal):
    """Say `Content-Type: application/x-www-form-urlencoded`."""

    status = 415
    title = "wrong media type"


class HeadersTooLarge(Refusal):
    """Send fewer or shorter header fields."""

    status = 431
    title = "headers too large"


class TooManyJobs(Refusal):
    """Wait until some jobs have ended, or cancel some."""

    status = 429
    title = "too many open jobs"


class TooManyRequests(Refusal):
    """Ask again after the seconds that the answer's `Retry-After` names."""

    status = 429
    title = "too many requests"

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def headers(self) -> dict[str, str]:
        """Say when to ask again."""
        return {"Retry-After": str(self.retry_after_s)}


#: What is the asker's to correct: the command line ends with exit code 2, HTTP answers 4xx.
BAD_INPUT = (UsageError, InvalidRequest, UnknownModel, CheckpointError, InvalidSettings, ProbeError, StoreError)
