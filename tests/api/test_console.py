"""What the command line prints."""

from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from api.console import duration_words, front_csv, front_notes, jobs_table, point_words, print_front, print_table
from api.records import front_of_job, job_out
from api.stores import Stores
from probes.device import Method, Scope
from tests.api.scripted import claimed
from tests.db.factories import START, make_measurement, make_point, make_reading, make_request, make_trial
from tuner.measurement import Distribution, Estimate


@pytest.fixture
def front_job(stores: Stores) -> str:
    """A job with two points on its front, of estimated energy."""
    claim = claimed(stores, make_request())
    reading = make_reading(scope=Scope.CPU_SHARE, method=Method.ESTIMATE, uncertainty_j=150.0)
    slow = Distribution(count=9, p99=Estimate(62.0))
    for number, measurement in enumerate(
        (
            make_measurement(reading=reading),
            make_measurement(reading=reading, tok_per_j=Estimate(3.0, 2.8, None), tpot=slow),
        )
    ):
        point = make_point(8 << number)
        trial = make_trial(number=number, point=point, measurement=measurement)
        stores.trials.finish(stores.trials.start(claim, number, point), trial)
    return claim.job_id


def printed(stores: Stores, job_id: str) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_front(console, front_of_job(stores, job_id))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_front_as_csv(stores: Stores, front_job: str) -> None:
    """CSV has one row a point with knobs, figures, intervals, and whether the energy is an estimate."""
    rows = list(csv.DictReader(io.StringIO(front_csv(front_of_job(stores, front_job)))))
    assert [
        (
            row["trial"],
            row["max_batch"],
            row["precision"],
            row["tok_per_j"],
            row["tok_per_j_low"],
            row["tok_per_j_high"],
        )
        for row in rows
    ] == [("0", "8", "fp32", "2.0", "1.9", "2.1"), ("1", "16", "fp32", "3.0", "2.8", "")]
    assert [(row["tpot_p99_ms"], row["gain_over_default"]) for row in rows] == [("31.0", "1.0"), ("62.0", "1.5")]
    assert {("1", "1", "window", "", "true")} == {
        (row["num_windows"], row["num_sessions"], row["interval_of"], row["tied_with"], row["is_leading"])
        for row in rows
    }
    assert {("cpu_share", "estimate", "true")} == {
        (row["energy_scope"], row["energy_method"], row["is_estimate"]) for row in rows
    }


def test_an_empty_front_as_csv(stores: Stores) -> None:
    """Without points there is the line of headings alone."""
    assert front_csv(front_of_job(stores, stores.jobs.create(make_request()).id)).startswith("trial,tok_per_j,")


def test_a_front_says_where_its_joules_come_from(stores: Stores, front_job: str) -> None:
    """Beside the figures stand scope, method, that nothing was measured, and how uncertain that is."""
    notes = front_notes(front_of_job(stores, front_job))
    assert notes[0].startswith("Energy: ESTIMATE, nothing was measured; scope cpu_share, method estimate")
    assert "about ±50 %" in notes[1]
    assert "1.50x tokens per joule for 2.00x tpot_p99_ms" in notes[2]


def test_a_front_is_a_table(stores: Stores, front_job: str) -> None:
    """Knobs, figures and intervals of every point are printed, the fastest first."""
    text = printed(stores, front_job)
    assert text.index("1.9..2.1") < text.index("2.8..?")
    assert "1.50x" in text


def test_ties_and_repeats_have_columns(stores: Stores) -> None:
    """A front with a tie names the trials, and one of repeated points how many windows they had."""
    claim = claimed(stores, make_request())
    for number, (value, batch) in enumerate(((2.0, 8), (1.99, 16), (2.0, 8))):
        point = make_point(batch)
        measurement = make_measurement(tok_per_j=Estimate(value, 1.9, 2.1))
        trial = make_trial(number=number, point=point, measurement=measurement, session=f"s{number}")
        stores.trials.finish(stores.trials.start(claim, number, point), trial)
    text = printed(stores, claim.job_id)
    assert "tied with" in text
    assert "#1" in text
    assert "windows" in text
    assert "1 of 2 points is on the front by a tie" in text


def test_markup_in_names_is_printed_as_it_is(stores: Stores) -> None:
    """A job's name that looks like the terminal library's markup is shown letter by letter."""
    job = stores.jobs.create(make_request(name="[red]x[/red]", model="[bold]m"))
    console = Console(file=io.StringIO(), width=200)
    print_table(Console(width=200, file=console.file, force_terminal=True), jobs_table([job_out(job, START)]))
    assert isinstance(console.file, io.StringIO)
    assert "[red]x[/red]" in console.file.getvalue()
    assert "[bold]m" in console.file.getvalue()


@pytest.mark.parametrize(("is_ended", "words"), [(False, "No trial has ended yet."), (True, "No trial gave a usable")])
def test_without_points_and_misses_it_says_why(stores: Stores, is_ended: bool, words: str) -> None:
    """A job that has only begun is not said to have missed its limits."""
    job = stores.jobs.create(make_request())
    if is_ended:
        stores.jobs.request_cancel(job.id)
    assert words in printed(stores, job.id)


def test_words() -> None:
    """Points and durations are told in few words."""
    assert point_words(make_point(8, prefill_chunk=64)) == "fp32, batch 8, chunk 64"
    assert (duration_words(75.4), duration_words(720)) == ("75 s", "12 min")
