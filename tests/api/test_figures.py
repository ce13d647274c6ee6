"""The figures of a job's trials by column: complete, in order, as the front has them, and cheap to ask for again."""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event

from api.app import create_app
from api.figure_answers import FigureAnswers
from api.figures_schemas import FiguresOut
from api.front_answers import FrontAnswers
from api.packing import Packed
from api.stores import Stores, utc_now
from db.job import Claim, JobState
from db.trial_figures import TrialFigures, TrialFigureStore
from tests.db.factories import make_conditions, make_measurement, make_point, make_reading, make_request, make_trial
from tuner.measurement import Distribution, Estimate
from tuner.pareto import front_of
from tuner.request import Limit
from tuner.trial import Trial, TrialState


@pytest.fixture
def client(stores: Stores) -> TestClient:
    return TestClient(create_app(stores), base_url="http://localhost")


def trial(number: int, tok_per_j: float, tpot_ms: float, **changes: Any) -> Trial:
    """A trial of a point of its own with tokens per joule and p99 time per token."""
    tpot = Distribution(count=9, p99=Estimate(tpot_ms, 0.9 * tpot_ms, None))
    measurement = make_measurement(tok_per_j=Estimate(tok_per_j, 0.9 * tok_per_j, 1.1 * tok_per_j), tpot=tpot)
    changes = {"measurement": measurement, "device_s": 60.0, **changes}
    return make_trial(number=number, point=make_point(number + 1), **changes)


def started(stores: Stores, **changes: Any) -> Claim:
    return stores.jobs.claim(stores.jobs.create(make_request(**changes)).id, "host:1", 1e9)


def stored(stores: Stores, claim: Claim, *trials: Trial) -> None:
    for one in trials:
        assert stores.trials.finish(stores.trials.start(claim, one.number, one.point), one)


def ended(stores: Stores, claim: Claim) -> None:
    trials, request = stores.trials.history(claim.job_id), stores.jobs.get(claim.job_id).request
    front = front_of(trials, request.latency_metric, created_at=utc_now(), request=request)
    stores.fronts.save(claim.job_id, front)
    stores.jobs.finish(claim, JobState.FINISHED, "trials")


def asked(client: TestClient, job_id: str, **query: int) -> dict[str, Any]:
    answer = client.get(f"/v1/jobs/{job_id}/figures", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    FiguresOut.model_validate(found)
    return found


def test_every_trial_has_its_figures(client: TestClient, stores: Stores) -> None:
    """Measured, failed and running trials stand in columns of one length; what a trial does not have is null."""
    claim = started(stores)
    clocks = make_reading(conditions=(make_conditions(mean_clock_mhz=1400.0),))
    measured = trial(0, 2.0, 30.0)
    assert measured.measurement is not None
    measured = replace(measured, measurement=replace(measured.measurement, reading=clocks))
    failed = trial(1, 1.0, 1.0, state=TrialState.FAILED, reason="oom", detail="why", measurement=None)
    stored(stores, claim, measured, failed)
    stores.trials.start(claim, 2, make_point(64, rate=0.5))
    found = asked(client, claim.job_id)
    trials = found["trials"]
    assert trials["number"] == [0, 1, 2]
    assert trials["state"] == ["complete", "failed", "running"]
    assert (trials["reason"], trials["detail"]) == ([None, "oom", None], [None, "why", None])
    assert found["knobs"] == ["max_batch", "precision", "rate"]
    assert trials["knobs"] == {"max_batch": [1, 2, 64], "precision": ["fp32"] * 3, "rate": [None, None, 0.5]}
    assert (trials["tok_per_j"], trials["tok_per_j_low"]) == ([2.0, None, None], [1.8, None, None])
    assert (trials["mean_power_w"], trials["mean_clock_mhz"]) == ([10.0, None, None], [1400.0, None, None])
    assert trials["latencies_ms"]["tpot_p99_ms"] == [30.0, None, None]
    assert (trials["latency_low_ms"], trials["latency_high_ms"]) == ([27.0, None, None], [None] * 3)
    assert trials["device_s"] == [60.0, 120.0, None]
    assert (found["default"], found["next_after"], found["state"]) == (0, 1, "running")
    lengths = {
        len(one) for column in trials.values() for one in (column.values() if type(column) is dict else [column])
    }
    assert lengths == {3}


def test_the_front_is_the_jobs_front(client: TestClient, stores: Stores) -> None:
    """Points, intervals and the last hypervolume are those that /front answers."""
    claim = started(stores, sla=(Limit(metric="tpot_p99_ms", bound_ms=100.0),))
    stored(stores, claim, trial(0, 2.0, 30.0), trial(1, 6.0, 60.0), trial(2, 1.0, 90.0))
    ended(stores, claim)
    found, front = asked(client, claim.job_id), client.get(f"/v1/jobs/{claim.job_id}/front").json()
    assert [point["trial"] for point in found["front"]] == [point["trial"] for point in front["points"]] == [0, 1]
    first, shown = found["front"][0], front["points"][0]
    assert [first[f"tok_per_j{end}"] for end in ("", "_low", "_high")] == list(shown["tok_per_j"].values())
    assert [first[f"latency{end}_ms"] for end in ("", "_low", "_high")] == list(shown["latency_ms"].values())
    assert found["front"][1]["gain_over_default"] == 3.0
    assert found["trials"]["hypervolume"] == [140.0, 300.0, 300.0]
    assert found["trials"]["hypervolume"][-1] == pytest.approx(front["hypervolume"])
    assert found["latency_reference_ms"] == 100.0


def test_windows_of_another_origin_do_not_count(client: TestClient, stores: Stores) -> None:
    """Where a job went on with another driver, the curve is of the newer windows, as the front is."""
    claim = started(stores, sla=(Limit(metric="tpot_p99_ms", bound_ms=100.0),))
    old = trial(0, 9.0, 10.0)
    assert old.measurement is not None
    later = old.started_at + timedelta(hours=1)
    newer = trial(1, 2.0, 50.0, started_at=later, finished_at=later)
    stored(stores, claim, replace(old, measurement=replace(old.measurement, driver="1")), newer)
    assert asked(client, claim.job_id)["trials"]["hypervolume"] == [0.0, 100.0]


def test_an_infeasible_window_of_another_origin_changes_nothing(client: TestClient, stores: Stores) -> None:
    """As long as nothing under the newer driver is inside the limits, curve and front are of the older windows."""
    claim = started(stores, sla=(Limit(metric="tpot_p99_ms", bound_ms=100.0),))
    outside = trial(1, 2.0, 150.0, state=TrialState.INFEASIBLE, reason="sla:tpot_p99_ms")
    assert outside.measurement is not None
    outside = replace(outside, measurement=replace(outside.measurement, driver="2"))
    stored(stores, claim, trial(0, 9.0, 10.0), outside)
    found, front = asked(client, claim.job_id), client.get(f"/v1/jobs/{claim.job_id}/front").json()
    assert found["trials"]["hypervolume"] == [810.0, 810.0]
    assert front["hypervolume"] == 810.0


def test_a_window_without_samples_of_a_limit_misses_it(client: TestClient, stores: Stores) -> None:
    """A repeat without a sample of a limited latency puts its point outside, as on the front."""
    limits = (Limit(metric="tpot_p99_ms", bound_ms=100.0), Limit(metric="e2e_p99_ms", bound_ms=100.0))
    claim = started(stores, sla=limits)
    inside = trial(0, 2.0, 50.0)
    assert inside.measurement is not None
    whole = replace(inside.measurement, e2e=Distribution(count=9, p99=Estimate(50.0)))
    repeat = replace(inside, number=1, state=TrialState.INFEASIBLE, reason="sla:e2e_p99_ms")
    stored(stores, claim, replace(inside, measurement=whole), repeat)
    found, front = asked(client, claim.job_id), client.get(f"/v1/jobs/{claim.job_id}/front").json()
    assert (found["trials"]["hypervolume"][-1], front["hypervolume"]) == (0.0, 0.0)


def test_only_what_came_since_is_sent(client: TestClient, stores: Stores) -> None:
    """Trials up to `after` are left out, and the sums go on as if they were there; the front is whole."""
    claim = started(stores)
    stored(stores, claim, trial(0, 2.0, 30.0), trial(1, 6.0, 60.0))
    everything, since = asked(client, claim.job_id), asked(client, claim.job_id, after=0)
    assert since["trials"]["number"] == [1]
    assert since["trials"]["device_s"] == everything["trials"]["device_s"][1:]
    assert since["trials"]["hypervolume"] == everything["trials"]["hypervolume"][1:]
    assert since["trials"]["latencies_ms"]["tpot_p99_ms"] == [60.0]
    assert since["front"] == everything["front"]
    assert asked(client, claim.job_id, after=99)["trials"]["number"] == []


def test_a_job_without_trials_has_empty_columns(client: TestClient, stores: Stores) -> None:
    """Before its first trial a job has every column, no default and no front."""
    found = asked(client, stores.jobs.create(make_request()).id)
    assert (found["trials"]["number"], found["front"], found["default"], found["next_after"]) == ([], [], None, -1)
    assert found["metrics"] == ["tpot_p99_ms"]
    assert found["trials"]["knobs"] == {"max_batch": [], "precision": [], "rate": []}


def test_it_is_sent_compressed_and_only_when_it_changed(client: TestClient, stores: Stores) -> None:
    """A client that takes gzip gets it; with the tag sent back it gets 304 until a trial ends."""
    claim = started(stores)
    stored(stores, claim, trial(0, 2.0, 30.0))
    path = f"/v1/jobs/{claim.job_id}/figures"
    with client.stream("GET", path, headers={"Accept-Encoding": "gzip"}) as answer:
        body = b"".join(answer.iter_raw())
    assert json.loads(gzip.decompress(body))["job"] == claim.job_id
    known = {"If-None-Match": answer.headers["ETag"], "Accept-Encoding": "gzip"}
    assert client.get(path, headers=known).status_code == 304
    stored(stores, claim, trial(1, 6.0, 60.0))
    assert client.get(path, headers=known).status_code == 200


def test_asking_again_reads_no_trial(client: TestClient, stores: Stores) -> None:
    """As long as nothing happened to a job, its figures are remembered: the trials' table is not looked at."""
    claim = started(stores)
    stored(stores, claim, trial(0, 2.0, 30.0))
    ended(stores, claim)
    asked(client, claim.job_id)
    seen: list[str] = []
    with stores.database.read() as session:
        engine = session.get_bind()
    event.listen(engine, "before_cursor_execute", lambda _c, _cu, statement, *_rest: seen.append(statement))
    asked(client, claim.job_id)
    assert seen
    assert not any("measurements" in statement for statement in seen)


def test_simulated_and_estimated_figures_say_so(client: TestClient, stores: Stores) -> None:
    """A job of the simulated engine is simulated and an estimate before its first trial; a counter's is neither."""
    simulated = stores.jobs.create(make_request(engine="simulated", device="simulated:h100-sxm"))
    measured = started(stores)
    stored(stores, measured, trial(0, 2.0, 30.0))
    shown = [asked(client, job_id) for job_id in (simulated.id, measured.job_id)]
    assert [(one["is_simulated"], one["is_estimate"]) for one in shown] == [(True, True), (False, False)]


def test_a_job_that_is_not_there_is_told(client: TestClient) -> None:
    """An unknown id is answered with 404 as a problem."""
    answer = client.get("/v1/jobs/0123456789abcdef0123456789abcdef/figures")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


def test_everybody_who_waits_gets_one_answer(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests for the same figures at the same time read a job's trials once, and get the same bytes."""
    claim = started(stores)
    stored(stores, claim, trial(0, 2.0, 30.0))
    asked_for: list[str] = []
    of_job = TrialFigureStore.of_job

    def counted(store: TrialFigureStore, job_id: str) -> TrialFigures:
        asked_for.append(job_id)
        return of_job(store, job_id)

    monkeypatch.setattr(TrialFigureStore, "of_job", counted)
    answers = FigureAnswers(stores, FrontAnswers(stores))

    async def crowd() -> list[Packed]:
        return await asyncio.gather(*(answers.get(claim.job_id, -1) for _ in range(12)))

    assert len({answer.digest for answer in asyncio.run(crowd())}) == 1
    assert asked_for == [claim.job_id]
