"""Times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from api.pages.moments import ago, lasting, utc_iso, utc_words

NOW = datetime(2026, 3, 29, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("distance_s", "words"),
    [
        (0, "just now"),
        (59.9, "just now"),
        (60, "1 min ago"),
        (3_599, "59 min ago"),
        (3_600, "1 h ago"),
        (86_399, "23 h ago"),
        (86_400, "1 d ago"),
        (30 * 86_400, "2026-02-27"),
        (-5, "in a moment"),
        (-90, "in 1 min"),
        (-7_200, "in 2 h"),
        (-40 * 86_400, "2026-05-08"),
    ],
)
def test_a_time_is_told_by_its_distance(distance_s: float, words: str) -> None:
    """The largest whole unit is told, before and after now; far away the date."""
    assert words == ago(NOW - timedelta(seconds=distance_s), NOW)


def test_the_exact_time_is_in_utc() -> None:
    """A time of any zone is told in UTC, to the second."""
    at = datetime(2026, 3, 29, 3, 30, 5, tzinfo=timezone(timedelta(hours=2)))
    assert (utc_words(at), utc_iso(at)) == ("2026-03-29 01:30:05 UTC", "2026-03-29T01:30:05Z")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-1, "0 s"), (59.9, "59 s"), (60, "1 min"), (7_500, "2 h 5 min"), (90_000, "1 d 1 h")],
)
def test_a_duration_has_at_most_two_units(seconds: float, words: str) -> None:
    """A duration is told in its two largest units, rounded down."""
    assert words == lasting(seconds)
