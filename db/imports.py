"""Result files of other benchmark tools: what was read of them, beside what we measured and never mixed with it.

The file itself is not kept. The same file again changes nothing: its hash is unique. Knows nothing of formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, defer

from db import codec
from db.database import Database
from db.errors import ImportNotFound, TooManyImports
from db.service_tables import ImportRow
from tuner.foreign.result import ForeignResult, Tool

#: Files that are kept at once.
MAX_IMPORTS = 500
#: The largest number of a row that PostgreSQL can compare with.
MAX_ID = 2**31 - 1

Imports = list["Import"]
ImportedResults = list[tuple["Import", ForeignResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """A result file that was read, without its results."""

    id: int
    #: Of the file.
    name: str
    tool: Tool
    #: Of the file's content, in hexadecimal digits.
    sha256: str
    num_bytes: int
    num_results: int
    created_by: str | None
    created_at: datetime


class ImportStore:
    """The imported results of one database."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    def add(
        self, name: str, results: Sequence[ForeignResult], *, num_bytes: int, created_by: str | None = None
    ) -> tuple[Import, bool]:
        """Store the results of one file; return it, and whether it is new: the same content again changes nothing.

        Raises TooManyImports.
        """
        row = ImportRow(
            name=name,
            tool=results[0].tool.value,
            sha256=results[0].sha256,
            num_bytes=num_bytes,
            num_results=len(results),
            results=[codec.encode_fields(result, f"results[{i}]") for i, result in enumerate(results)],
            created_by=created_by,
            created_at=self._now(),
        )
        try:
            with self._database.transaction() as session:
                known = _known(session, row.sha256)
                if known is not None:
                    return _import_of(known), False
                if (session.scalar(select(func.count()).select_from(ImportRow)) or 0) >= MAX_IMPORTS:
                    raise TooManyImports(MAX_IMPORTS)
                session.add(row)
                session.flush()
                return _import_of(row), True
        except IntegrityError:  # on PostgreSQL another process may insert the file after we looked
            return self._twin(results[0].sha256), False

    def get(self, import_id: int) -> Import:
        """Return an imported file. Raises ImportNotFound."""
        with self._database.read() as session:
            return _import_of(_row(session, import_id))

    def results(self, import_id: int) -> tuple[ForeignResult, ...]:
        """Return the results of an imported file, in its order. Raises ImportNotFound, RecordUnreadable."""
        with self._database.read() as session:
            found = session.scalar(select(ImportRow.results).where(ImportRow.id == import_id))
        if found is None:
            raise ImportNotFound(import_id)
        return _decoded(import_id, found)

    def list(self, *, limit: int, before: int | None = None) -> Imports:
        """Return at most `limit` files, newest first; those of a smaller id than `before`, to go on."""
        query = select(ImportRow).options(_without_results()).order_by(ImportRow.id.desc()).limit(limit)
        if before is not None:
            query = query.where(ImportRow.id < before)
        with self._database.read() as session:
            return [_import_of(row) for row in session.scalars(query)]

    def latest_results(self, *, limit: int) -> ImportedResults:
        """Return at most `limit` results with their files, of the newest file first. Raises RecordUnreadable."""
        found: ImportedResults = []
        with self._database.read() as session:
            for row in session.scalars(select(ImportRow).order_by(ImportRow.id.desc()).limit(limit)):
                found += [(_import_of(row), result) for result in _decoded(row.id, row.results)]
                if len(found) >= limit:
                    break
        return found[:limit]

    def count_results(self) -> int:
        """Return how many results there are in all files together."""
        with self._database.read() as session:
            return session.scalar(select(func.sum(ImportRow.num_results))) or 0

    def delete(self, import_id: int) -> Import:
        """Delete an imported file with its results and return what it was. Raises ImportNotFound."""
        with self._database.transaction() as session:
            row = _row(session, import_id)
            deleted = _import_of(row)
            session.delete(row)
            return deleted

    def _twin(self, sha256: str) -> Import:
        with self._database.read() as session:
            return _import_of(session.scalars(_by_hash(sha256)).one())


def _without_results() -> Any:
    return defer(ImportRow.results, raiseload=True)


def _by_hash(sha256: str) -> Any:
    return select(ImportRow).options(_without_results()).where(ImportRow.sha256 == sha256)


def _known(session: Session, sha256: str) -> ImportRow | None:
    found: ImportRow | None = session.scalar(_by_hash(sha256))
    return found


def _row(session: Session, import_id: int) -> ImportRow:
    row = session.scalar(select(ImportRow).options(_without_results()).where(ImportRow.id == import_id))
    if row is None:
        raise ImportNotFound(import_id)
    return row


def _decoded(import_id: int, results: Sequence[Any]) -> tuple[ForeignResult, ...]:
    return tuple(
        codec.decode(ForeignResult, result, f"imports[{import_id}].results[{i}]") for i, result in enumerate(results)
    )


def _import_of(row: ImportRow) -> Import:
    return Import(
        id=row.id,
        name=row.name,
        tool=Tool(row.tool),
        sha256=row.sha256,
        num_bytes=row.num_bytes,
        num_results=row.num_results,
        created_by=row.created_by,
        created_at=row.created_at,
    )
