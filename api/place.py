"""Where commands find jobs and schedules: the database of this machine, or a server elsewhere.

Both give the same records, so that what a command prints is the same. Knows nothing of terminals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import click

from api import schemas
from api.errors import UsageError
from api.settings import Settings

if TYPE_CHECKING:  # what a command needs is imported when it runs
    from api.explanation_schemas import ExplanationOut
    from api.plot.render import Form
    from api.plot.theme import Scheme
    from api.recommend_schemas import RecommendationOut, RecommendationQuery
    from api.remote import Remote
    from api.schedule_desk import ScheduleDesk
    from api.schedule_schemas import NightOut, ScheduleOut
    from api.stores import Stores
    from db.schedule import Schedule
    from tuner.request import TuneRequest

#: In click's context: the server that `--server` names, with its key.
_SERVER = "wattfront.server"
#: Due times that are told of a schedule.
_NUM_DUES = 5
#: Whoever can open the database.
_ACTOR = "local"


class Place(Protocol):
    """What commands ask for that work on this machine's database and on a server alike.

    Ids may be given by their first characters. Raises StoreError here, UsageError with the server's words there.
    """

    def jobs(self, limit: int) -> list[schemas.JobOut]:
        """Return jobs, newest first."""
        ...

    def front(self, job: str) -> schemas.FrontOut:
        """Return a job's front as it is now."""
        ...

    def picture(self, job: str, form: Form, scheme: Scheme) -> bytes:
        """Return a job's front as a picture."""
        ...

    def explanation(self, job: str) -> ExplanationOut:
        """Return what a job found."""
        ...

    def cancel(self, job: str) -> schemas.JobOut:
        """Ask for a job's end, and return the job as it then is."""
        ...

    def recommendation(self, query: RecommendationQuery) -> RecommendationOut:
        """Return the stored point to use under given limits."""
        ...

    def export(self, job: str, form: str, number: int | None) -> bytes:
        """Return a job's point as another program takes it."""
        ...

    def schedules(self, limit: int) -> list[ScheduleOut]:
        """Return schedules, newest first."""
        ...

    def schedule(self, name: str) -> ScheduleOut:
        """Return one schedule."""
        ...

    def dues(self, name: str) -> list[str]:
        """Return a schedule's next due times in its zone."""
        ...

    def nights(self, name: str, limit: int, before: int | None) -> list[NightOut]:
        """Return what became of a schedule's nights, newest first."""
        ...

    def create_schedule(self, fields: Mapping[str, Any]) -> ScheduleOut:
        """Store a schedule by its fields, as POST /v1/schedules takes them."""
        ...

    def pause_schedule(self, name: str) -> ScheduleOut:
        """Start nothing until the schedule is resumed."""
        ...

    def resume_schedule(self, name: str) -> ScheduleOut:
        """Start what is due from now on."""
        ...

    def run_schedule(self, name: str) -> NightOut:
        """Start a run beside the calendar."""
        ...

    def delete_schedule(self, name: str) -> str:
        """Delete a schedule and return its name; its jobs stay."""
        ...


def server_of(context: click.Context) -> Remote | None:
    """Return the server that `--server` names; None without that."""
    server: Remote | None = context.meta.get(_SERVER)
    return server


def place(settings: Settings, database_url: str | None = None) -> Place:
    """Return where the running command finds what it asks for. Raises UsageError, StoreError."""
    server = server_of(click.get_current_context())
    if server is None:
        return Local(settings, database_url)
    if database_url is not None:
        raise UsageError(f"--database is {database_url!r}: a server has its own; leave out --database or --server")
    return server


def use_server(context: click.Context, url: str, key: str | None) -> None:
    """Let every command of a context ask a server. Raises UsageError for a URL that cannot be one."""
    from api.remote import Remote

    context.meta[_SERVER] = context.with_resource(Remote(url, key))


class Local:
    """The database of this machine."""

    def __init__(self, settings: Settings, database_url: str | None = None) -> None:
        from api.stores import open_stores

        self._settings = settings
        self.stores: Stores = open_stores(
            database_url or settings.database_url, busy_timeout_s=settings.database_timeout_s
        )

    def jobs(self, limit: int) -> list[schemas.JobOut]:
        """See Place."""
        from api.records import job_out
        from api.stores import utc_now

        now = utc_now()
        return [job_out(job, now) for job in self.stores.jobs.list(limit=limit)]

    def front(self, job: str) -> schemas.FrontOut:
        """See Place."""
        from api.records import front_of_job

        return front_of_job(self.stores, job)

    def picture(self, job: str, form: Form, scheme: Scheme) -> bytes:
        """See Place."""
        from api.figures import figures
        from api.plot.pictures import Look, front_picture
        from api.records import front_of_job

        found = self.stores.jobs.get(job)
        front = front_of_job(self.stores, found.id).model_dump(mode="json")
        shown = figures(found, self.stores.trial_figures.of_job(found.id), front)
        return front_picture(found, shown, Look(form=form, scheme=scheme))

    def explanation(self, job: str) -> ExplanationOut:
        """See Place."""
        from api.explanation import explanation_of_job

        return explanation_of_job(self.stores, job)

    def cancel(self, job: str) -> schemas.JobOut:
        """See Place."""
        from api.records import job_out
        from api.stores import utc_now

        return job_out(self.stores.jobs.request_cancel(self.stores.jobs.get(job).id), utc_now())

    def recommendation(self, query: RecommendationQuery) -> RecommendationOut:
        """See Place."""
        from api.recommender import Recommender
        from api.stores import utc_now

        return Recommender(self.stores, utc_now).answer(query)

    def export(self, job: str, form: str, number: int | None) -> bytes:
        """See Place."""
        from api.export.point import exported

        return exported(self.stores, job, form, number=number).content

    def schedules(self, limit: int) -> list[ScheduleOut]:
        """See Place."""
        return [_shown(schedule) for schedule in self.stores.schedules.list(limit=limit)]

    def schedule(self, name: str) -> ScheduleOut:
        """See Place."""
        return _shown(self.stores.schedules.get(name))

    def dues(self, name: str) -> list[str]:
        """See Place."""
        from api.calendar_rules import due_after, rule_of
        from api.schedule_schemas import due_out
        from api.stores import utc_now

        found = self.stores.schedules.get(name)
        rule = rule_of(found.spec)
        return [
            due_out(due, rule).due_local
            for due in islice(due_after(rule, max(utc_now(), found.decided_until)), _NUM_DUES)
        ]

    def nights(self, name: str, limit: int, before: int | None) -> list[NightOut]:
        """See Place."""
        from api.schedule_schemas import night_out

        schedule = self.stores.schedules.get(name)
        return [night_out(night) for night in self.stores.nights.list(schedule.id, limit=limit, before=before)]

    def create_schedule(self, fields: Mapping[str, Any]) -> ScheduleOut:
        """See Place; on this machine its job may also name files."""
        from api.calendar_rules import rule_of
        from api.jobfile import located_here
        from api.schedule_input import read_schedule

        spec = read_schedule(dict(fields))
        rule_of(spec)
        spec = dataclasses.replace(spec, request=self.noted(located_here(spec.request)))
        return _shown(self._desk().create(spec, actor=_ACTOR)[0])

    def noted(self, request: TuneRequest) -> TuneRequest:
        """Return a request with the hash of the uploaded trace that it names. Raises InvalidRequest."""
        from api.workload_cache import noted, uploaded_trace

        trace = uploaded_trace(request.workload, self.stores.workloads)
        return dataclasses.replace(request, workload=noted(request.workload, trace))

    def pause_schedule(self, name: str) -> ScheduleOut:
        """See Place."""
        return _shown(self._desk().pause(name, actor=_ACTOR))

    def resume_schedule(self, name: str) -> ScheduleOut:
        """See Place."""
        return _shown(self._desk().resume(name, actor=_ACTOR))

    def run_schedule(self, name: str) -> NightOut:
        """See Place."""
        from api.schedule_schemas import night_out

        return night_out(self._desk().run(name, actor=_ACTOR))

    def delete_schedule(self, name: str) -> str:
        """See Place."""
        return self._desk().delete(name, actor=_ACTOR).spec.name

    def _desk(self) -> ScheduleDesk:
        from api.operator_file import load_operator
        from api.schedule_desk import ScheduleDesk
        from api.stores import utc_now

        return ScheduleDesk(self.stores, load_operator(self._settings.operator_file), utc_now)


def _shown(schedule: Schedule) -> ScheduleOut:
    from api.schedule_schemas import schedule_out
    from api.stores import utc_now

    return schedule_out(schedule, utc_now())
