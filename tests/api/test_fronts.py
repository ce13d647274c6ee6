"""Fronts over HTTP: stored documents, entity tags, lists and comparisons."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, update
from starlette.testclient import TestClient

from api.app import create_app
from api.front_answers import ByteCache
from api.packing import Packed
from api.records import front_document, front_of_job
from api.schemas import FRONT_VERSION
from api.settings import Settings
from api.stores import Stores, utc_now
from db.errors import DatabaseNotWritable
from db.job import JobState
from db.tables import FrontRow, TrialRow
from tests.api.scripted import claimed
from tests.db.factories import make_measurement, make_point, make_request, make_trial
from tests.db.test_front_lists import store_night
from tuner.measurement import Distribution, Estimate
from tuner.pareto import front_of
from tuner.request import TuneRequest
from tuner.trial import Trial


@pytest.fixture
def client(stores: Stores, settings: Settings) -> TestClient:
    return TestClient(create_app(stores, settings), base_url="http://localhost")


def trial_of(number: int, *, tok_per_j: float = 2.0, latency_ms: float = 30.0, half: float | None = 0.1) -> Trial:
    """Return a trial at a place of its own."""
    bounds = (None, None) if half is None else (tok_per_j - half, tok_per_j + half)
    latency = (None, None) if half is None else (latency_ms - half, latency_ms + half)
    measurement = make_measurement(
        tok_per_j=Estimate(tok_per_j, *bounds), tpot=Distribution(count=9, p99=Estimate(latency_ms, *latency))
    )
    return make_trial(number=number, point=make_point(8 << number), measurement=measurement, finished_at=utc_now())


def store_job(
    stores: Stores, trials: Sequence[Trial], *, has_document: bool = True, is_over: bool = True, **changes: Any
) -> str:
    """Store a job with trials as a worker does, its front and its end included."""
    request: TuneRequest = make_request(**changes)
    claim = claimed(stores, request)
    for trial in trials:
        stores.trials.finish(stores.trials.start(claim, trial.number, trial.point), trial)
    if is_over:
        job, stored = stores.jobs.get(claim.job_id), stores.trials.history(claim.job_id)
        front = front_of(stored, request.latency_metric, created_at=utc_now(), request=request)
        stores.fronts.save(job.id, front, front_document(job, front, stored) if has_document else None)
        stores.jobs.finish(claim, JobState.FINISHED, "trials")
    return claim.job_id


def test_a_finished_job_is_answered_from_its_document(
    client: TestClient, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The front of a job that has ended is what its trials say, and no trial is read for it."""
    job_id = store_job(stores, [trial_of(0), trial_of(1, tok_per_j=3.0, latency_ms=40.0)])
    expected = front_of_job(stores, job_id).model_dump(mode="json")
    monkeypatch.setattr(type(stores.trials), "list", lambda *_: pytest.fail("a trial was read"))
    assert expected == client.get(f"/v1/jobs/{job_id}/front").json()
    assert expected["is_final"]


@pytest.mark.parametrize("version", [None, FRONT_VERSION + 1])
def test_a_document_of_another_version_is_made_anew_once(
    client: TestClient, stores: Stores, version: int | None
) -> None:
    """A front without a document, or with one of another version, gets one when it is first asked for."""
    job_id = store_job(stores, [trial_of(0)], has_document=version is not None)
    with stores.database.transaction() as session:
        session.execute(update(FrontRow).values(document_version=version))
    first = client.get(f"/v1/jobs/{job_id}/front")
    with stores.database.read() as session:
        assert [(job_id, FRONT_VERSION)] == session.execute(select(FrontRow.job_id, FrontRow.document_version)).all()
    again = TestClient(create_app(stores), base_url="http://localhost").get(f"/v1/jobs/{job_id}/front")
    assert (first.content, first.headers["etag"]) == (again.content, again.headers["etag"])


def test_a_front_that_misses_later_trials_is_made_anew(client: TestClient, stores: Stores) -> None:
    """A job was put aside with a front, went on, and was cancelled while nobody held it: its front has all trials."""
    claim = claimed(stores, make_request())
    for number in range(2):
        trial = trial_of(number, tok_per_j=2.0 + number, latency_ms=30.0 + number)
        stores.trials.finish(stores.trials.start(claim, number, trial.point), trial)
        if number == 0:
            job, stored = stores.jobs.get(claim.job_id), stores.trials.history(claim.job_id)
            front = front_of(stored, "tpot_p99_ms", created_at=utc_now(), request=job.request)
            stores.fronts.save(job.id, front, front_document(job, front, stored))
    stores.jobs.release(claim)
    stores.jobs.request_cancel(claim.job_id)
    shown = client.get(f"/v1/jobs/{claim.job_id}/front").json()
    assert [point["trial"] for point in shown["points"]] == [0, 1]
    assert [trial.number for trial in stores.front(stores.jobs.get(claim.job_id)).trials] == [0, 1]
    with stores.database.read() as session:
        assert session.scalar(select(func.count()).select_from(FrontRow)) == 2


def test_an_ended_job_without_trials_has_an_empty_front(client: TestClient, stores: Stores) -> None:
    """A job that was cancelled in the queue is answered with a final front without points, and nothing is stored."""
    job = stores.jobs.request_cancel(stores.jobs.create(make_request()).id)
    for _ in range(2):
        shown = client.get(f"/v1/jobs/{job.id[:8]}/front").json()
        assert (shown["points"], shown["is_final"]) == ([], True)
    assert stores.fronts.latest(job.id) is None


def test_an_entity_tag_saves_the_body(client: TestClient, stores: Stores) -> None:
    """Who sends the tag back gets 304 and no body; another tag gets the front again."""
    path = f"/v1/jobs/{store_job(stores, [trial_of(0)])}/front"
    first = client.get(path)
    tag = first.headers["etag"]
    assert tag.startswith('"')
    assert first.headers["cache-control"] == "private, no-cache"
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = client.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert client.get(path, headers={"If-None-Match": '"other"'}).content == first.content


def test_each_form_has_its_own_tag(client: TestClient, stores: Stores) -> None:
    """Who takes gzip gets what is stored, who does not gets the same unpacked; a tag of one is not of the other."""
    path = f"/v1/jobs/{store_job(stores, [trial_of(0)])}/front"
    packed, plain = (client.get(path, headers={"Accept-Encoding": takes}) for takes in ("br, gzip", "gzip;q=0, *;q=0"))
    assert [answer.headers.get("content-encoding") for answer in (packed, plain)] == ["gzip", None]
    assert packed.json() == plain.json()
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) / 2
    assert {answer.headers["vary"] for answer in (packed, plain)} == {"Accept-Encoding"}
    known = {"If-None-Match": packed.headers["etag"]}
    assert client.get(path, headers={**known, "Accept-Encoding": "gzip"}).status_code == 304
    assert client.get(path, headers={**known, "Accept-Encoding": "identity"}).content == plain.content


def test_the_tag_of_a_running_job_changes_with_its_trials(client: TestClient, stores: Stores) -> None:
    """While a job runs its front has a tag too: the same until another trial ends."""
    claim = claimed(stores, make_request())
    path = f"/v1/jobs/{claim.job_id}/front"
    empty = client.get(path)
    assert client.get(path, headers={"If-None-Match": empty.headers["etag"]}).status_code == 304
    trial = trial_of(0)
    stores.trials.finish(stores.trials.start(claim, 0, trial.point), trial)
    later = client.get(path, headers={"If-None-Match": empty.headers["etag"]})
    assert (later.status_code, [point["trial"] for point in later.json()["points"]]) == (200, [0])
    stores.jobs.finish(claim, JobState.FINISHED, "trials")
    assert client.get(path).json()["is_final"]


def test_a_store_that_cannot_be_written_to_is_still_read(
    client: TestClient, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document that cannot be stored is answered all the same."""
    job_id = store_job(stores, [trial_of(0)], has_document=False)

    def refuse(*_: object) -> None:
        raise DatabaseNotWritable("read-only")

    monkeypatch.setattr(type(stores.front_documents), "put", refuse)
    assert client.get(f"/v1/jobs/{job_id}/front").json()["points"][0]["trial"] == 0


def test_what_is_no_number_is_null_in_a_document(client: TestClient, stores: Stores) -> None:
    """BUG-31: a default point of 0 tokens per joule gives no gain, rather than an infinite one or an error."""
    nothing = trial_of(0, tok_per_j=0.0, half=None)
    job_id = store_job(stores, [nothing, trial_of(1, tok_per_j=3.0)])
    answer = client.get(f"/v1/jobs/{job_id}/front")
    assert answer.status_code == 200
    assert [point["gain_over_default"] for point in answer.json()["points"]] == [None]


def test_the_cache_is_bounded() -> None:
    """Of answers that do not fit together the one that was asked for longest ago goes."""
    cache = ByteCache(max_bytes=25)
    for key in "abc":
        cache.put(key, Packed.of(b"0123456789"))
        cache.get("a")
    assert [cache.get(key) is not None for key in "abc"] == [True, False, True]


def test_many_readers_while_trials_are_stored(stores: Stores, settings: Settings) -> None:
    """BUG-27: 50 readers of job, trials, front and lists while a worker stores trials get whole answers."""
    claim = claimed(stores, make_request())
    done = threading.Event()

    def work() -> None:
        for number in range(12):
            trial = trial_of(number % 3, tok_per_j=2.0 + number / 9)
            trial = replace(trial, number=number)
            stores.trials.finish(stores.trials.start(claim, number, trial.point), trial)
        done.set()

    async def read_all() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=create_app(stores, settings))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as reader:
            job = f"/v1/jobs/{claim.job_id}"
            paths = (job, f"{job}/trials", f"{job}/front", "/v1/jobs", "/v1/fronts")
            answers: list[httpx.Response] = []
            while not done.is_set() or len(answers) < 50:
                answers += await asyncio.gather(*(reader.get(path) for path in paths for _ in range(10)))
            return answers

    worker = threading.Thread(target=work)
    worker.start()
    answers = asyncio.run(read_all())
    worker.join()
    assert {200} == {answer.status_code for answer in answers}
    trials = [trial for answer in answers if "/trials" in str(answer.url) for trial in answer.json()["items"]]
    assert all(trial["knobs"]["max_batch"] for trial in trials)
    assert all((trial["measurement"] is None) == (trial["state"] == "running") for trial in trials)


def test_fronts_are_listed_and_filtered(client: TestClient, stores: Stores) -> None:
    """The latest front of each job comes once, newest job first, in pages; names and states filter them."""
    first = store_job(stores, [trial_of(0)], model="a")
    second = store_job(stores, [trial_of(0), trial_of(1, tok_per_j=9.0)], model="b")
    stores.jobs.create(make_request(model="c"))
    page = client.get("/v1/fronts", params={"limit": 1}).json()
    assert ([second], second) == ([item["job"] for item in page["items"]], page["next"])
    page = client.get("/v1/fronts", params={"before": page["next"]}).json()
    assert ([first], None) == ([item["job"] for item in page["items"]], page["next"])
    assert (page["items"][0]["num_points"], page["items"][0]["is_simulated"]) == (1, False)
    for query, expected in (
        ({"model": "b"}, [second]),
        ({"device": "elsewhere"}, []),
        ({"state": "failed"}, []),
        ({"schedule": "nightly"}, []),
    ):
        assert expected == [item["job"] for item in client.get("/v1/fronts", params=query).json()["items"]]
    assert client.get("/v1/fronts", params={"before": "0" * 32}).status_code == 404


def test_fronts_of_a_night_are_found(client: TestClient, stores: Stores) -> None:
    """A front tells the schedule and the night that its job is of, and is found by both."""
    job_id = store_job(stores, [trial_of(0)])
    store_job(stores, [trial_of(0)])
    store_night(stores.database, job_id, schedule="every night", night="2026-03-29")
    (item,) = client.get("/v1/fronts", params={"schedule": "every night", "night": "2026-03-29"}).json()["items"]
    assert (job_id, "every night", "2026-03-29") == (item["job"], item["schedule"], item["night"])
    assert client.get("/v1/fronts", params={"night": "2026-03-30"}).json()["items"] == []


def test_fronts_are_compared(client: TestClient, stores: Stores) -> None:
    """Points of both fronts are told once, moved beyond their intervals or not, with one reference and one limit."""
    one = store_job(stores, [trial_of(0), trial_of(1, tok_per_j=3.0, latency_ms=40.0)])
    two = store_job(stores, [trial_of(0, tok_per_j=2.5), trial_of(2, tok_per_j=4.0, latency_ms=50.0)])
    found = client.get("/v1/fronts/compare", params={"job": [one, two], "limit_ms": 45}).json()
    assert (found["latency_metric"], found["latency_reference_ms"], found["warnings"]) == ("tpot_p99_ms", 50.0, [])
    assert [(point["knobs"]["max_batch"], point["is_in_all"]) for point in found["points"]] == [
        (8, True),
        (16, False),
        (32, False),
    ]
    (move,) = found["points"][0]["moves"]
    assert (move["tok_per_j_ratio"], move["has_tok_per_j_moved"], move["has_latency_moved"]) == (1.25, True, False)
    assert [front["common_hypervolume"] for front in found["fronts"]] == [2.0 * 10 + 3.0 * 10, 2.5 * 20]
    assert [best["trial"] for best in found["limits"][0]["best"]] == [1, 0]


def test_a_comparison_says_what_is_not_comparable(client: TestClient, stores: Stores) -> None:
    """Fronts of different models, devices, engines and workloads come with warnings, simulated ones with a label."""
    one = store_job(stores, [trial_of(0, half=None)], model="a")
    two = store_job(stores, [trial_of(0, half=None)], model="b", engine="simulated", device="simulated:b200")
    running = store_job(stores, [trial_of(0)], is_over=False)
    found = client.get("/v1/fronts/compare", params={"job": [one, two, running]}).json()
    assert [front["is_simulated"] for front in found["fronts"]] == [False, True, False]
    assert found["points"][0]["moves"][0]["has_tok_per_j_moved"] is None
    words = " ".join(found["warnings"])
    parts = ("models: a, b", "devices: ", "engines: ", "simulated; the others were measured", "not ended")
    assert [part for part in parts if part not in words] == []


@pytest.mark.parametrize("query", ["", "job={one}", "job={one}&job={one}", "job={one}&job={two}&limit_ms=nan",
                                   "job={one}&job={two}&limit_ms=0", "job={one}&job=a/../b"])  # fmt: skip
def test_a_comparison_that_cannot_be_is_refused(client: TestClient, stores: Stores, query: str) -> None:
    """Too few jobs, one job twice and limits that are no number are refused with the reason (BUG-31)."""
    one, two = (store_job(stores, [trial_of(0)]) for _ in range(2))
    answer = client.get(f"/v1/fronts/compare?{query.format(one=one, two=two)}")
    assert answer.status_code in (400, 422)
    assert "job" in answer.text or "limit_ms" in answer.text


def test_an_unknown_job_is_not_compared(client: TestClient, stores: Stores) -> None:
    """A job that is not there is a 404."""
    one = store_job(stores, [trial_of(0)])
    assert client.get("/v1/fronts/compare", params={"job": [one, "0" * 32]}).status_code == 404


def test_trials_come_in_pages(client: TestClient, stores: Stores) -> None:
    """Following `next` shows every attempt once, in order; a state filters them."""
    job_id = store_job(stores, [trial_of(number) for number in range(5)])
    seen: list[int] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = client.get(f"/v1/jobs/{job_id}/trials", params=query).json()
        seen += [trial["number"] for trial in page["items"]]
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert list(range(5)) == seen
    with stores.database.transaction() as session:
        session.execute(update(TrialRow).where(TrialRow.number == 3).values(state="failed"))
    failed = client.get(f"/v1/jobs/{job_id}/trials", params={"state": "failed"}).json()["items"]
    assert [trial["number"] for trial in failed] == [3]


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "after=x", "after=1", "after=9999999999.1", "state=lost"])
def test_a_bad_page_of_trials_is_refused(client: TestClient, stores: Stores, query: str) -> None:
    """A query outside its bounds is answered with 422 and names the field."""
    answer = client.get(f"/v1/jobs/{store_job(stores, [])}/trials?{query}")
    assert answer.status_code == 422
    assert query.partition("=")[0] in answer.text


def test_jobs_are_filtered(client: TestClient, stores: Stores) -> None:
    """Each filter leaves the jobs that have what it asks for."""
    early = stores.jobs.create(make_request(name="Nightly one", model="a"), submitted_by="alice", priority=3)
    middle = utc_now()
    late = stores.jobs.create(make_request(name="100%_sure", device="simulated:b200", engine="simulated"))
    for query, expected in (
        ({"model": "a"}, [early.id]),
        ({"device": "simulated:b200"}, [late.id]),
        ({"engine": "simulated"}, [late.id]),
        ({"name": "nightly"}, [early.id]),
        ({"name": "%_"}, [late.id]),
        ({"submitted_by": "alice"}, [early.id]),
        ({"created_before": middle.isoformat()}, [early.id]),
        ({"created_from": middle.isoformat()}, [late.id]),
        ({}, [late.id, early.id]),
    ):
        items = client.get("/v1/jobs", params=query).json()["items"]
        assert expected == [job["id"] for job in items]
    shown = client.get(f"/v1/jobs/{early.id}").json()
    assert (shown["priority"], shown["submitted_by"], shown["num_lost"]) == (3, "alice", 0)


@pytest.mark.parametrize(
    "query",
    ["model=", f"model={'a' * 301}", "created_from=2026-03-01T02:00:00", "created_from=nan", "created_before=yesterday",
     "created_from=0001-01-01T00:00:00%2B05:00"],
)  # fmt: skip
def test_a_bad_filter_is_refused(client: TestClient, query: str) -> None:
    """A name that is none, and a time without its offset or outside the calendar, is refused and named (BUG-29)."""
    answer = client.get(f"/v1/jobs?{query}")
    assert answer.status_code == 422
    assert query.partition("=")[0] in answer.text
