"""What is due next, and what becomes of runs when clocks change."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.calendar_preview import calendar
from api.stores import Stores
from tests.api.night_watch import make_spec

WINTER = datetime(2026, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"window_start": "02:30"},
            (
                "Clocks go forward from 02:00 to 03:00 on 2026-03-29; the run then starts at 03:00 on 2026-03-29 "
                "(there is no 02:30 on that day) and has 2 h.",
                "Clocks go back from 03:00 to 02:00 on 2026-10-25; the run then starts at 02:30 on 2026-10-25 for the "
                "first time and has 3.5 h.",
            ),
        ),
        (
            {"cron": "30 1 * * *", "timezone": "America/New_York"},
            (
                "Clocks go forward from 02:00 to 03:00 on 2026-03-08; the run after it starts at 01:30 on 2026-03-09.",
                "Clocks go back from 02:00 to 01:00 on 2026-11-01; the run then starts at 01:30 on 2026-11-01 for the "
                "first time.",
            ),
        ),
        (
            {"cron": "0 12 * * 3"},
            (
                "Clocks go forward from 02:00 to 03:00 on 2026-03-29; nothing is due about then.",
                "Clocks go back from 03:00 to 02:00 on 2026-10-25; nothing is due about then.",
            ),
        ),
        ({"timezone": "Asia/Tokyo"}, ()),
    ],
)
def test_clock_changes_are_told_in_words(changes: dict[str, str], words: tuple[str, ...]) -> None:
    """The next two changes are told with what becomes of the run; a zone whose clocks stay has none."""
    found = calendar(make_spec(**changes), after=WINTER, count=1)
    assert words == tuple(one.words for one in found.clock_changes)


def test_a_change_has_its_instant_and_offsets() -> None:
    """Beside the words stand the instant, the offsets before and after, and the run as lists of runs have it."""
    change = calendar(make_spec(), after=WINTER, count=1).clock_changes[0]
    assert change.changes_at == datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert (change.offset_before, change.offset_after) == ("+01:00", "+02:00")
    assert change.due is not None
    assert change.due.due_local == "2026-03-29T01:00+01:00"


def test_what_is_due_is_counted_before_a_schedule_is_made(stores: Stores) -> None:
    """The route lists as many times as asked for, and names the field that it cannot read."""
    client = TestClient(create_app(stores), base_url="http://localhost")
    asked: dict[str, str | int | None] = {"timezone": "Europe/Berlin", "start": "23:00", "end": "02:00", "count": 3}
    found = client.get("/v1/calendar", params=asked).json()
    assert [due["due_local"][11:16] for due in found["items"]] == ["23:00"] * 3
    wrong: tuple[tuple[dict[str, str | None], str], ...] = (
        ({"timezone": "Berlin"}, "timezone"),
        ({"start": "7pm"}, "nightly.start"),
        ({"cron": "0 2 * * *"}, "cron"),
        ({"start": None, "end": None}, "nightly"),
    )
    for changes, field in wrong:
        given = {name: value for name, value in (asked | changes).items() if value is not None}
        answer = client.get("/v1/calendar", params=given)
        assert (answer.status_code, [one["field"] for one in answer.json()["errors"]]) == (422, [field])
