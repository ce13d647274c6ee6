"""A database by URL: short transactions, and driver errors as named ones.

Knows SQLite's and PostgreSQL's habits, and nothing of jobs or trials.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event, func, make_url, select
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from db.errors import (
    DatabaseBusy,
    DatabaseDamaged,
    DatabaseNotWritable,
    DatabaseUnreachable,
    DiskFull,
    InvalidDatabaseUrl,
    MigrationFailed,
    StoreError,
)

BUSY_TIMEOUT_S = 10.0
#: Connections of one process at most. More threads than that only take turns at the interpreter.
POOL_SIZE = 15

#: How the two drivers say it (sqlite_errorname, SQLSTATE), by prefix; what we say; what to do.
_CAUSES: tuple[tuple[str, type[StoreError], str], ...] = (
    ("SQLITE_BUSY", DatabaseBusy, "another process holds the lock; end it, or raise the busy timeout"),
    ("SQLITE_LOCKED", DatabaseBusy, "another connection holds the table; end it, or raise the busy timeout"),
    ("55P03", DatabaseBusy, "another session holds the lock; end it, or raise the busy timeout"),
    ("SQLITE_FULL", DiskFull, "free some space; nothing of this transaction was stored"),
    ("53100", DiskFull, "free some space; nothing of this transaction was stored"),
    ("SQLITE_READONLY", DatabaseNotWritable, "make the file and its folder writable for this user"),
    ("25006", DatabaseNotWritable, "connect to the primary, or as a user that may write"),
    ("SQLITE_CANTOPEN", DatabaseNotWritable, "create its folder, and make it writable for this user"),
    ("SQLITE_NOTADB", DatabaseDamaged, "restore a backup, or give another file"),
    ("SQLITE_CORRUPT", DatabaseDamaged, "restore a backup"),
    ("08", DatabaseUnreachable, "start the server, or correct host, port and credentials in the URL"),
    ("28", DatabaseUnreachable, "correct user and password in the URL"),
    ("57P", DatabaseUnreachable, "start the server"),
)
#: Any number that nothing else uses as an advisory lock in the same PostgreSQL database.
_MIGRATION_LOCK = 7_287_411


class Database:
    """Where everything is kept. Connections are opened when first needed and shared by threads."""

    def __init__(self, url: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self._url = _parse(url)
        self._busy_timeout_s = busy_timeout_s
        #: Driver errors so far, by the kind that they were told as.
        self.num_errors: Counter[str] = Counter()
        try:
            self._reader = create_engine(
                self._url,
                connect_args=_connect_args(self._url, busy_timeout_s),
                # Kept open: one beyond the pool is opened and closed for a single query. Threads wait for each other.
                pool_size=POOL_SIZE,
                max_overflow=0,
            )
        except ModuleNotFoundError as error:
            raise InvalidDatabaseUrl(
                f"{self} needs the Python package {error.name}; install it, as in pip install 'psycopg[binary]'"
            ) from error
        if self.is_sqlite:
            event.listen(self._reader, "connect", _prepare_sqlite)
            event.listen(self._reader, "begin", _begin_sqlite)
        # A deferred transaction that turns into a write fails at once when another writer came first, whatever the
        # busy timeout; IMMEDIATE takes the write lock at the start, where SQLite does wait.
        self._writer = self._reader.execution_options(sqlite_begin="BEGIN IMMEDIATE")

    def __str__(self) -> str:
        return self._url.render_as_string(hide_password=True)

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is a SQLite file."""
        return self._url.get_backend_name() == "sqlite"

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Yield a session that writes: committed at the end, rolled back on an error. Keep it short.

        Raises one of `db.errors`; IntegrityError passes through for the store that can make sense of it.
        """
        with self._translated(), Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Yield a session that sees one consistent state; nothing is kept of what it changes."""
        with self._translated(), Session(self._reader, expire_on_commit=False, autoflush=False) as session:
            yield session

    @contextmanager
    def migration(self) -> Iterator[Connection]:
        """Yield a connection in one exclusive transaction in which tables may be rebuilt.

        Foreign keys are off on SQLite meanwhile, as dropping the old copy of a parent table would delete its children;
        they are checked before the commit and are on again afterwards. Raises MigrationFailed.
        """
        with (
            self._translated(),
            self._writer.connect() as connection,
            _foreign_keys_off(connection),
            connection.begin(),
        ):
            if not self.is_sqlite:
                connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            yield connection
            _check_foreign_keys(connection)

    def dispose(self) -> None:
        """Close every connection; a later transaction opens new ones."""
        self._reader.dispose()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn driver errors into ours: the only place that does."""
        try:
            yield
        except IntegrityError:
            raise
        except StatementError as error:
            named = self._named(error)
            self.num_errors[type(named).__name__] += 1
            raise named from error
        except PoolTimeout as error:
            self.num_errors[DatabaseBusy.__name__] += 1
            raise DatabaseBusy(f"{self}: every connection is in use; keep transactions short") from error

    def _named(self, error: StatementError) -> StoreError:
        cause = error.orig
        if isinstance(cause, StoreError):  # a column type refused the value
            return cause
        code = getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None)
        for prefix, kind, remedy in _CAUSES:
            if code is not None and code.startswith(prefix):
                waited = f" for {self._busy_timeout_s:g} s" if kind is DatabaseBusy else ""
                return kind(f"{self}: {cause}{waited}; {remedy}")
        if code is None and isinstance(error, OperationalError):  # psycopg could not connect
            return DatabaseUnreachable(f"{self}: {cause}; start the server, or correct the URL")
        return StoreError(f"{self}: {cause}")


def _parse(text: str) -> URL:
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise InvalidDatabaseUrl(f"{text!r} is not a database URL; {InvalidDatabaseUrl.__doc__}") from error
    if url.drivername in ("postgres", "postgresql"):
        return url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "postgresql+psycopg"):
        raise InvalidDatabaseUrl(f"{url.drivername!r} is not supported; {InvalidDatabaseUrl.__doc__}")
    if url.drivername == "sqlite" and url.database in (None, "", ":memory:"):
        # Server and worker are processes that meet in the database.
        raise InvalidDatabaseUrl(f"{text!r} lives in one process only; give a file, as in sqlite:////tmp/wattfront.db")
    return url


def _connect_args(url: URL, busy_timeout_s: float) -> dict[str, Any]:
    if url.get_backend_name() == "sqlite":
        return {"timeout": busy_timeout_s}
    return {"options": f"-c lock_timeout={round(1e3 * busy_timeout_s)} -c timezone=UTC"}


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # None: the sqlite3 module begins and ends no transaction of its own; _begin_sqlite does, around DDL as well.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")  # what was acknowledged survives a power cut
    if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        _switch_to_wal(connection)


def _switch_to_wal(connection: Any) -> None:
    """Switch the file to write-ahead logging, once and for all, so that readers and the writer do not wait."""
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    except connection.OperationalError as error:
        # SQLite does not wait here. Someone uses the file, or is switching it; a later connection finds it switched
        # or tries again, and a read-only file says so at the first write.
        if not error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_READONLY")):
            raise


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))


@contextmanager
def _foreign_keys_off(connection: Connection) -> Iterator[None]:
    """Switch SQLite's foreign keys off for a connection that is not yet in a transaction (the pragma needs that)."""
    if connection.dialect.name != "sqlite":
        yield
        return
    raw: Any = connection.connection.dbapi_connection
    raw.execute("PRAGMA foreign_keys = OFF")
    try:
        yield
    finally:
        raw.execute("PRAGMA foreign_keys = ON")


def _check_foreign_keys(connection: Connection) -> None:
    if connection.dialect.name != "sqlite":
        return
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    if broken:
        tables = ", ".join(sorted({f"{row[0]} -> {row[2]}" for row in broken}))
        raise MigrationFailed(f"{len(broken)} rows would point nowhere ({tables}); nothing was changed")
