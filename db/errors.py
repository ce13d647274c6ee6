"""What can go wrong when something is kept. Knows nothing of SQLAlchemy.

StoreError
 |- InvalidDatabaseUrl    a URL that cannot be used
 |- DatabaseUnreachable   no connection to the server
 |- DatabaseBusy          locked for longer than the busy timeout
 |- DatabaseNotWritable   read-only, or its folder is missing
 |- DiskFull              no room for the transaction
 |- DatabaseDamaged       the file is not a database, or no longer one
 |- SchemaOutdated        tables older than this version
 |- SchemaTooNew          tables newer than this version
 |- MigrationFailed       a migration left rows that point nowhere
 |- RecordNotStorable     a record with a value that no column can hold
 |- RecordUnreadable      stored JSON that this version cannot turn into a record
 |- JobNotFound           no such job
 |- AmbiguousJob          a short id that fits several jobs
 |- JobClaimed            another worker holds the job
 |- JobEnded              the job is over
 |- LeaseLost             the claim is no longer the job's
 |- TrialNotStored        a front or a result refers to a trial that is not there
 |- KeyExists             a name that an API key has or had
 |- KeyNotFound           no such API key
 |- ScheduleNotFound      no such schedule
 |- AmbiguousSchedule     a short id that fits several schedules
 |- ScheduleExists        a name that a schedule has
 |- ScheduleChanged       the schedule is no longer the version that a change was made for
 |- WorkloadNotFound      no uploaded workload of that name
 |- WorkloadExists        a name that stands for another content
 |- WorkloadInUse         a job or a schedule still needs the workload
 |- TooManyWorkloads      no more are kept
 |- ImportNotFound        no imported result file of that number
 |- TooManyImports        no more are kept
 |- BackupFailed          no copy was made
 '- DeviceNotStored       a job refers to a device that was never seen
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime


class StoreError(Exception):
    """Root of everything the store raises."""


class InvalidDatabaseUrl(StoreError):
    """Give a URL as in sqlite:////var/lib/wattfront/wattfront.db or postgresql://user@host/wattfront."""


class DatabaseUnreachable(StoreError):
    """Start the database server, or correct host, port and credentials in the URL."""


class DatabaseBusy(StoreError):
    """Find the process that holds the lock, or raise the busy timeout; nothing was stored."""


class DatabaseNotWritable(StoreError):
    """Create the folder, or make file and folder writable for this user."""


class DiskFull(StoreError):
    """Free some space; nothing of the transaction was stored, everything before it was."""


class DatabaseDamaged(StoreError):
    """Restore a backup, or move the file away and start with an empty database."""


class SchemaOutdated(StoreError):
    """Open it with any wattfront command of this version but doctor: that upgrades it."""

    def __init__(self, *, found: str | None, needed: str) -> None:
        state = "has no tables yet" if found is None else f"is at schema version {found}"
        super().__init__(f"the database {state}, this program needs {needed}; `wattfront jobs` upgrades it")
        self.found = found
        self.needed = needed


class SchemaTooNew(StoreError):
    """Install the newer wattfront that wrote the database, or use another database."""

    def __init__(self, *, found: str, needed: str) -> None:
        super().__init__(
            f"the database is at schema version {found}, which this program does not know (it needs {needed}); "
            "install the newer wattfront that wrote it, or use another database"
        )
        self.found = found
        self.needed = needed


class MigrationFailed(StoreError):
    """Report the revision; the database is as it was before."""


class RecordNotStorable(StoreError):
    """Correct the field that the message names before storing."""


class RecordUnreadable(StoreError):
    """Use the version that wrote the record; the message names the field."""


class JobNotFound(StoreError):
    """List the jobs with `wattfront jobs` and give an id, or at least its first 4 characters."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id!r}; give an id from the list of jobs, or its first 4 characters")
        self.job_id = job_id


class AmbiguousJob(StoreError):
    """Give more characters of the id."""

    def __init__(self, prefix: str, candidates: Sequence[str]) -> None:
        super().__init__(f"{prefix!r} fits {', '.join(candidates)}; give more characters")
        self.prefix = prefix
        self.candidates = tuple(candidates)


class JobClaimed(StoreError):
    """Wait until its worker is done or its lease runs out."""

    def __init__(self, job_id: str, *, owner: str, lease_expires_at: datetime) -> None:
        super().__init__(
            f"job {job_id} is held by {owner} until {lease_expires_at.isoformat(timespec='seconds')}; "
            "wait for that worker, or until its lease runs out"
        )
        self.job_id = job_id
        self.owner = owner
        self.lease_expires_at = lease_expires_at


class JobEnded(StoreError):
    """Create a new job with the same request."""

    def __init__(self, job_id: str, *, state: str) -> None:
        super().__init__(f"job {job_id} is already {state}; create a new job with the same request")
        self.job_id = job_id
        self.state = state


class LeaseLost(StoreError):
    """Stop working on the job: another worker took it, or it ended."""

    def __init__(self, job_id: str, *, owner: str) -> None:
        super().__init__(f"{owner} no longer holds job {job_id}: another worker took it, or it ended")
        self.job_id = job_id
        self.owner = owner


class TrialNotStored(StoreError):
    """Start and finish the trial before anything refers to it."""


class DeviceNotStored(StoreError):
    """Call `DeviceStore.seen` before a job refers to the device."""

    def __init__(self, uuid: str) -> None:
        super().__init__(f"device {uuid} was never stored: no job has run on it")
        self.uuid = uuid


class KeyExists(StoreError):
    """Choose another name; those of revoked keys stay taken, as the audit log names them."""

    def __init__(self, name: str) -> None:
        super().__init__(f"name is {name!r}: there is or was a key of that name; choose another")
        self.name = name


class KeyNotFound(StoreError):
    """List the keys with `wattfront keys list` and give a name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no key {name!r}; give a name from `wattfront keys list`")
        self.name = name


class ScheduleNotFound(StoreError):
    """List the schedules with `wattfront schedules list` and give a name, or an id or its first 4 characters."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no schedule {name!r}; give a name or an id from `wattfront schedules list`")
        self.name = name


class AmbiguousSchedule(StoreError):
    """Give more characters of the id, or the name."""

    def __init__(self, prefix: str, names: Sequence[str]) -> None:
        super().__init__(f"{prefix!r} fits the schedules {', '.join(names)}; give more characters, or the name")
        self.prefix = prefix
        self.names = tuple(names)


class ScheduleExists(StoreError):
    """Choose another name, or change the schedule that has it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"name is {name!r}: there is a schedule of that name; choose another, or change that one")
        self.name = name


class ScheduleChanged(StoreError):
    """Read the schedule again and repeat the change on what it is now."""

    def __init__(self, name: str, *, expected: int, found: int) -> None:
        super().__init__(
            f"schedule {name!r} is version {found}, and the change is of version {expected}; read it again"
        )
        self.expected = expected
        self.found = found


class WorkloadNotFound(StoreError):
    """List the uploaded workloads with GET /v1/workloads and give a name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no uploaded workload {name!r}; GET /v1/workloads lists them")
        self.name = name


class WorkloadExists(StoreError):
    """Upload under another name, or delete the one that is there."""

    def __init__(self, name: str, *, sha256: str) -> None:
        super().__init__(
            f"name is {name!r}: a workload of that name has another content (SHA-256 {sha256[:12]}...); choose another "
            "name, or delete that one first"
        )
        self.name = name


class WorkloadInUse(StoreError):
    """Wait until the jobs have ended, or change the schedules; then delete it."""

    def __init__(self, name: str, users: Sequence[str], *, num_users: int) -> None:
        more = f" and {num_users - len(users)} more" if num_users > len(users) else ""
        super().__init__(f"workload {name!r} is needed by {', '.join(users)}{more}; end or change those first")
        self.name = name


class TooManyWorkloads(StoreError):
    """Delete some."""

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} workloads are kept, and more are not taken; delete some")


class ImportNotFound(StoreError):
    """List the imported result files with `wattfront imports` and give a number."""

    def __init__(self, import_id: int) -> None:
        super().__init__(f"there is no import {import_id}; `wattfront imports` and GET /v1/imports list them")
        self.import_id = import_id


class TooManyImports(StoreError):
    """Delete some."""

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} imported result files are kept, and more are not taken; delete some")


class BackupFailed(StoreError):
    """Give another path, or make room; the database is as it was."""
