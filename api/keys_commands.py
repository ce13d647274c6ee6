"""The commands `keys` and `audit`: who may use the service over HTTP, and who did what.

They work on the database, so whoever can open that may use them. Knows nothing of HTTP.
"""

from __future__ import annotations

import json
import os
import pwd
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from api.errors import UsageError
from api.settings import Settings
from db.service import Scope

if TYPE_CHECKING:  # what a command needs is imported when it runs
    from api.stores import Stores
    from db.keys import ApiKey

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: What stands for callers without a key, and for those that are no callers.
_TAKEN_NAMES = ("local", "schedule")
_MAX_DAYS = 3_650


@click.group()
def keys() -> None:
    """Make, list and revoke the API keys that open the service over HTTP."""


_database_option = click.option("--database", "database_url", metavar="URL", help="SQLAlchemy URL of the store.")


@keys.command()
@click.argument("name")
@click.option("--scope", type=click.Choice([scope.value for scope in Scope]), default=Scope.READ.value,
              show_default=True, help="read looks; tune also starts and cancels jobs; admin also sees the "
              "audit log.")  # fmt: skip
@click.option("--expires-days", type=click.IntRange(1, _MAX_DAYS), metavar="N", help="Days until it opens nothing any "
              "more [default: never].")  # fmt: skip
@_database_option
@click.pass_obj
def create(settings: Settings, name: str, scope: str, expires_days: int | None, database_url: str | None) -> None:
    """Make a key and print it, once: only its hash is kept."""
    from api.stores import utc_now

    if _NAME.fullmatch(name) is None or name in _TAKEN_NAMES:
        raise UsageError(
            f"NAME is {name!r}: give letters, digits, dots, dashes and underscores, 100 at most, and none of "
            f"{', '.join(_TAKEN_NAMES)}"
        )
    stores = _stores(settings, database_url)
    expires_at = None if expires_days is None else utc_now() + timedelta(days=expires_days)
    key, shown = stores.keys.create(name, Scope(scope), expires_at=expires_at)
    detail = {"scope": scope, "expires_at": None if expires_at is None else expires_at.isoformat(timespec="seconds")}
    _note(stores, "key.create", key, detail)
    click.echo(shown)
    click.echo(
        f"key {name!r} of scope {scope}, valid {_until(key)}; it is not shown again. Send it as: "
        "Authorization: Bearer KEY",
        err=True,
    )


@keys.command("list")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True,
              help="How to print them.")  # fmt: skip
@_database_option
@click.pass_obj
def list_keys(settings: Settings, form: str, database_url: str | None) -> None:
    """List every key ever made: scope, state, last use. None is shown itself."""
    from api.stores import utc_now

    found, now = _stores(settings, database_url).keys.list(), utc_now()
    if form == "json":
        click.echo(json.dumps({"items": [_as_json(key, now) for key in found]}, indent=2))
    elif not found:
        click.echo("no keys yet; make one with: wattfront keys create NAME --scope tune")
    else:
        for key in found:
            used = "never used" if key.last_used_at is None else f"last used {_minute(key.last_used_at)}"
            click.echo(f"{key.name:<20} {key.scope.value:<6} {_state(key, now):<8} {key.prefix}  {_until(key)}; {used}")


@keys.command()
@click.argument("name")
@_database_option
@click.pass_obj
def revoke(settings: Settings, name: str, database_url: str | None) -> None:
    """End a key for good: running servers forget it within seconds."""
    stores = _stores(settings, database_url)
    key = stores.keys.revoke(name)
    _note(stores, "key.revoke", key, {})
    click.echo(f"key {name!r} opens nothing any more")


@click.command()
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="Entries at most.")
@click.option("--before", type=click.IntRange(1), metavar="N", help="Only entries with a number below this.")
@click.option("--subject", metavar="KIND/ID", help="Only what was done to this, as in job/4f2a...")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True,
              help="How to print them.")  # fmt: skip
@_database_option
@click.pass_obj
def audit(
    settings: Settings, limit: int, before: int | None, subject: str | None, form: str, database_url: str | None
) -> None:
    """List who started, cancelled or changed what over HTTP, newest first."""
    from api.audit_schemas import entry_out

    entries = _stores(settings, database_url).audit.list(limit=limit, before=before, subject=subject)
    if form == "json":
        items = [entry_out(entry).model_dump(mode="json") for entry in entries]
        click.echo(json.dumps({"items": items}, indent=2))
    elif not entries:
        click.echo("nothing was done yet")
    else:
        for entry in entries:
            told = " ".join(f"{name}={value}" for name, value in entry.detail.items())
            click.echo(
                f"{entry.id:>6} {_minute(entry.at)} {entry.actor} {entry.action} {entry.subject} {told}".rstrip()
            )


def _stores(settings: Settings, database_url: str | None) -> Stores:
    from api.stores import open_stores

    return open_stores(database_url or settings.database_url, busy_timeout_s=settings.database_timeout_s)


def _note(stores: Stores, action: str, key: ApiKey, detail: dict[str, str | None]) -> None:
    """Write down who did it: on the command line there is no key, but a user."""
    detail = {"user": _user(), **detail}
    stores.audit.add(actor="local", action=action, subject=f"key/{key.name}", detail=detail)


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without an entry
        return str(os.getuid())


def _state(key: ApiKey, now: datetime) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "valid" if key.is_valid(now) else "expired"


def _until(key: ApiKey) -> str:
    return "for ever" if key.expires_at is None else f"until {_minute(key.expires_at)}"


def _minute(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC")


def _as_json(key: ApiKey, now: datetime) -> dict[str, str | None]:
    return {
        "name": key.name,
        "scope": key.scope.value,
        "state": _state(key, now),
        "prefix": key.prefix,
        "created_at": key.created_at.isoformat(),
        "expires_at": None if key.expires_at is None else key.expires_at.isoformat(),
        "revoked_at": None if key.revoked_at is None else key.revoked_at.isoformat(),
        "last_used_at": None if key.last_used_at is None else key.last_used_at.isoformat(),
    }
