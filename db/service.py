"""The words that the service's rows are in. Knows nothing of SQL."""

from __future__ import annotations

from enum import StrEnum


class ScheduleState(StrEnum):
    """Whether a schedule starts anything."""

    ACTIVE = "active"
    PAUSED = "paused"


class Overlap(StrEnum):
    """What becomes of a night whose predecessor still runs."""

    SKIP = "skip"  # recorded as skipped, with the job that runs
    QUEUE = "queue"  # its job waits behind the other
    REPLACE = "replace"  # the other is cancelled


class NightState(StrEnum):
    """What became of a due time."""

    STARTED = "started"  # its job is in the queue, runs, or has ended: see the job
    SKIPPED = "skipped"  # the one before still ran, or the schedule was paused
    MISSED = "missed"  # nobody was there in time


class Scope(StrEnum):
    """What a key may do; each may what the ones before it may."""

    READ = "read"
    TUNE = "tune"
    ADMIN = "admin"

    def covers(self, needed: Scope) -> bool:
        """Tell whether a key of this scope may do what another is needed for."""
        order = list(Scope)
        return order.index(self) >= order.index(needed)


class DeliveryState(StrEnum):
    """How far a notification is."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"  # given up after the last attempt
