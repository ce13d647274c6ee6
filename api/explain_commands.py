"""The command `explain`: what a job found and why, in words or as JSON."""

from __future__ import annotations

import click
from rich.console import Console
from rich.text import Text

from api.place import place
from api.settings import Settings


@click.command()
@click.argument("job")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="How to print it; json has every figure behind the sentences.")  # fmt: skip
@click.option("--database", "database_url", metavar="URL", help="SQLAlchemy URL of the store.")
@click.pass_obj
def explain(settings: Settings, job: str, form: str, database_url: str | None) -> None:
    """Say what a job found: the point to use, what it gains, and which knobs moved energy and latency.

    JOB is an id or its first characters.
    """
    found = place(settings, database_url).explanation(job)
    console = Console()
    lines = [found.model_dump_json(indent=2)] if form == "json" else found.sentences
    for line in lines:
        console.print(Text(line), soft_wrap=True)
