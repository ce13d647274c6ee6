"""The command `schedules`: jobs that repeat at night, and what became of each night.

It works on the database; whichever server runs keeps the nights. Knows nothing of HTTP.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from api.errors import UsageError
from api.place import place, server_of
from api.settings import Settings
from db.service import Overlap

if TYPE_CHECKING:  # what a command needs is imported when it runs
    from api.schedule_schemas import NightOut, ScheduleOut

_database_option = click.option("--database", "database_url", metavar="URL", help="SQLAlchemy URL of the store.")
_format_option = click.option("--format", "form", type=click.Choice(["table", "json"]), default="table",
                              show_default=True, help="How to print it.")  # fmt: skip


@click.group()
def schedules() -> None:
    """Make, change and look at jobs that repeat at night. A service must run for them to start."""


@schedules.command("list")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="Schedules at most.")
@_format_option
@_database_option
@click.pass_obj
def list_schedules(settings: Settings, limit: int, form: str, database_url: str | None) -> None:
    """List schedules, newest first, each with the time that it is due next."""
    found = place(settings, database_url).schedules(limit)
    if form == "json":
        click.echo(json.dumps({"items": [one.model_dump(mode="json") for one in found]}, indent=2))
    elif not found:
        click.echo("no schedules yet; make one with: wattfront schedules create NAME JOB.yaml --nightly 01:00-05:00 "
                   "--zone Europe/Berlin")  # fmt: skip
    for one in found if form == "table" else []:
        click.echo(f"{one.name:<20} {one.state:<7} {_when(one):<32} {_next(one)}  {one.model} on {one.device}")


@schedules.command()
@click.argument("name")
@_format_option
@_database_option
@click.pass_obj
def show(settings: Settings, name: str, form: str, database_url: str | None) -> None:
    """Show one schedule and its next due times. NAME is a name, an id or its first characters."""
    where = place(settings, database_url)
    shown = where.schedule(name)
    if form == "json":
        click.echo(shown.model_dump_json(indent=2))
        return
    for field, value in shown.model_dump(mode="json", exclude={"next_due", "nightly", "cron", "timezone"}).items():
        click.echo(f"{field}: {value if isinstance(value, str) else json.dumps(value)}")
    click.echo(f"when: {_when(shown)}")
    for due in where.dues(shown.id):
        click.echo(f"due: {due}")


@schedules.command()
@click.argument("name")
@click.argument("job_file", type=click.Path(path_type=Path), metavar="JOB.yaml")
@click.option("--nightly", metavar="HH:MM-HH:MM", help="Once in every night, inside these local times.")
@click.option("--cron", metavar="LINE", help='At the local times of a cron line of five fields, as in "0 2 * * *".')
@click.option("--zone", required=True, metavar="ZONE", help="IANA name of the time zone, as Europe/Berlin.")
@click.option("--overlap", type=click.Choice([one.value for one in Overlap]), default=Overlap.SKIP.value,
              show_default=True, help="What becomes of a night while the job of one before still runs.")  # fmt: skip
@click.option("--grace", "grace_s", type=float, metavar="S", help="Seconds that a late run may start after it was due "
              "[default: until the window ends; an hour for a cron line].")  # fmt: skip
@click.option("--keep-nights", type=int, metavar="N", help="Nights that keep every measurement; older ones keep their "
              "fronts [default: all].")  # fmt: skip
@click.option("--notify", multiple=True, metavar="TARGET", help="A notification target of the operator's file; may be "
              "given more than once.")  # fmt: skip
@click.option("--priority", type=int, default=0, show_default=True, help="Of its jobs: higher ones are taken first.")
@_database_option
@click.pass_obj
def create(settings: Settings, /, name: str, job_file: Path, database_url: str | None, **options: Any) -> None:
    """Repeat a job: NAME and a job file, as for `wattfront tune`."""
    from api.jobfile import read_fields

    timing = _timing(options.pop("nightly"), options.pop("cron"))
    options |= {"timezone": options.pop("zone"), "notify": list(options.pop("notify"))}
    fields = {"name": name, "job": read_fields(job_file, {}), **timing, **options}
    shown = place(settings, database_url).create_schedule(fields)
    click.echo(f"schedule {name!r} is made: {_when(shown)}; due next {_next(shown)}. Keep a service running.")


@schedules.command()
@click.argument("name")
@_database_option
@click.pass_obj
def pause(settings: Settings, name: str, database_url: str | None) -> None:
    """Start nothing until it is resumed; nights meanwhile are recorded as skipped."""
    schedule = place(settings, database_url).pause_schedule(name)
    click.echo(f"schedule {schedule.name!r} is paused")


@schedules.command()
@click.argument("name")
@_database_option
@click.pass_obj
def resume(settings: Settings, name: str, database_url: str | None) -> None:
    """Start what is due from now on."""
    schedule = place(settings, database_url).resume_schedule(name)
    click.echo(f"schedule {schedule.name!r} is active")


@schedules.command()
@click.argument("name")
@_database_option
@click.pass_obj
def run(settings: Settings, name: str, database_url: str | None) -> None:
    """Start a run now, beside the calendar, as the overlap policy allows."""
    night = place(settings, database_url).run_schedule(name)
    if night.reason is not None:
        click.echo(f"skipped: {night.reason}")
        return
    server = server_of(click.get_current_context())
    asked = "wattfront" if server is None else f"wattfront --server {server.url}"
    click.echo(f"job {str(night.job)[:8]} is queued; follow it with: {asked} jobs")


@schedules.command()
@click.argument("name")
@_database_option
@click.pass_obj
def delete(settings: Settings, name: str, database_url: str | None) -> None:
    """Delete a schedule and its history. The jobs of its nights and their results stay."""
    deleted = place(settings, database_url).delete_schedule(name)
    click.echo(f"schedule {deleted!r} is deleted; its jobs stay")


@schedules.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="Nights at most.")
@click.option("--before", type=click.IntRange(1), metavar="N", help="Only nights with a number below this.")
@_format_option
@_database_option
@click.pass_obj
def nights(settings: Settings, name: str, limit: int, before: int | None, form: str, database_url: str | None) -> None:
    """List what became of each night, newest first, and what moved since the one before."""
    found = place(settings, database_url).nights(name, limit, before)
    if form == "json":
        click.echo(json.dumps({"items": [night.model_dump(mode="json") for night in found]}, indent=2))
    elif not found:
        click.echo(f"no night of schedule {name!r} was due yet")
    for night in found if form == "table" else []:
        click.echo(f"{night.id:>6} {night.night:<34} {_outcome(night)}")
        for sentence in night.drift.sentences if night.drift is not None else []:
            click.echo(f"{'':7}{sentence}")


def _timing(nightly: str | None, cron: str | None) -> dict[str, Any]:
    if (nightly is None) == (cron is None):
        raise UsageError("give one of --nightly 01:00-05:00 and --cron '0 2 * * *'")
    if nightly is None:
        return {"cron": cron}
    start, dash, end = nightly.partition("-")
    if not dash:
        raise UsageError(f"--nightly is {nightly!r}: give two local times, as in 01:00-05:00")
    return {"nightly": {"start": start.strip(), "end": end.strip()}}


def _when(schedule: ScheduleOut) -> str:
    window = schedule.nightly
    times = f"cron {schedule.cron}" if window is None else f"nightly {window.start}-{window.end}"
    return f"{times} {schedule.timezone}"


def _next(schedule: ScheduleOut) -> str:
    return "never, as it is paused" if schedule.next_due is None else schedule.next_due.due_local


def _outcome(night: NightOut) -> str:
    job = "" if night.job is None else f" job {night.job[:8]} {night.job_state}"
    reason = "" if night.reason is None else f": {night.reason}"
    return f"{night.state}{job}{reason}"
