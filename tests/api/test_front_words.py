"""Sentences beside a front's intervals and ties."""

from __future__ import annotations

from typing import Any

import pytest

from api import schemas
from api.front_words import interval_notes, miss_words, tied_words
from api.records import measurement_out
from tests.db.factories import make_measurement

ESTIMATE = schemas.EstimateOut(value=2.0, low=None, high=None)


def make_out(**changes: Any) -> schemas.PointOut:
    """A point that leads, with one window and nothing to say of it."""
    fields: dict[str, Any] = {
        "trial": 0,
        "knobs": {"max_batch": 8},
        "tok_per_j": ESTIMATE,
        "latency_ms": ESTIMATE,
        "output_tok_s": ESTIMATE,
        "mean_power_w": None,
        "energy_scope": "gpu",
        "energy_method": "counter",
        "is_estimate": False,
        "gain_over_default": None,
        "num_windows": 1,
        "num_sessions": 1,
        "interval_of": "window",
        "tied_with": [],
        "is_leading": True,
        "note": None,
        "measurement": measurement_out(make_measurement()),
    }
    return schemas.PointOut(**(fields | changes))


def test_of_no_points_nothing_is_said() -> None:
    """An empty front has no intervals to speak of."""
    assert interval_notes([]) == []


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (["window", "window"], "another launch may differ by more"),
        (["sessions", "sessions"], "between launches of the engine"),
        (["window", "sessions"], "of one window they are of scatter inside it alone"),
    ],
)
def test_what_intervals_speak_of_is_said(kinds: list[str], words: str) -> None:
    """Whether intervals are of one window, between launches, or both kinds stands in one sentence."""
    (note,) = interval_notes([make_out(interval_of=kind) for kind in kinds])
    assert words in note


@pytest.mark.parametrize(
    ("missed_by", "is_cut", "words"),
    [
        (0.054, False, "too slow (missed by 5.4 %)"),
        (0.5, True, "too slow (missed by at least 50 %)"),
        (0.0, True, "too slow (missed, by how much is not known)"),
    ],
)
def test_a_miss_is_told_with_what_is_known_of_it(missed_by: float, is_cut: bool, words: str) -> None:
    """A window that was cut shows the least that its limit is missed by, or nothing of it yet."""
    miss = schemas.MissOut(trial=1, knobs={}, detail="too slow", missed_by=missed_by, is_cut=is_cut)
    assert words == miss_words(miss)


def test_simulated_launches_are_not_taken_for_real_ones() -> None:
    """Intervals between simulated launches are told as what they are."""
    (note,) = interval_notes([make_out(energy_method="simulated", num_sessions=3, interval_of="sessions")])
    assert "differ less than real ones" in note


@pytest.mark.parametrize(("behind", "words"), [(1, "1 of 3 points is on the front by a tie"), (2, "2 of 3 points are")])
def test_ties_are_counted(behind: int, words: str) -> None:
    """Points that another is ahead of are counted in words that agree with their number."""
    assert words in interval_notes([make_out(is_leading=i >= behind) for i in range(3)])[1]


def test_a_note_is_said_once_for_all_that_have_it() -> None:
    """Trials with the same note share a sentence, and all of them are not counted up."""
    notes = interval_notes([make_out(trial=3, note="left out"), make_out(trial=5, note="left out"), make_out(note="x")])
    assert notes[1:] == ["Trials 3, 5: left out.", "Trial 0: x."]
    assert interval_notes([make_out(trial=i, note="x") for i in range(3)])[1:] == ["All points: x."]


def test_tied_trials_are_named() -> None:
    """Numbers of tied trials are written as the page and the table show them."""
    assert [tied_words(make_out(tied_with=numbers)) for numbers in ([], [3, 7])] == ["", "#3, #7"]
