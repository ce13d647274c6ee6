"""The commands that use what is stored: `recommend`, `export`, and `index` for jobs of an earlier version."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from pydantic import ValidationError

from api.errors import UsageError
from api.export.forms import FORMS
from api.place import place
from api.settings import Settings
from api.stores import Stores, open_stores

_database = click.option("--database", "database_url", metavar="URL", help="SQLAlchemy URL of the store.")


@click.command()
@click.option("--model", required=True, help="As the jobs named it.")
@click.option("--device", required=True, help="As the jobs named it, or its UUID.")
@click.option("--engine", help="Only points of this engine.")
@click.option("--workload", metavar="HASH", help="Only points under this load; by default the newest one's.")
@click.option("--ttft-p99-ms", type=float, help="Time to the first token at most.")
@click.option("--tpot-p99-ms", type=float, help="Time per output token at most.")
@click.option("--itl-p99-ms", type=float, help="Gap between two tokens at most.")
@click.option("--e2e-p99-ms", type=float, help="Time of a whole request at most.")
@click.option("--power-w", type=float, help="Mean power at most.")
@click.option("--min-output-tok-s", type=float, help="Output tokens per second at least.")
@click.option("--min-quality", type=float, help="Share of the widest precision's quality at least, as in 0.99.")
@click.option("--max-age-hours", type=float, help="Say so when the point is older.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="How to print it; json has everything behind it.")  # fmt: skip
@_database
@click.pass_obj
def recommend(settings: Settings, /, form: str, database_url: str | None, **asked: str | float | None) -> None:
    """Name the stored point with the most tokens per joule inside all limits, and how to run it.

    Without one inside them, the nearest points are told with what they miss; the exit code is 0 all the same.
    """
    from api.recommend_schemas import RecommendationQuery

    try:
        query = RecommendationQuery.model_validate(asked)
    except ValidationError as error:
        first = error.errors()[0]
        flag = "--" + str(first["loc"][0]).replace("_", "-")
        raise UsageError(f"{flag} is {first['input']!r}: {first['msg']}") from error
    answer = place(settings, database_url).recommendation(query)
    if form == "json":
        click.echo(answer.model_dump_json(indent=2))
        return
    click.echo(answer.why)
    best = answer.recommended
    if best is None:
        return
    knobs = " ".join(f"{name}={value}" for name, value in best.knobs.items())
    click.echo(f"job {best.job[:8]}, trial {best.trial}: {knobs}")
    label = "" if best.label is None else f" ({best.label})"
    for name, command in best.run.items():
        click.echo(f"\n# {name}{label}\n{command}", nl=False)


@click.command()
@click.argument("job")
@click.option("--form", type=click.Choice(list(FORMS)), required=True,
              help="; ".join(f"{form.name}: {form.description}" for form in FORMS.values()) + ".")  # fmt: skip
@click.option("--point", type=click.IntRange(min=0), metavar="N", help="Of the trial N; by default the point with the "
              "most tokens per joule inside the job's limits.")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write it to a file.")
@_database
@click.pass_obj
def export(
    settings: Settings, job: str, form: str, point: int | None, output: Path | None, database_url: str | None
) -> None:
    """Print a job's point as another program takes it. JOB is an id or its first characters.

    What that program has no words for stands in comments above, as does a label where nothing was measured.
    """
    if output is None and FORMS[form].suffix == ".zip" and is_terminal():
        raise UsageError(f"--form {form} is a ZIP file, which a terminal cannot show; name a file with --output")
    made = place(settings, database_url).export(job, form, point)
    if output is None:
        click.echo(made, nl=False)
        return
    try:
        output.write_bytes(made)
    except OSError as error:
        raise UsageError(f"--output is {str(output)!r}: {error.strerror}; name a file that can be written") from error
    click.echo(f"written: {output}")


def is_terminal() -> bool:
    """Return whether what is printed is shown to a person."""
    return sys.stdout.isatty()


@click.command()
@click.option(
    "--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Jobs at most, newest first."
)
@_database
@click.pass_obj
def index(settings: Settings, limit: int, database_url: str | None) -> None:
    """Make finished jobs of an earlier version known to recommendations; new jobs are known as they end."""
    stores = _stores(settings, database_url)
    before = len(stores.results.missing(limit))
    num_points = stores.results.fill(limit)
    click.echo(f"{num_points} points of {before} jobs stored" if before else "every finished job is known already")


def _stores(settings: Settings, database_url: str | None) -> Stores:
    return open_stores(database_url or settings.database_url, busy_timeout_s=settings.database_timeout_s)
