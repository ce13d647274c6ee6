"""All trials of a job in one query: ordered, complete, without their records."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from sqlalchemy import event, update

from db.database import Database
from db.errors import RecordUnreadable
from db.figures import NAMES, stored_figures
from db.jobs import JobStore
from db.records import point_from_json
from db.tables import Base, MeasurementRow, TrialRow
from db.trial_figures import TrialFigureStore
from db.trials import TrialStore
from tests.db.factories import START, make_measurement, make_point, make_request, make_trial
from tuner.trial import TrialState


def test_every_attempt_comes_in_order_with_its_figures(database: Database, jobs: JobStore, trials: TrialStore) -> None:
    """Attempts that were measured, that failed and that run now come by number, whatever the order they ended in."""
    claim = jobs.claim(jobs.create(make_request()).id, "host:1", 1e9)
    other = jobs.claim(jobs.create(make_request()).id, "host:1", 1e9)
    first, second = trials.start(claim, 0, make_point(8)), trials.start(claim, 1, make_point(16))
    failed = make_trial(
        number=1, point=make_point(16), state=TrialState.FAILED, reason="oom", detail="why", measurement=None
    )
    assert trials.finish(second, failed)
    assert trials.finish(first, make_trial(device_s=61.5, session="s0", reused_from="ab/3"))
    trials.start(claim, 2, make_point(32, rate=2.0))
    trials.start(other, 0, make_point(8))

    found = TrialFigureStore(database).of_job(claim.job_id)

    assert (found.number, found.attempt, found.state) == ([0, 1, 2], [1, 1, 1], ["complete", "failed", "running"])
    assert found.knobs == {"max_batch": [8, 16, 32], "precision": ["fp32"] * 3, "rate": [None, None, 2.0]}
    assert point_from_json(json.loads(found.point[0])) == make_point(8)
    assert (found.device_s[0], found.session[0], found.reused_from[0]) == (61.5, "s0", "ab/3")
    assert (found.window_s, found.mean_power_w) == ([30.0, None, None], [10.0, None, None])
    assert found.method == ["counter", None, None]
    assert [found.figures[name][0] for name in NAMES] == stored_figures(make_measurement())
    assert [found.figures[name][1] for name in NAMES] == [None] * len(NAMES)
    assert (found.reason[1], found.detail[1]) == ("oom", "why")
    assert (found.finished_at[0], found.finished_at[2]) == (START + timedelta(seconds=45), None)


def test_a_job_without_trials_has_empty_columns(database: Database, jobs: JobStore) -> None:
    """Before the first trial every column is there, and empty."""
    found = TrialFigureStore(database).of_job(jobs.create(make_request()).id)
    assert (found.number, found.knobs, sorted(found.figures)) == ([], {}, sorted(NAMES))


def test_no_record_is_read(database: Database, jobs: JobStore, trials: TrialStore) -> None:
    """One statement answers, and it does not name the column of whole records."""
    claim = jobs.claim(jobs.create(make_request()).id, "host:1", 1e9)
    assert trials.finish(trials.start(claim, 0, make_point()), make_trial())
    seen: list[str] = []
    with database.read() as session:
        engine = session.get_bind()
    event.listen(engine, "before_cursor_execute", lambda _c, _cu, statement, *_rest: seen.append(statement))
    TrialFigureStore(database).of_job(claim.job_id)
    (statement,) = [one for one in seen if one.startswith("SELECT")]
    assert "record" not in statement


def test_a_measurement_without_figures_has_none(database: Database, jobs: JobStore, trials: TrialStore) -> None:
    """Where the column is empty the trial is there all the same, without figures."""
    claim = jobs.claim(jobs.create(make_request()).id, "host:1", 1e9)
    assert trials.finish(trials.start(claim, 0, make_point()), make_trial())
    with database.transaction() as session:
        session.execute(update(MeasurementRow).values(figures=None))
    found = TrialFigureStore(database).of_job(claim.job_id)
    assert (found.figures["tok_per_j"], found.state) == ([None], ["complete"])


@pytest.mark.parametrize(
    ("table", "broken", "words"),
    [
        (TrialRow, {"point": {"schema": 1}}, "a trial's point is no point"),
        (MeasurementRow, {"figures": [1.0]}, "a measurement's figures are 1, not"),
    ],
)
def test_what_is_damaged_is_named(
    database: Database, jobs: JobStore, trials: TrialStore, table: type[Base], broken: dict[str, object], words: str
) -> None:
    """A point that is none, or figures of another number, stop the reading with what is wrong."""
    claim = jobs.claim(jobs.create(make_request()).id, "host:1", 1e9)
    assert trials.finish(trials.start(claim, 0, make_point()), make_trial())
    with database.transaction() as session:
        session.execute(update(table).values(broken))
    with pytest.raises(RecordUnreadable, match=words):
        TrialFigureStore(database).of_job(claim.job_id)
