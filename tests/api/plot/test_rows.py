"""Figures of trials as the rows of the front chart."""

from __future__ import annotations

import json
import math
from typing import Any

from api.plot.axes import Span
from api.plot.rows import drawn, front_rows
from tests.api.plot.figures import make_figures, many_rows


def test_every_trial_is_where_it_belongs() -> None:
    """Front points come by latency at the mean of their windows, beaten ones and those that do not count apart."""
    rows = front_rows(make_figures())
    assert [(row["trial"], row["x"], row["y"]) for row in rows.front] == [(1, 20.0, 3.0), (2, 30.2, 5.05)]
    assert [row["trial"] for row in rows.dominated] == [0]  # 3 is a window of the point of 2
    assert [(row["trial"], row["state"]) for row in rows.greyed] == [(4, "infeasible"), (5, "invalid")]
    assert rows.num_without_figures == 1  # the failed one; what runs may still have some


def test_an_unknown_end_of_an_interval_is_at_the_dot() -> None:
    """Interval bars end at the dot where a bound is not known, and ties are marked."""
    fast, frugal = front_rows(make_figures()).front
    assert (fast["x_low"], fast["x_high"], fast["y_low"], fast["y_high"]) == (19.0, 20.0, 2.5, 3.5)
    assert (frugal["y_low"], frugal["is_tied"], fast["is_tied"]) == (5.05, True, False)


def test_the_default_is_marked_where_it_was_measured() -> None:
    """The default configuration is marked at its window, or at its point of the front; without figures not at all."""
    (default,) = front_rows(make_figures()).default
    assert (default["x"], default["y"], default["label"]) == (40.0, 2.0, "default")
    (on_front,) = front_rows(make_figures(default=3)).default
    assert (on_front["trial"], on_front["x"], on_front["y"]) == (3, 30.2, 5.05)
    assert front_rows(make_figures(default=6)).default == []
    assert front_rows(make_figures(default=None)).default == []


def test_the_axes_show_everything_that_is_drawn() -> None:
    """Dots, bars and limit lie between the ends of the axes; another limit than the job's can be asked for."""
    rows = front_rows(make_figures())
    assert (rows.limit_ms, rows.x.low, rows.y.low) == (50.0, 0.0, 0.0)
    assert rows.x.high > 90.0
    assert rows.y.high > 6.0
    assert front_rows(make_figures(), limit_ms=70.0).limit_ms == 70.0
    assert (rows.series, rows.max_batch, rows.origin) == (["bf16", "fp8"], 64, "simulated")


def test_rows_are_plain_json() -> None:
    """Every row can be written as JSON, so that page and pictures can have it."""
    rows = front_rows(make_figures(sla={}))
    assert rows.limit_ms is None
    assert json.loads(json.dumps([*rows.front, *rows.dominated, *rows.greyed, *rows.default]))


def test_a_job_without_trials_has_empty_rows() -> None:
    """Before the first trial there is nothing to draw, on axes that are there."""
    trials: dict[str, Any] = {
        name: {} if name in ("knobs", "latencies_ms") else [] for name in make_figures()["trials"]
    }
    rows = front_rows(make_figures(trials=trials, front=[], default=None, sla={}))
    assert (rows.front, rows.dominated, rows.x.high) == ([], [], 1.0)


def test_dots_on_top_of_each_other_are_drawn_once() -> None:
    """A few dots are all drawn; of many one of a kind in each cell, and none is far from one that is drawn."""
    x, y = Span("linear", 0.0, 40.0), Span("log", 1.0, 16.0)
    few, many = many_rows(100), many_rows(20_000)
    assert drawn(few, x, y) == few
    shown = drawn(many, x, y)
    assert 1_500 < len(shown) < 2 * 120 * 60
    for row in many[::100]:
        beside = [one for one in shown if one["series"] == row["series"] and abs(one["x"] - row["x"]) <= 40 / 120]
        assert any(abs(math.log(one["y"] / row["y"])) <= math.log(16) / 60 for one in beside)
