"""Times as people read them: how long ago or until, and the exact UTC time. Pure; knows no page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

#: From here on a date says more than a number of days.
_FAR = timedelta(days=30)
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def ago(at: datetime, now: datetime) -> str:
    """Return how long ago a time was, or until it comes: `5 min ago`, `in 3 h`; far from now its date in UTC."""
    distance = now - at
    seconds = abs(distance.total_seconds())
    if abs(distance) >= _FAR:
        return at.astimezone(UTC).strftime("%Y-%m-%d")
    if seconds < 60:
        return "just now" if distance >= timedelta(0) else "in a moment"
    size, unit = next((size, unit) for size, unit in _STEPS if seconds >= size)
    words = f"{int(seconds // size)} {unit}"
    return f"{words} ago" if distance > timedelta(0) else f"in {words}"


def utc_words(at: datetime) -> str:
    """Return a time exactly: `2026-03-01 12:00:05 UTC`."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def utc_iso(at: datetime) -> str:
    """Return a time as programs read it: `2026-03-01T12:00:05Z`."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def lasting(seconds: float) -> str:
    """Return a duration in its two largest units: `2 h 5 min`, `45 s`."""
    total = int(max(0.0, seconds))
    if total < 60:
        return f"{total} s"
    minutes, hours, days = total // 60 % 60, total // 3_600 % 24, total // 86_400
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
