"""`/v1/schedules`: jobs that repeat, what is due next, and what became of each night."""

from __future__ import annotations

import dataclasses
import re
from itertools import islice
from typing import Annotated, Any, cast

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from api.access import actor_of, needs
from api.bodies import read_json
from api.calendar_rules import due_after, rule_of
from api.document_bodies import body_of
from api.errors import KeyTaken, Refusal
from api.operator_file import Operator
from api.routes.stores_of import StoresDep
from api.schedule_desk import ScheduleDesk
from api.schedule_input import ScheduleChangeIn, ScheduleIn, TooManySchedules, VersionNeeded, read_change, read_schedule
from api.schedule_schemas import (
    DuesOut,
    NightOut,
    NightsOut,
    ScheduleOut,
    SchedulesOut,
    due_out,
    night_out,
    schedule_out,
)
from api.stores import utc_now
from api.submit import check
from db.schedule import Schedule
from db.service import Scope

router = APIRouter(prefix="/v1/schedules", tags=["schedules"])

#: The largest number of a row.
_MAX_ID = 2**63 - 1
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
_EXAMPLE = {
    "name": "llama-nightly",
    "job": {
        "model": "llama-3.1-8b",
        "device": "simulated:h100-sxm",
        "sla": {"ttft_p99_ms": 500, "tpot_p99_ms": 30},
        "budget": {"trials": 60},
    },
    "nightly": {"start": "01:00", "end": "05:00"},
    "timezone": "Europe/Berlin",
}

ScheduleName = Annotated[str, Path(pattern=_NAME, description="its name, its id, or at least 4 characters of the id")]
Key = Annotated[str | None, Header(description="the same key and request again change nothing more")]


def _problems(*kinds: type[Refusal]) -> dict[int | str, dict[str, Any]]:
    return {kind.status: {"description": kind.title} for kind in kinds}


_CREATED = _problems(KeyTaken, TooManySchedules) | {
    200: {"model": ScheduleOut, "description": "the schedule that this key made before"}
}
_CHANGED = _problems(VersionNeeded) | {412: {"description": "it is of another version by now"}}


@router.get("")
def list_schedules(
    stores: StoresDep,
    limit: Annotated[int, Query(ge=1, le=200, description="schedules at most")] = 50,
    before: Annotated[str | None, Query(pattern=_NAME, description="`next` of the page before")] = None,
) -> SchedulesOut:
    """List schedules, newest first."""
    found, now = stores.schedules.list(limit=limit + 1, before=before), utc_now()
    return SchedulesOut(
        items=[schedule_out(schedule, now) for schedule in found[:limit]],
        next=found[limit - 1].id if len(found) > limit else None,
    )


@router.post(
    "",
    status_code=201,
    openapi_extra=body_of(ScheduleIn.model_json_schema(), _EXAMPLE),
    responses=_CREATED,
    dependencies=[needs(Scope.TUNE)],
)
async def create_schedule(
    request: Request, response: Response, stores: StoresDep, idempotency_key: Key = None
) -> ScheduleOut:
    """Store a schedule; its first run is the first that is due from now on."""
    fields = await read_json(request)

    def create() -> tuple[Schedule, bool]:
        spec = read_schedule(fields)
        spec = dataclasses.replace(spec, request=check(spec.request, _operator(request), stores.workloads))
        return _desk(request).create(spec, actor=actor_of(request), idempotency_key=idempotency_key)

    schedule, is_new = await run_in_threadpool(create)
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"/v1/schedules/{schedule.id}"
    return _answer(request, response, schedule)


@router.get("/{schedule}")
def get_schedule(schedule: ScheduleName, response: Response, stores: StoresDep) -> ScheduleOut:
    """Show one schedule; the answer's `ETag` is its version."""
    found = stores.schedules.get(schedule)
    response.headers["ETag"] = f'"{found.version}"'
    return schedule_out(found, utc_now())


@router.patch(
    "/{schedule}",
    openapi_extra=body_of(ScheduleChangeIn.model_json_schema(), {"nightly": {"start": "02:00", "end": "06:00"}}),
    responses=_CHANGED,
    dependencies=[needs(Scope.TUNE)],
)
async def change_schedule(
    request: Request,
    response: Response,
    schedule: ScheduleName,
    stores: StoresDep,
    if_match: Annotated[
        str | None, Header(description="the version that the change is of, as the ETag says it, or *")
    ] = None,
) -> ScheduleOut:
    """Change the fields that are given. What was due before now is not made up for under new times."""
    fields = await read_json(request)

    def change() -> Schedule:
        found = stores.schedules.get(schedule)
        version = _expected(if_match, found)
        spec = read_change(fields, found.spec)
        if spec.request != found.spec.request:
            spec = dataclasses.replace(spec, request=check(spec.request, _operator(request), stores.workloads))
        return _desk(request).change(found.id, spec, actor=actor_of(request), expected_version=version)

    return _answer(request, response, await run_in_threadpool(change))


@router.delete("/{schedule}", status_code=204, dependencies=[needs(Scope.TUNE)])
def delete_schedule(request: Request, schedule: ScheduleName) -> None:
    """Delete a schedule and its history. The jobs of its nights stay, and one that runs goes on."""
    _desk(request).delete(schedule, actor=actor_of(request))


@router.post("/{schedule}/pause", dependencies=[needs(Scope.TUNE)])
def pause_schedule(request: Request, response: Response, schedule: ScheduleName) -> ScheduleOut:
    """Start nothing until it is resumed; nights meanwhile are recorded as skipped."""
    return _answer(request, response, _desk(request).pause(schedule, actor=actor_of(request)))


@router.post("/{schedule}/resume", dependencies=[needs(Scope.TUNE)])
def resume_schedule(request: Request, response: Response, schedule: ScheduleName) -> ScheduleOut:
    """Start what is due from now on."""
    return _answer(request, response, _desk(request).resume(schedule, actor=actor_of(request)))


@router.post("/{schedule}/run", status_code=201, dependencies=[needs(Scope.TUNE)])
def run_schedule(request: Request, schedule: ScheduleName, idempotency_key: Key = None) -> NightOut:
    """Start a run now, as the overlap policy allows: the answer says whether it was started or skipped."""
    return night_out(_desk(request).run(schedule, actor=actor_of(request), idempotency_key=idempotency_key))


@router.get("/{schedule}/nights")
def list_nights(
    schedule: ScheduleName,
    stores: StoresDep,
    limit: Annotated[int, Query(ge=1, le=200, description="nights at most")] = 50,
    before: Annotated[int | None, Query(ge=1, le=_MAX_ID, description="`next` of the page before")] = None,
) -> NightsOut:
    """List what became of each night, newest first, and what moved since the one before."""
    found = stores.nights.list(stores.schedules.get(schedule).id, limit=limit + 1, before=before)
    return NightsOut(
        items=[night_out(night) for night in found[:limit]],
        next=found[limit - 1].id if len(found) > limit else None,
    )


@router.get("/{schedule}/next")
def list_next(
    schedule: ScheduleName,
    stores: StoresDep,
    count: Annotated[int, Query(ge=1, le=100, description="due times at most")] = 10,
) -> DuesOut:
    """List what is due next, each with its local time and offset."""
    found = stores.schedules.get(schedule)
    rule = rule_of(found.spec)
    dues = islice(due_after(rule, max(utc_now(), found.decided_until)), count)
    return DuesOut(timezone=found.spec.timezone, items=[due_out(due, rule) for due in dues])


def _operator(request: Request) -> Operator:
    return cast(Operator, request.app.state.operator)


def _desk(request: Request) -> ScheduleDesk:
    return ScheduleDesk(request.app.state.stores, _operator(request), utc_now)


def _answer(request: Request, response: Response, schedule: Schedule) -> ScheduleOut:
    """Answer with a schedule that was just changed, and let the service look whether it is due sooner."""
    if request.app.state.nightly is not None:
        request.app.state.nightly.wake()
    response.headers["ETag"] = f'"{schedule.version}"'
    return schedule_out(schedule, utc_now())


def _expected(if_match: str | None, found: Schedule) -> int:
    """Return the version that a change is of. Raises VersionNeeded, Refusal."""
    if if_match is None:
        raise VersionNeeded(f'send If-Match with the version that the change is of, now "{found.version}"')
    if if_match.strip() == "*":
        return found.version
    match = re.fullmatch(r'\s*"?(\d{1,9})"?\s*', if_match, flags=re.ASCII)
    if match is None:
        raise Refusal(f'If-Match is {if_match!r}: give a version, as in "{found.version}", or *')
    return int(match[1])
