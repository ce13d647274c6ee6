"""Where schedules are made, changed and started by hand, by whoever may: checked, stored, written down.

The same for the HTTP service and the command line. Knows nothing of headers or terminals.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime
from typing import Any

from api.errors import KeyTaken, Refusal
from api.night_keeper import NightKeeper
from api.operator_file import Operator
from api.schedule_input import MAX_SCHEDULES, TooManySchedules, check_timing
from api.stores import Stores
from api.submit import MAX_KEY_CHARACTERS
from db.schedule import Night, Schedule, ScheduleSpec
from db.service import ScheduleState


class ScheduleDesk:
    """Takes what people ask of schedules."""

    def __init__(self, stores: Stores, operator: Operator, now: Callable[[], datetime]) -> None:
        self._stores = stores
        self._operator = operator
        self._now = now

    def create(self, spec: ScheduleSpec, *, actor: str, idempotency_key: str | None = None) -> tuple[Schedule, bool]:
        """Store a schedule; return it, and whether it is new. The same key and spec again give the one it made.

        Raises InvalidRequest, KeyTaken, TooManySchedules or StoreError; nothing is stored then.
        """
        check_timing(spec, self._operator)
        key = None if idempotency_key is None else stored_key(idempotency_key, actor)
        known = None if key is None else self._stores.schedules.with_key(key)
        if known is None:
            self._require_room()
        schedule = known or self._stores.schedules.create(spec, created_by=actor, idempotency_key=key)
        if schedule.spec != spec:
            raise KeyTaken(
                f"this Idempotency-Key made schedule {schedule.spec.name!r}, which says something else; use a new key"
            )
        if known is None:
            self._note("create", schedule, actor, {"name": spec.name, **_timing(spec)})
        return schedule, known is None

    def change(self, name: str, spec: ScheduleSpec, *, actor: str, expected_version: int) -> Schedule:
        """Store what a schedule says from now on. Raises InvalidRequest or StoreError."""
        check_timing(spec, self._operator)
        schedule = self._stores.schedules.change(name, spec, expected_version=expected_version)
        self._note("change", schedule, actor, {"version": schedule.version, **_timing(spec)})
        return schedule

    def pause(self, name: str, *, actor: str) -> Schedule:
        """Start nothing until it is resumed. Raises StoreError."""
        return self._done("pause", self._stores.schedules.pause(name), actor)

    def resume(self, name: str, *, actor: str) -> Schedule:
        """Start what is due from now on; what came up to now is recorded as skipped first. Raises StoreError."""
        schedule = self._stores.schedules.get(name)
        if schedule.state is ScheduleState.PAUSED:
            NightKeeper(self._stores, self._now).decide(schedule)
        return self._done("resume", self._stores.schedules.resume(name), actor)

    def delete(self, name: str, *, actor: str) -> Schedule:
        """Delete a schedule and its nights; the jobs stay. Raises StoreError."""
        return self._done("delete", self._stores.schedules.delete(name), actor)

    def run(self, name: str, *, actor: str, idempotency_key: str | None = None) -> Night:
        """Start a run beside the calendar. The same key again gives the night it started. Raises StoreError.

        Who asks again, as after a lost answer, starts nothing, so that the audit log tells of the first time alone.
        """
        schedule = self._stores.schedules.get(name)
        key = None if idempotency_key is None else stored_key(idempotency_key, f"{actor}/{schedule.id}")
        now = self._now()
        night = self._stores.nights.run_now(schedule.id, now=now, idempotency_key=key)
        if night.decided_at == now:
            self._note("run", schedule, actor, {"night": night.night, "state": night.state.value, "job": night.job_id})
        return night

    def _require_room(self) -> None:
        if len(self._stores.schedules.list(limit=MAX_SCHEDULES)) >= MAX_SCHEDULES:
            raise TooManySchedules(f"there are {MAX_SCHEDULES} schedules, and more are not taken; delete one first")

    def _done(self, action: str, schedule: Schedule, actor: str) -> Schedule:
        self._note(action, schedule, actor, {"name": schedule.spec.name})
        return schedule

    def _note(self, action: str, schedule: Schedule, actor: str, detail: dict[str, Any]) -> None:
        subject = f"schedule/{schedule.id}"
        self._stores.audit.add(actor=actor, action=f"schedule.{action}", subject=subject, detail=detail)


def stored_key(key: str, caller: str) -> str:
    """Return a key as it is stored: of one length, and apart from those of other callers. Raises Refusal."""
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS:
        raise Refusal(f"Idempotency-Key has {len(key)} characters; give 1 to {MAX_KEY_CHARACTERS}")
    return f"schedule:{hashlib.sha256(f'{caller}/{key}'.encode()).hexdigest()}"


def _timing(spec: ScheduleSpec) -> dict[str, Any]:
    window = None if spec.window_start is None else f"{spec.window_start}-{spec.window_end}"
    return {"cron": spec.cron, "nightly": window, "timezone": spec.timezone}
