"""The audit log: what was done is listed newest first, and only if it was done."""

from __future__ import annotations

import pytest

from db.audit import MAX_SUBJECT, AuditStore, add_entry
from db.database import Database
from tests.db.factories import Clock


@pytest.fixture
def audit(database: Database, clock: Clock) -> AuditStore:
    return AuditStore(database, clock.now)


def test_entries_come_in_pages_newest_first(audit: AuditStore, clock: Clock) -> None:
    """Following the numbers shows every entry once, with who did what to what, when."""
    for number in range(3):
        audit.add(actor="ci", action="job.create", subject=f"job/{number}", detail={"priority": number})
    first = audit.list(limit=2)
    rest = audit.list(limit=2, before=first[-1].id)
    assert [entry.subject for entry in [*first, *rest]] == ["job/2", "job/1", "job/0"]
    assert (first[0].actor, first[0].action, first[0].detail, first[0].at) == (
        "ci",
        "job.create",
        {"priority": 2},
        clock.now(),
    )


def test_entries_of_one_subject(audit: AuditStore) -> None:
    """What was done to one thing is listed alone."""
    audit.add(actor="ci", action="job.create", subject="job/1")
    audit.add(actor="local", action="key.create", subject="key/ci")
    assert [entry.action for entry in audit.list(limit=9, subject="key/ci")] == ["key.create"]


def test_what_is_rolled_back_was_not_done(audit: AuditStore, database: Database, clock: Clock) -> None:
    """An entry in a caller's transaction is kept with what it tells of, or not at all."""
    with database.transaction() as session:
        add_entry(session, now=clock.now(), actor="ci", action="job.create", subject="job/1")
        session.rollback()
    assert audit.list(limit=9) == []


def test_a_long_subject_is_cut(audit: AuditStore) -> None:
    """An entry that is too long for its column is no reason not to write it down."""
    audit.add(actor="ci", action="workload.create", subject="workload/" + "x" * 300)
    assert len(audit.list(limit=1)[0].subject) == MAX_SUBJECT
