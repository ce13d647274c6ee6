"""The commands `backup`, `prune` and `notify`: looking after the database, and whether targets can be reached.

They work on the database, so whoever can open that may use them. Knows nothing of HTTP but through `api.webhooks`.
"""

from __future__ import annotations

import shlex
import sys
import uuid
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from api.errors import UsageError
from api.settings import Settings

if TYPE_CHECKING:  # what a command needs is imported when it runs
    from api.stores import Stores
    from db.prune import Pruned

#: News of nights is looked for a day back: what was told must be there for longer, or it is told again.
MIN_DAYS = 2
_MAX_DAYS = 36_500

_database_option = click.option("--database", "database_url", metavar="URL", help="SQLAlchemy URL of the store.")


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@_database_option
@click.pass_obj
def backup(settings: Settings, file: Path, force: bool, database_url: str | None) -> None:
    """Copy a SQLite database to FILE while it is in use; for PostgreSQL, say how pg_dump does it."""
    from db.backup import back_up
    from db.database import Database

    url = database_url or settings.database_url
    database = Database(url, busy_timeout_s=settings.database_timeout_s)
    if not database.is_sqlite:
        raise UsageError(f"{database} is PostgreSQL, which is backed up by its own program: {pg_dump_line(url, file)}")
    _require_other_file(url, file)
    num_bytes = back_up(database, file, may_replace=force)
    click.echo(f"{file}: {num_bytes / 1e6:.1f} MB, checked")


@click.command()
@click.option("--older-than", "days", type=click.IntRange(MIN_DAYS, _MAX_DAYS), default=90, show_default=True,
              metavar="DAYS", help="What ended within so many days stays.")  # fmt: skip
@click.option("--audit", "with_audit", is_flag=True, help="Remove entries of the audit log too.")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Remove nothing and say what would go.")
@_database_option
@click.pass_obj
def prune(settings: Settings, days: int, with_audit: bool, is_dry_run: bool, database_url: str | None) -> None:
    """Remove what is old: events, delivered notifications, measurements that are on no front and in no results."""
    from api.stores import utc_now
    from db.prune import PruneStore

    stores = _stores(settings, database_url)
    before = utc_now() - timedelta(days=days)
    pruned = PruneStore(stores.database).prune(before, with_audit=with_audit, is_dry_run=is_dry_run)
    if not is_dry_run:
        counts = {name: num for name, num in _counts(pruned).items() if num is not None}
        detail = {"older_than_days": days, **counts}
        stores.audit.add(actor="local", action="store.prune", subject="store/database", detail=detail)
    click.echo(pruned_words(pruned, days, is_dry_run=is_dry_run))


@click.command()
@click.argument("target")
@click.option("--test", "is_test", is_flag=True, help="Send a notification that says it is a test.")
@_database_option
@click.pass_obj
def notify(settings: Settings, target: str, is_test: bool, database_url: str | None) -> None:
    """Send a test notification to TARGET of the operator's file, once. Exit code 1 when it did not arrive."""
    from api.operator_file import load_operator
    from api.stores import utc_now
    from api.webhooks import Webhooks

    if not is_test:
        raise UsageError("notify sends tests only, as nights announce themselves; give --test")
    operator = load_operator(settings.operator_file)
    if target not in operator.targets:
        known = ", ".join(sorted(operator.targets)) or "none"
        raise UsageError(f"TARGET is {target!r}: name a target of WATTFRONT_OPERATOR_FILE, which has {known}")
    webhooks = Webhooks(_stores(settings, database_url).deliveries, operator.targets, utc_now)
    body = {"event": "test", "sent_at": utc_now().isoformat(), "sentences": ["This is a test by `wattfront notify`."]}
    error = webhooks.send_once(target, f"test/{uuid.uuid4().hex}", body)
    click.echo(f"{target} has it" if error is None else f"{target} does not have it: {error}")
    sys.exit(0 if error is None else 1)


def _require_other_file(url: str, file: Path) -> None:
    """Refuse a database that is not there, which would be made empty, and one that would become its own copy."""
    from sqlalchemy import make_url

    source = Path(make_url(url).database or "")
    if not source.is_file():
        raise UsageError(f"there is no database {source}; give its URL as --database, or set WATTFRONT_DATABASE_URL")
    if file.exists() and file.samefile(source):
        raise UsageError(f"FILE is {str(file)!r}: that is the database itself; give another path")


def pg_dump_line(url: str, file: Path) -> str:
    """Return the command that backs a PostgreSQL database up, without its password, which pg_dump asks for."""
    from sqlalchemy import make_url

    parts = make_url(url)
    port = None if parts.port is None else str(parts.port)
    named = {"host": parts.host or parts.query.get("host"), "port": port, "username": parts.username,
             "dbname": parts.database}  # fmt: skip
    given = [f"--{name}={value}" for name, value in named.items() if value]
    return shlex.join(["pg_dump", "--format=custom", f"--file={file}", *given])


def pruned_words(pruned: Pruned, days: int, *, is_dry_run: bool) -> str:
    """Say what went, or would go."""
    counts = {name.replace("_", " "): num for name, num in _counts(pruned).items() if num is not None}
    listed = ", ".join(f"{num} {name}" for name, num in counts.items())
    if is_dry_run:
        return f"would remove, of more than {days} days ago: {listed}; nothing was removed"
    return f"removed, of more than {days} days ago: {listed}; their space is used again, the file keeps its size"


def _counts(pruned: Pruned) -> dict[str, int | None]:
    return {
        "events": pruned.events,
        "measurements": pruned.measurements,
        "delivered_notifications": pruned.deliveries,
        "audit_entries": pruned.audit_entries,
    }


def _stores(settings: Settings, database_url: str | None) -> Stores:
    from api.stores import open_stores

    return open_stores(database_url or settings.database_url, busy_timeout_s=settings.database_timeout_s)
