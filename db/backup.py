"""Copies a SQLite database to a file while it is being written to: one consistent state, checked before it counts.

Knows nothing of PostgreSQL, which has programs of its own for this.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

from db.database import Database
from db.errors import BackupFailed


def back_up(database: Database, file: Path, *, may_replace: bool = False) -> int:
    """Copy a SQLite database to a file that only its owner may read; return its size in bytes.

    The file is there whole or not at all. It is copied in one reading transaction: copied in several, it would begin
    anew whenever another process writes, and might never end. Writers go on meanwhile. Raises BackupFailed.
    """
    if file.exists() and not may_replace:
        raise BackupFailed(f"{file} is there already; give another name, or --force to replace it")
    partial = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        _copy(database, partial)
        _require_sound(partial)
        _sync(partial)
        partial.replace(file)
        _sync(file.parent)
        return file.stat().st_size
    except (OSError, sqlite3.Error) as error:
        raise BackupFailed(f"cannot write {file}: {error}; give a path with room where this user may write") from error
    finally:
        for left in (partial, *(partial.with_name(partial.name + end) for end in ("-wal", "-shm", "-journal"))):
            left.unlink(missing_ok=True)


def _copy(database: Database, target: Path) -> None:
    with database.read() as session, closing(sqlite3.connect(target)) as copy:
        source: Any = session.connection().connection.dbapi_connection
        source.backup(copy)


def _require_sound(copy: Path) -> None:
    with closing(sqlite3.connect(copy)) as connection:
        found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
    if found != ["ok"]:
        raise BackupFailed(
            f"the copy is damaged, and so may be the database: {found[0]}; an earlier backup may be whole"
        )


def _sync(path: Path) -> None:
    """Have the disk keep what was written, so that a power cut leaves the old file or the new one."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
