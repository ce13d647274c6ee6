"""What is announced of a night, and under which key, so that each piece of news is told once.

Knows nothing of who is told, nor how.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from db.job import ENDED
from db.schedule import Night, Schedule
from db.service import NightState

News = tuple[str, dict[str, Any]]


def news_of(schedule: Schedule, night: Night) -> Iterator[News]:
    """Yield key and body of everything there is to tell of a night: how it was decided, its end, what moved."""
    yield _news(schedule, night, night.state.value)
    has_ended = night.state is NightState.STARTED and night.job_state in ENDED
    if has_ended and night.drift is not None:
        yield _news(schedule, night, "finished")
        if night.drift.get("has_moved"):
            yield _news(schedule, night, "drifted")


def _news(schedule: Schedule, night: Night, what: str) -> News:
    body = {
        "event": f"night.{what}",
        "schedule": schedule.spec.name,
        "schedule_id": schedule.id,
        "night": night.night,
        "due_at": night.due_at.isoformat(),
        "decided_at": night.decided_at.isoformat(),
        "state": night.state.value,
        "reason": night.reason,
        "job": night.job_id,
        "job_state": None if night.job_state is None or what == "started" else night.job_state.value,
        "sentences": list(night.drift.get("sentences", [])) if night.drift and what != "started" else [],
    }
    return f"night/{night.id}/{what}", body
