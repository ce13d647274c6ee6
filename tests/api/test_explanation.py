"""The explanation of a stored job: as JSON over HTTP and on the command line, on the page, and at the job's end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.explanation import Explanations, end_lines, explanation_of, explanation_of_job
from api.explanation_schemas import ExplanationOut
from api.stores import Stores
from db.job import Job, JobState
from tests.api.conftest import Main
from tests.api.scripted import claimed
from tests.api.test_records import missed
from tests.db.factories import make_request
from tests.tuner.test_explain import TestGains, job
from tuner.request import TuneRequest
from tuner.trial import Trial, TrialRole


def job_with(stores: Stores, *trials: Trial, request: TuneRequest | None = None) -> str:
    """Store a finished job with trials."""
    claim = claimed(stores, request or job())
    for trial in trials:
        stores.trials.finish(stores.trials.start(claim, trial.number, trial.point, role=trial.role), trial)
    stores.jobs.finish(claim, JobState.FINISHED, "plateau")
    return claim.job_id


@pytest.fixture
def explained(stores: Stores) -> str:
    return job_with(stores, *TestGains.TRIALS)


def test_every_view_has_the_same_sentences(stores: Stores, explained: str, main_with: Main) -> None:
    """The command line, its JSON and the service's JSON tell the same, and the page fetches the latter."""
    found = explanation_of_job(stores, explained)
    client = TestClient(create_app(stores), base_url="http://localhost")
    assert client.get(f"/v1/jobs/{explained[:8]}/explanation").json() == found.model_dump(mode="json")
    assert main_with("explain", explained[:8]).out.splitlines() == found.sentences
    assert json.loads(main_with("explain", explained, "--format=json").out) == found.model_dump(mode="json")
    assert f'href="/v1/jobs/{explained}/explanation"' in client.get(f"/jobs/{explained}").text


def test_the_json_has_the_figures_behind_the_sentences(stores: Stores, explained: str) -> None:
    """Gains, steps, what was spent and where the energy is from stand beside the words."""
    found = explanation_of_job(stores, explained)
    assert found.recommended is not None
    assert (found.recommended.trial, found.recommended.tok_per_j.value, found.is_final) == (3, 4.0, True)
    assert [(gain.against, gain.reference and gain.reference.trial) for gain in found.gains] == [
        ("default", 0),
        ("best_static_clock", 1),
        ("highest_throughput", 4),
    ]
    assert found.gains[0].tok_per_j is not None
    assert (found.gains[0].tok_per_j.ratio, found.gains[0].tok_per_j.is_told_apart) == (2.0, True)
    assert {knob.knob: (knob.from_value, knob.to_value, knob.num_pairs) for knob in found.knobs} == {
        "max_batch": (8, 16, 2),
        "sm_clock_cap_mhz": (2000, 1000, 1),
    }
    assert [knob.tok_per_j for knob in found.knobs] == [None, None]  # five points are too few
    assert (found.num_points, found.tok_per_j_r2, found.spent.num_trials) == (5, None, 5)
    assert (found.energy_scope, found.energy_method, found.is_estimate) == ("gpu", "counter", False)
    assert (found.ended_because, found.nearest_misses) == ("plateau", [])


def test_a_job_without_a_feasible_point_has_the_nearest(stores: Stores) -> None:
    """Several of them are listed with what each misses by, in JSON and in words; a repeated point stands once."""
    again = replace(missed(2, 540.0), point=missed(1, 550.0).point, role=TrialRole.FINALIST)
    found = explanation_of_job(
        stores, job_with(stores, missed(0, 900.0), missed(1, 550.0), again, request=make_request())
    )
    assert (found.recommended, found.gains) == (None, [])
    assert [miss.trial for miss in found.nearest_misses] == [1, 0]
    assert found.sentences[0] == (
        "No configuration meets the limits; nearest: "
        "trial 1, max_batch=2 precision=fp32: ttft_p99_ms is 550, the limit is 500 (missed by 10 %); "
        "trial 0, max_batch=1 precision=fp32: ttft_p99_ms is 900, the limit is 500 (missed by 80 %)."
    )


def test_the_lines_at_a_jobs_end_are_six_at_most(stores: Stores, explained: str) -> None:
    """The recommendation, three comparisons, the knobs, and what was used of the budget."""
    lines = end_lines(stores, stores.jobs.get(explained))
    assert len(lines) == 6
    assert lines[0].startswith("Recommended: trial 3")
    assert lines[-1] == "used: 5 of 24 trials"


def test_a_job_that_was_only_submitted_is_explained_too(stores: Stores) -> None:
    """Before the first trial there is nothing to tell, and nothing breaks."""
    found = explanation_of_job(stores, stores.jobs.create(job()).id)
    assert (found.recommended, found.energy_scope, found.knobs, found.is_final) == (None, None, [], False)


def test_an_unknown_job_is_said_to_be(stores: Stores, main_with: Main) -> None:
    """An id that there is not gives 404 over HTTP and exit code 2 on the command line."""
    client = TestClient(create_app(stores), base_url="http://localhost")
    assert client.get("/v1/jobs/ffffffff/explanation").status_code == 404
    ended = main_with("explain", "ffffffff")
    assert (ended.code, ended.out) == (2, "")


class TestExplanations:
    """What an application remembers of the jobs that it explained."""

    def test_a_job_that_did_not_move_is_explained_once(self, stores: Stores, explained: str) -> None:
        """The second time neither trials are read nor anything computed, and the answer is the same."""
        explanations = Explanations()
        found = explanations.of(stores.jobs.get(explained), lambda: stores.trials.list(explained))
        assert found is explanations.of(stores.jobs.get(explained), lambda: pytest.fail("the trials were read again"))

    def test_a_trial_more_is_explained_anew(self, stores: Stores) -> None:
        """One that begins changes nothing; one that ends does, and so does the end of the job."""
        explanations, claim = Explanations(), claimed(stores, job())
        reads: list[int] = []

        def read() -> Sequence[Trial]:
            trials = stores.trials.list(claim.job_id)
            reads.append(len(trials))
            return trials

        def explain_again() -> ExplanationOut:
            return explanations.of(stores.jobs.get(claim.job_id), read)

        assert explain_again().spent.num_trials == 0
        started = stores.trials.start(claim, 0, TestGains.TRIALS[0].point)
        assert explain_again().spent.num_trials == 0
        stores.trials.finish(started, TestGains.TRIALS[0])
        assert explain_again().spent.num_trials == 1
        assert not explain_again().is_final
        stores.jobs.finish(claim, JobState.FINISHED, "plateau")
        assert explain_again().is_final
        assert reads == [0, 1, 1]

    def test_only_so_many_are_remembered(self, stores: Stores, explained: str) -> None:
        """Of more jobs than there is room for, the one that was not asked for longest is forgotten."""
        explanations = Explanations(max_remembered=1)
        of_two = [stores.jobs.get(explained), stores.jobs.create(job()), stores.jobs.get(explained)]
        found = [explanations.of(one, list) for one in of_two]
        assert found[0] == found[2]
        assert found[0] is not found[2]

    def test_pages_and_routes_share_them(self, stores: Stores, explained: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A page and a request after it explain a job once; another application remembers nothing of it."""
        calls: list[str] = []

        def counted(job: Job, trials: Sequence[Trial]) -> ExplanationOut:
            calls.append(job.id)
            return explanation_of(job, trials)

        monkeypatch.setattr("api.explanation.explanation_of", counted)
        for _ in range(2):
            client = TestClient(create_app(stores), base_url="http://localhost")
            assert client.get(f"/jobs/{explained}").status_code == 200
            assert client.get(f"/v1/jobs/{explained}/explanation").status_code == 200
        assert calls == [explained] * 2
