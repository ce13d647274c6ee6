"""Jobs as lists show them: orders, pages, and the best that each found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from db.database import Database
from db.fronts import FrontStore
from db.job import JobState
from db.job_filter import JobFilter
from db.job_lists import JobListStore, JobOrder
from db.jobs import JobStore
from db.results import ResultStore
from db.trials import TrialStore
from probes.device import Method
from tests.db.factories import START, make_measurement, make_point, make_reading, make_request, make_trial
from tuner.measurement import Estimate
from tuner.pareto import front_of
from tuner.trial import Trial, TrialState

AXIS = "tpot_p99_ms"


@pytest.fixture
def lists(database: Database) -> JobListStore:
    return JobListStore(database)


@pytest.fixture
def results(database: Database) -> ResultStore:
    return ResultStore(database)


def windows(*tok_per_j: float) -> list[Trial]:
    """Return complete trials of one point each, the first of which is the default point."""
    figures = [make_measurement(tok_per_j=Estimate(one, 0.99 * one, 1.01 * one)) for one in tok_per_j]
    return [
        make_trial(number=number, point=make_point(8 + number), measurement=one) for number, one in enumerate(figures)
    ]


def store(jobs: JobStore, trials: TrialStore, name: str, done: Sequence[Trial]) -> str:
    """Store a running job with trials that have ended."""
    claim = jobs.create_claimed(make_request(name=name), "host:1", 600)
    for trial in done:
        assert trials.finish(trials.start(claim, trial.number, trial.point), trial)
    return claim.job_id


def finish(jobs: JobStore, results: ResultStore, job_id: str, done: Sequence[Trial]) -> None:
    """Store what a job found, and end it."""
    results.save(job_id, done, front_of(done, AXIS, created_at=START))


def test_a_running_job_shows_its_best_window(jobs: JobStore, trials: TrialStore, lists: JobListStore) -> None:
    """Best and gain are those of the windows until now, of complete trials alone, and are not called final."""
    slow = make_trial(
        number=3, point=make_point(99), state=TrialState.INFEASIBLE, reason="sla:ttft_p99_ms",
        measurement=make_measurement(tok_per_j=Estimate(9.0)),
    )  # fmt: skip
    store(jobs, trials, "runs", [*windows(2.0, 3.0), slow])
    (listed,) = lists.page(limit=9)
    assert (listed.best_tok_per_j, listed.gain, listed.is_final, listed.is_estimate) == (3.0, 1.5, False, False)


def test_a_finished_job_shows_its_front(
    jobs: JobStore, trials: TrialStore, results: ResultStore, lists: JobListStore
) -> None:
    """Best, gain and its interval are those of the stored point with the most tokens per joule."""
    done = [
        make_trial(measurement=make_measurement(tok_per_j=Estimate(2.0, 1.9, 2.1))),
        make_trial(number=1, point=make_point(16), measurement=make_measurement(tok_per_j=Estimate(4.0, 3.9, 4.1))),
    ]
    job_id = store(jobs, trials, "ran", done)
    finish(jobs, results, job_id, done)
    (listed,) = lists.page(limit=9)
    assert (listed.best_tok_per_j, listed.gain, listed.is_final) == (4.0, 2.0, True)
    assert listed.gain_low is not None
    assert listed.gain_high is not None
    assert listed.gain_low < 2.0 < listed.gain_high
    (dots,) = lists.front_dots([job_id]).values()
    assert [dot.tok_per_j for dot in dots] == [4.0]
    assert {"tpot_p99_ms", "ttft_p99_ms"} <= dots[0].latencies_ms.keys()


def test_a_job_without_figures_shows_none(jobs: JobStore, lists: JobListStore) -> None:
    """A job that waits has no best, no gain, and nothing that could be an estimate."""
    jobs.create(make_request())
    (listed,) = lists.page(limit=9)
    assert (listed.best_tok_per_j, listed.gain, listed.is_estimate) == (None, None, None)


def test_an_estimate_is_told(jobs: JobStore, trials: TrialStore, lists: JobListStore) -> None:
    """Where energy comes from a formula, the figures of a running job are marked."""
    guessed = make_measurement(reading=make_reading(method=Method.ESTIMATE))
    store(jobs, trials, "runs", [make_trial(measurement=guessed)])
    assert [listed.is_estimate for listed in lists.page(limit=9)] == [True]


@pytest.mark.parametrize(
    ("order", "names"),
    [
        (JobOrder.NEWEST, ["waits", "c", "B", "a"]),
        (JobOrder.NAME, ["a", "B", "c", "waits"]),
        (JobOrder.TOK_PER_J, ["c", "B", "a", "waits"]),
        (JobOrder.GAIN, ["B", "c", "a", "waits"]),
    ],
)
def test_every_order_can_be_read_page_by_page(
    jobs: JobStore, trials: TrialStore, results: ResultStore, lists: JobListStore, order: JobOrder, names: list[str]
) -> None:
    """Pages of one job are together what one long page is; what is not known comes last; equals are newest first."""
    for name, figures in (("a", (2.0, 3.0)), ("B", (1.0, 4.0)), ("c", (4.0, 6.0))):
        done = windows(*figures)
        finish(jobs, results, store(jobs, trials, name, done), done)
    jobs.create(make_request(name="waits"))
    assert names == [listed.job.name for listed in lists.page(limit=9, order=order)]
    read: list[str] = []
    after = None
    while found := lists.page(limit=1, order=order, after=after):
        read.append(found[0].job.name)
        after = found[0].job.id
    assert names == read


def test_names_are_listed_once(jobs: JobStore, lists: JobListStore) -> None:
    """Models and devices that jobs name are listed in order, each once."""
    for model, device in (("b", "x"), ("a", "x"), ("b", "y")):
        jobs.create(make_request(model=model, device=device))
    assert (lists.models(), lists.devices()) == (["a", "b"], ["x", "y"])


def test_the_last_window_tells_the_power(jobs: JobStore, trials: TrialStore, lists: JobListStore) -> None:
    """The power of a running job is that of the window that ended last; a job without windows has none."""
    powers = (100.0, 300.0, None)
    done = [
        make_trial(number=number, point=make_point(number + 1), measurement=make_measurement(mean_power_w=power))
        for number, power in enumerate(powers)
    ]
    job_id, other = store(jobs, trials, "runs", done), store(jobs, trials, "starts", [])
    assert {job_id: 300.0} == lists.last_windows_w([job_id, other])


def test_only_states_that_are_asked_for_are_listed(jobs: JobStore, fronts: FrontStore, lists: JobListStore) -> None:
    """A filter of `db.job_filter` holds for lists as it does for the REST interface."""
    jobs.create(make_request(name="waits"))
    jobs.create_claimed(make_request(name="runs"), "host:1", 600)
    found = lists.page(limit=9, only=JobFilter(state=JobState.QUEUED))
    assert [listed.job.name for listed in found] == ["waits"]
