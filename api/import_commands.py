"""The commands `import` and `imports`: results of other benchmark tools, beside what was measured here.

They work on the database, so whoever can open that may use them. Knows nothing of HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from api.settings import Settings

if TYPE_CHECKING:  # what a command needs is imported when it runs
    from rich.table import Table

    from api.stores import Stores
    from db.imports import Import
    from tuner.foreign.result import ForeignLatency, ForeignResult

_database_option = click.option("--database", "database_url", metavar="URL", help="SQLAlchemy URL of the store.")


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@_database_option
@click.pass_obj
def import_files(settings: Settings, files: tuple[Path, ...], database_url: str | None) -> None:
    """Keep the results in FILEs of vLLM bench, SGLang bench, guidellm, AIPerf, GenAI-Perf or LoadGen for comparison.

    The format is recognised. Nothing of it is metered: such results have no energy and are on no front.
    """
    from tuner.foreign.fields import printable
    from tuner.foreign_results import read_results

    read = [(file, read_results(file)) for file in files]  # all of them, before any is kept
    stores = _stores(settings, database_url)
    for file, results in read:
        name = printable(file.name)
        imported, is_new = stores.imports.add(name, results, num_bytes=file.stat().st_size, created_by="local")
        if is_new:
            detail = {"name": name, "tool": imported.tool.value, "results": len(results), "sha256": imported.sha256}
            stores.audit.add(actor="local", action="import.create", subject=f"import/{imported.id}", detail=detail)
        _print_results(imported, results, is_new=is_new)


@click.group(invoke_without_command=True)
@click.option("--json", "is_json", is_flag=True, help="Print every file with its results as JSON.")
@_database_option
@click.pass_context
def imports(context: click.Context, is_json: bool, database_url: str | None) -> None:
    """List the imported result files, newest first; show or delete one."""
    if context.invoked_subcommand is not None:
        return
    from db.imports import MAX_IMPORTS

    stores = _stores(context.obj, database_url)
    found = stores.imports.list(limit=MAX_IMPORTS)
    if is_json:
        click.echo(json.dumps({"items": [_as_json(stores, one) for one in found]}, indent=2))
    elif not found:
        click.echo("nothing was imported yet; import a result file with: wattfront import FILE")
    else:
        for one in found:
            when = one.created_at.astimezone().strftime("%Y-%m-%d %H:%M")
            click.echo(f"{one.id:<5} {when}  {one.tool.full_name:<20} {_results_words(one.num_results):<12} {one.name}")


@imports.command()
@click.argument("import_id", type=click.IntRange(1), metavar="NUMBER")
@_database_option
@click.pass_obj
def show(settings: Settings, import_id: int, database_url: str | None) -> None:
    """Print the results of the imported file of that NUMBER."""
    stores = _stores(settings, database_url)
    _print_results(stores.imports.get(import_id), stores.imports.results(import_id), is_new=True)


@imports.command()
@click.argument("import_id", type=click.IntRange(1), metavar="NUMBER")
@_database_option
@click.pass_obj
def delete(settings: Settings, import_id: int, database_url: str | None) -> None:
    """Delete the imported file of that NUMBER with its results."""
    stores = _stores(settings, database_url)
    deleted = stores.imports.delete(import_id)
    detail = {"name": deleted.name, "sha256": deleted.sha256}
    stores.audit.add(actor="local", action="import.delete", subject=f"import/{import_id}", detail=detail)
    click.echo(f"deleted: import {import_id}, {deleted.name}")


def _as_json(stores: Stores, imported: Import) -> object:
    from api.import_schemas import import_detail_out

    return import_detail_out(imported, stores.imports.results(imported.id)).model_dump(mode="json")


def _print_results(imported: Import, results: Sequence[ForeignResult], *, is_new: bool) -> None:
    """Print what a file holds, with the label that its figures carry and everything that must be known of them."""
    from rich.console import Console

    from api.console import print_table
    from api.import_words import origin_of

    known = "" if is_new else ", imported before"
    click.echo(
        f"import {imported.id}: {imported.name}, {_results_words(len(results))}{known}; {origin_of(imported.tool)}"
    )
    print_table(Console(), _table(results))
    for note in dict.fromkeys(note for result in results for note in result.notes):
        places = [str(i) for i, result in enumerate(results, 1) if note in result.notes]
        which = "" if len(places) == len(results) else f"{', '.join(places)}: "
        click.echo(f"  {which}{note}")


def _table(results: Sequence[ForeignResult]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from api.import_words import load_words

    table = Table()
    for heading in ("", "model", "load", "done", "failed", "tok/s", "TTFT p50", "p99 ms", "TPOT p50", "p99 ms"):
        table.add_column(heading, justify="left" if heading in ("model", "load") else "right")
    for i, result in enumerate(results, 1):
        latencies = [_shown(one, name) for one in (result.ttft_ms, result.tpot_ms) for name in ("p50", "p99")]
        counts = [_dash(result.num_completed), _dash(result.num_failed), _dash(result.output_tok_s)]
        table.add_row(str(i), Text(result.model or "-"), Text(load_words(result) or "-"), *counts, *latencies)
    return table


def _shown(latency: ForeignLatency | None, name: str) -> str:
    return "-" if latency is None else _dash(getattr(latency, name))


def _dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _results_words(count: int) -> str:
    return f"{count} result{'' if count == 1 else 's'}"


def _stores(settings: Settings, database_url: str | None) -> Stores:
    from api.stores import open_stores

    return open_stores(database_url or settings.database_url, busy_timeout_s=settings.database_timeout_s)
