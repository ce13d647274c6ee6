"""The commands `front`, `jobs` and `cancel`: what is known of jobs here or at a server, and their end."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console

from api.place import place
from api.plot.theme import SCHEMES, Scheme
from api.settings import Settings
from db.job import ENDED

_database_option = click.option("--database", "database_url", metavar="URL", help="SQLAlchemy URL of the store.")


@click.command()
@click.argument("job")
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True,
              help="How to print it; json has everything that was measured.")  # fmt: skip
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Draw it instead, into a file that ends in .png or .svg.")  # fmt: skip
@click.option("--scheme", type=click.Choice(SCHEMES), default="light", show_default=True,
              help="Ground of that picture.")  # fmt: skip
@_database_option
@click.pass_obj
def front(
    settings: Settings, job: str, form: str, plot: Path | None, scheme: Scheme, database_url: str | None
) -> None:  # fmt: skip
    """Print a job's Pareto front, fastest point first. JOB is an id or its first characters."""
    from api.console import front_csv, print_front
    from api.plot_command import write_picture

    asked = place(settings, database_url)
    if plot is not None:
        write_picture(asked, job, plot, scheme)
        click.echo(f"drawn: {plot}")
        return
    shown = asked.front(job)
    if form == "json":
        click.echo(shown.model_dump_json(indent=2))
    elif form == "csv":
        click.echo(front_csv(shown), nl=False)
    else:
        print_front(Console(), shown)


@click.command()
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True,
              help="How to print them.")  # fmt: skip
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="Jobs at most.")
@_database_option
@click.pass_obj
def jobs(settings: Settings, form: str, limit: int, database_url: str | None) -> None:
    """List jobs, newest first."""
    from api.console import jobs_table, print_table

    items = place(settings, database_url).jobs(limit)
    if form == "json":
        click.echo(json.dumps({"items": [item.model_dump(mode="json") for item in items]}, indent=2))
    elif items:
        print_table(Console(), jobs_table(items))
    else:
        click.echo("no jobs yet; start one with: wattfront tune --model smollm2-135m")


@click.command()
@click.argument("job")
@_database_option
@click.pass_obj
def cancel(settings: Settings, job: str, database_url: str | None) -> None:
    """End a job, in the midst of its window if it runs. What it measured is kept."""
    asked = place(settings, database_url).cancel(job)
    click.echo(f"job {asked.id[:8]} is {asked.state}" + ("" if asked.state in ENDED else "; it ends within seconds"))
