"""Types of query parameters that several routes take: nothing gets past them that a database would refuse."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, StringConstraints


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:  # year 1 or 9999, and an offset that leads beyond
        raise ValueError("give a time between the years 1 and 9999 in UTC") from error


def _written_out(text: object) -> object:
    """Refuse seconds since 1970, which pydantic would take: nobody can see what they mean."""
    if isinstance(text, str) and "T" not in text.upper() and " " not in text:
        raise ValueError("give date, time and offset, as 2026-03-29T02:00:00Z")
    return text


#: Names and parts of names; PostgreSQL keeps no NUL.
Word = Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=r"^[^\x00]+$")]
#: A job's id or the start of it.
JobId = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z]{4,32}$")]
#: With its offset, as 2026-03-29T02:00:00Z: without one nobody knows when it is.
Moment = Annotated[AwareDatetime, BeforeValidator(_written_out), AfterValidator(_in_utc)]
