"""Events of a job, live."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from api import event_streams
from api.app import create_app
from api.event_streams import EventStreams, TooManyStreams
from api.settings import Settings
from api.stores import Stores
from db.events import EventStore
from db.job import Claim, JobState
from tests.api.scripted import claimed
from tests.db.factories import make_point, make_request, make_trial

DEADLINE_S = 60.0
NUM_FOLLOWERS = 200


def run_job(stores: Stores, claim: Claim) -> None:
    """Store one trial and the end of a job."""
    stores.trials.finish(stores.trials.start(claim, 0, make_point()), make_trial())
    stores.jobs.finish(claim, JobState.FINISHED, "trials")


def events_in(text: str) -> list[tuple[int, str, dict[str, Any]]]:
    """Return number, kind and data of the events in a stream's text."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


async def text_of(frames: AsyncIterator[bytes] | None) -> str:
    """Return everything that a stream sends until it ends."""
    assert frames is not None
    return "".join([frame.decode() async for frame in frames])


@pytest.fixture
def client(stores: Stores, settings: Settings) -> TestClient:
    return TestClient(create_app(stores, settings), base_url="http://localhost")


def test_a_finished_job_is_told_from_its_beginning(client: TestClient, stores: Stores) -> None:
    """The stream of a job that is over has every event in order, and ends with what ended it."""
    claim = claimed(stores, make_request())
    run_job(stores, claim)
    answer = client.get(f"/v1/jobs/{claim.job_id[:8]}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_in(answer.text)
    assert [kind for _, kind, _ in events] == ["job", "job", "trial_started", "trial", "job"]
    assert [number for number, _, _ in events] == sorted(number for number, _, _ in events)
    assert [data["state"] for _, kind, data in events if kind == "job"] == ["queued", "running", "finished"]
    trial = events[3][2]
    assert (trial["job"], trial["number"], trial["state"], trial["tok_per_j"]) == (claim.job_id, 0, "complete", 2.0)
    assert trial["knobs"] == {"max_batch": 8, "precision": "fp32"}
    assert trial["at"].endswith("+00:00")


def test_who_comes_back_misses_nothing(client: TestClient, stores: Stores) -> None:
    """After the last event that was seen, by header or query, only later ones come; after the very last, 204."""
    claim = claimed(stores, make_request())
    run_job(stores, claim)
    path = f"/v1/jobs/{claim.job_id}/events"
    numbers = [number for number, _, _ in events_in(client.get(path).text)]
    again = client.get(path, params={"after": 0}, headers={"Last-Event-ID": str(numbers[2])})
    assert numbers[3:] == [number for number, _, _ in events_in(again.text)]
    assert numbers[1:] == [number for number, _, _ in events_in(client.get(path, params={"after": numbers[0]}).text)]
    for after in (numbers[-1], 2**53 - 1):
        assert client.get(path, params={"after": after}).status_code == 204


@pytest.mark.parametrize("after", ["-1", "x", str(2**53), "nan"])
def test_a_bad_place_to_go_on_from_is_refused(client: TestClient, stores: Stores, after: str) -> None:
    """What is no event's number is answered with 422 and named."""
    job_id = stores.jobs.create(make_request()).id
    for answer in (
        client.get(f"/v1/jobs/{job_id}/events", params={"after": after}),
        client.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": after}),
    ):
        assert answer.status_code == 422
        assert "after" in answer.text or "last-event-id" in answer.text.lower()


def test_an_unknown_job_has_no_events(client: TestClient) -> None:
    """Following a job that is not there is a 404."""
    assert client.get(f"/v1/jobs/{'0' * 32}/events").status_code == 404


def test_a_crowd_costs_one_look(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many followers of a running job all see it to its end, and the database is asked as often as for one."""
    claim = claimed(stores, make_request())
    streams = EventStreams(stores, poll_s=0.05)
    looks: list[int] = []
    look = EventStore.after

    def counted(self: EventStore, job_id: str, event_id: int, *, limit: int = 500) -> Any:
        looks.append(event_id)
        return look(self, job_id, event_id, limit=limit)

    monkeypatch.setattr(EventStore, "after", counted)

    async def follow() -> list[str]:
        frames = [await streams.open(claim.job_id, 0) for _ in range(NUM_FOLLOWERS)]
        followers = [asyncio.ensure_future(text_of(one)) for one in frames]
        while streams.num_followers < len(followers):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(run_job, stores, claim)
        return await asyncio.wait_for(asyncio.gather(*followers), DEADLINE_S)

    texts = asyncio.run(follow())
    assert {5} == {len(events_in(text)) for text in texts}
    # One feed looks for all, and never again for what it has seen; else there were many looks from the beginning.
    assert (looks.count(0), looks) == (1, sorted(looks))
    assert streams.num_followers == 0


def test_a_follower_that_fell_behind_reads_from_the_database(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that are no longer kept in memory are still told, each once and in order."""
    monkeypatch.setattr(event_streams, "_KEPT", 2)
    monkeypatch.setattr(event_streams, "_PAGE", 3)
    claim = claimed(stores, make_request())
    for number in range(4):
        stores.trials.finish(stores.trials.start(claim, number, make_point()), make_trial(number=number))
    stores.jobs.finish(claim, JobState.FINISHED, "trials")

    async def follow() -> str:
        streams = EventStreams(stores, poll_s=0.01)
        return await asyncio.wait_for(text_of(await streams.open(claim.job_id, 0)), DEADLINE_S)

    numbers = [number for number, _, _ in events_in(asyncio.run(follow()))]
    assert numbers == [event.id for event in stores.events.after(claim.job_id, 0)]


def test_a_quiet_stream_says_that_it_is_there_and_ends_with_the_server(stores: Stores) -> None:
    """Without events comments come; when the server stops, the stream ends though the job does not."""
    job_id = stores.jobs.create(make_request()).id

    async def follow() -> list[bytes]:
        streams = EventStreams(stores, poll_s=0.01, keepalive_s=0.01)
        frames = await streams.open(job_id, stores.events.last_id(job_id))
        assert frames is not None
        seen = []
        async for frame in frames:
            seen.append(frame)
            if frame.startswith(b":"):
                streams.close()
        return seen

    seen = asyncio.run(asyncio.wait_for(follow(), DEADLINE_S))
    assert (seen[0], seen[1]) == (b"retry: 2000\n\n", b": still there\n\n")


def test_streams_are_bounded(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """One follower more than there may be is refused, until one of them has gone."""
    monkeypatch.setattr(event_streams, "MAX_STREAMS", 1)
    job_id = stores.jobs.create(make_request()).id

    async def follow() -> None:
        streams = EventStreams(stores, poll_s=0.01)
        first = await streams.open(job_id, 0)
        assert first is not None
        await anext(first)
        with pytest.raises(TooManyStreams, match="1 clients follow jobs already"):
            await streams.open(job_id, 0)
        await first.aclose()  # type: ignore[attr-defined] # it is a generator
        assert await streams.open(job_id, 0) is not None

    asyncio.run(asyncio.wait_for(follow(), DEADLINE_S))
