"""The load client against a scripted server. Times of both are of one clock."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from queue import SimpleQueue
from typing import Any

import pytest

from engine.errors import EngineDied, InvalidSettings
from engine.load import ClosedLoad, LiveLoad, OpenLoad, Progress, TimedRequest
from engine.request import FinishReason, Request, RequestRecord
from engine.servers.client import LoadClient
from engine.servers.dialect import Dialect
from tests.engine.requests import make_request
from tests.engine.servers.scripted_server import DONE, End, Script, ScriptedServer, answer, delta, usage, words

GO_ON: Callable[[Progress], bool] = lambda progress: True  # noqa: E731 - an observer's whole body


def make_client(server: ScriptedServer | str, **changes: Any) -> LoadClient:
    url = server if isinstance(server, str) else server.url
    fields: dict[str, Any] = {"model": "m", "dialect": Dialect(takes_token_ids=True), "timeout_s": 20.0}
    return LoadClient(url, **fields | changes)


def make_requests(number: int | None = None, **changes: Any) -> Iterator[Request]:
    numbers = count() if number is None else range(number)
    return (make_request(request_id=f"r{at}", **{"max_tokens": 3} | changes) for at in numbers)


def ask(server: ScriptedServer | str, number: int = 1, concurrency: int = 1, **changes: Any) -> list[RequestRecord]:
    load = ClosedLoad(requests=make_requests(number, **changes), concurrency=concurrency)
    return make_client(server).run(load, GO_ON)


def open_load(offsets_s: list[float], **changes: Any) -> OpenLoad:
    timed = zip(offsets_s, make_requests(**changes), strict=False)
    return OpenLoad(requests=(TimedRequest(offset_s=offset_s, request=request) for offset_s, request in timed))


def stop_when(reached: Callable[[Progress], bool]) -> Callable[[Progress], bool]:
    return lambda progress: not reached(progress)


def test_times_are_those_of_the_bytes() -> None:
    """BUG-02: every token's time is after the server wrote it, and the first one's is not the role's."""
    pieces = [(0.0, delta(role="assistant", content="")), (30.0, delta(content="a")), (45.0, delta(content="b")),
              (45.0, delta("stop")), (45.0, usage(2)), (45.0, DONE)]  # fmt: skip
    with ScriptedServer(Script(pieces=pieces)) as server:
        client = make_client(server, dialect=Dialect(api="chat"), text_of=lambda token_ids: "hello")
        record = client.run(ClosedLoad(requests=make_requests(1, ignore_eos=False), concurrency=1), GO_ON)[0]
        asked = server.asked[0]

    assert asked.path == "/v1/chat/completions"
    assert asked.body["messages"] == [{"role": "user", "content": "hello"}]
    assert record.sent_s is not None
    assert record.arrival_s <= record.sent_s <= asked.time_s
    assert record.token_times_s[0] >= asked.written_s[1] > asked.time_s + 0.03
    assert record.token_times_s[1] >= asked.written_s[2]
    assert (record.text, record.finish_reason) == ("ab", FinishReason.STOP)


def test_what_is_asked() -> None:
    """BUG-01: the body has the prompt's ids, the dialect's own fields, and asks for usage."""
    dialect = Dialect(takes_token_ids=True, extra_body=(("cache_prompt", False),), min_tokens_field="min_tokens")
    with ScriptedServer(answer(3)) as server:
        client = make_client(server.url + "/v1/", dialect=dialect, api_key="secret")
        client.run(ClosedLoad(requests=make_requests(1, prompt=(4, 5), seed=7), concurrency=1), GO_ON)
        asked = server.asked[0]

    assert (asked.path, asked.headers["authorization"]) == ("/v1/completions", "Bearer secret")
    assert asked.body == {
        "model": "m",
        "prompt": [4, 5],
        "max_tokens": 3,
        "min_tokens": 3,
        "temperature": 0.0,
        "seed": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "cache_prompt": False,
    }


def test_a_closed_load_keeps_its_number_in_flight() -> None:
    """A closed load has as many connections as places, and progress adds up to what the records say."""
    seen: list[Progress] = []

    def observe(progress: Progress) -> bool:
        seen.append(progress)
        return True

    with ScriptedServer(answer(3, first_ms=5.0, gap_ms=5.0)) as server:
        load = ClosedLoad(requests=make_requests(12), concurrency=4)
        records = make_client(server).run(load, observe)
        num_connections = server.num_connections

    assert {record.request_id for record in records} == {f"r{number}" for number in range(12)}
    assert {record.finish_reason for record in records} == {FinishReason.LENGTH}
    assert num_connections == 4
    assert sum(progress.num_tokens for progress in seen) == 36
    assert sum(progress.num_prompt_tokens for progress in seen) == 12 * 5
    assert sorted(one for progress in seen for one in progress.first_tokens) == sorted(r.request_id for r in records)
    assert [record for progress in seen for record in progress.finished] == records
    assert max(progress.num_running + progress.num_waiting for progress in seen) <= 4


def test_cut_pieces_on_the_wire() -> None:
    """BUG-06: frames cut and glued by the transport lose nothing."""
    cafe = words("café")
    at = cafe.index(b"\xc3") + 1
    pieces = [words("a") + words("b") + cafe[:at], cafe[at:-1], cafe[-1:], words("", finish="stop") + usage(3) + DONE]
    with ScriptedServer(Script(pieces=[(5.0 * number, piece) for number, piece in enumerate(pieces)])) as server:
        (record,) = ask(server, ignore_eos=False)

    assert (record.text, record.error, len(record.token_times_s)) == ("abcafé", None, 3)


TEN = [(0.0, words("w"))] * 10


@pytest.mark.parametrize(
    ("script", "kind", "num_tokens"),
    [
        (Script(pieces=TEN, end=End.CUT), "ended_early", 10),
        (Script(pieces=TEN), "ended_early", 10),
        (Script(pieces=[*TEN, (0.0, words("", finish="stop")), (0.0, DONE)]), "stopped_early", 10),
        (Script(pieces=[*TEN[:-1], (0.0, words("w")), (60.0, b": wait\n\n")], end=End.RESET), "connection_reset", 10),
        (Script(pieces=[(0.0, words("w")), (0.0, b'data: {"error": {"message": "oom"}}\n\n')], end=End.HANG),
         "server_error", 1),
        (Script(status=503, pieces=[(0.0, b'{"error": {"message": "queue full"}}')]), "http_503", 0),
        (Script(status=404, content_type="text/html", pieces=[(0.0, b"<p>Not Found")]), "http_404", 0),
        (Script(status=307), "http_307", 0),
        (Script(content_type="application/json", pieces=[(0.0, b'{"choices": []}')]), "not_a_stream", 0),
        (Script(pieces=[(0.0, words("w")), (0.0, b"data: nonsense\n\n")], end=End.HANG), "bad_event", 1),
    ],
)  # fmt: skip
def test_failures_have_names_and_keep_their_tokens(script: Script, kind: str, num_tokens: int) -> None:
    """BUG-07: whatever goes wrong is a record with a kind and the tokens that came, and the load goes on."""
    with ScriptedServer(lambda body, number: answer(1024) if number else script) as server:
        failed, sound = ask(server, 2, max_tokens=1024)

    assert failed.finish_reason is FinishReason.ERROR
    assert (failed.error or "").partition(":")[0] == kind
    assert len(failed.token_times_s) == num_tokens
    assert (sound.finish_reason, len(sound.token_times_s)) == (FinishReason.LENGTH, 1024)


def test_words_of_an_error_are_kept() -> None:
    """An HTTP error's own words stand on the record, in one line."""
    script = Script(status=400, pieces=[(0.0, b'{"error": {"message": "too\\nlong", "type": "BadRequest"}}')])
    with ScriptedServer(script) as server:
        (record,) = ask(server)

    assert record.error == "http_400: too long (BadRequest)"


def test_zero_and_one_token_and_all_failed() -> None:
    """BUG-09: answers of no token, of one and of many stand side by side; of failed ones alone nothing breaks."""
    sizes = (0, 1, 1, 21)
    with ScriptedServer(lambda body, number: answer(sizes[number], gap_ms=1.0)) as server:
        records = ask(server, 4, ignore_eos=False)
    with ScriptedServer(Script(status=500)) as server:
        failed = ask(server, 4, concurrency=4)

    assert [record.ttft_s is None for record in records] == [True, False, False, False]
    assert [record.tpot_s is None for record in records] == [True, True, True, False]
    assert [(one.error, one.ttft_s) for one in failed] == [("http_500: without a word", None)] * 4


def test_nobody_listens() -> None:
    """A refused connection is a failure with a name, not an exception."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (record,) = ask(f"http://127.0.0.1:{port}")

    assert (record.error or "").partition(":")[0] == "connection_refused"
    assert (record.sent_s, record.token_times_s) == (None, ())


@pytest.mark.parametrize(
    ("reply", "kind"),
    [(b"SSH-2.0-OpenSSH\r\n", "bad_http"), (b"", "connection_reset"), (b"HTTP/1.1 200", "connection_reset")],
)
def test_who_answers_is_no_such_server(reply: bytes, kind: str) -> None:
    """Something else than HTTP, half of it or nothing is a failure with a name."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        (record,) = ask(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join(10)

    assert (record.error or "").partition(":")[0] == kind


@pytest.mark.parametrize("num_pings", [0, 99])
def test_a_server_that_goes_silent_is_timed_out(num_pings: int) -> None:
    """A request without a new token for the time-out is a failure, whether the connection is kept alive or not."""
    pings = [(20.0 * number, b": ping\n\n") for number in range(num_pings)]
    script = Script(pieces=[(0.0, words("w")), *pings], end=End.HANG)
    with ScriptedServer(script) as server:
        load = ClosedLoad(requests=make_requests(1), concurrency=1)
        (record,) = make_client(server, timeout_s=0.3).run(load, GO_ON)

    assert record.error == "timeout: nothing came for 0.3 s, after 1 tokens"
    assert len(record.token_times_s) == 1


def test_a_silent_request_is_timed_out_amid_busy_ones() -> None:
    """BUG-07: that others go on does not keep a request alive that has nothing."""

    def reply(body: dict[str, Any], number: int) -> Script:
        return answer(3, gap_ms=5.0) if number else Script(end=End.HANG)

    with ScriptedServer(reply) as server:
        client = make_client(server, timeout_s=0.3)
        load = ClosedLoad(requests=make_requests(), concurrency=2)
        records = client.run(load, stop_when(lambda progress: any(one.error for one in progress.finished)))

    assert [one.error for one in records if one.error] == ["timeout: nothing came for 0.3 s, after 0 tokens"]


def test_a_connection_that_stays_open_after_the_marker() -> None:
    """A server that never ends the answer after [DONE] does not hold the load."""
    pieces = [(0.0, words("w", finish="stop")), (0.0, usage(1)), (0.0, DONE)]
    with ScriptedServer(Script(pieces=pieces, end=End.HANG)) as server:
        (record,) = ask(server, ignore_eos=False)

    assert (record.finish_reason, record.error) == (FinishReason.STOP, None)


def test_a_connection_closed_between_requests_is_dialled_again() -> None:
    """A server that closes after each answer, without saying so, costs no request."""
    with ScriptedServer(answer(3, end=End.CLOSE)) as server:
        records = ask(server, 5)

    assert {record.error for record in records} == {None}


def test_latency_counts_from_the_schedule() -> None:
    """BUG-10: behind a server that takes one at a time, waiting counts; arrivals are those of the schedule."""
    offsets_s = [0.02 * number for number in range(8)]
    with ScriptedServer(answer(1, first_ms=60.0, is_alone=True)) as server:
        client = make_client(server)
        records = client.run(open_load(offsets_s, max_tokens=1), GO_ON)
        begun_s = [asked.time_s for asked in server.asked]
        written_s = [asked.written_s[0] for asked in server.asked]
    report = client.report()

    start_s = records[0].arrival_s
    assert [record.arrival_s - start_s for record in records] == pytest.approx(offsets_s, abs=1e-9)
    for number, record in enumerate(records):
        assert record.e2e_s is not None
        assert record.e2e_s >= written_s[number] - (start_s + offsets_s[number]) >= 0.06 + 0.04 * number - 1e-3
        assert record.sent_s is not None
        assert record.sent_s <= begun_s[number]
    assert report.due_per_s == pytest.approx(50)
    assert report.sent_per_s is not None


def test_a_client_that_is_late_says_so() -> None:
    """BUG-10: requests that the client itself sent late keep their scheduled arrival, and the report says so."""

    def slow() -> Iterator[TimedRequest]:
        for number, request in enumerate(make_requests(25)):
            time.sleep(0.015)  # what is late here is the client's own work
            yield TimedRequest(offset_s=0.001 * number, request=request)

    with ScriptedServer(answer(3)) as server:
        client = make_client(server)
        records = client.run(OpenLoad(requests=slow()), GO_ON)
    report = client.report()

    by_id = {record.request_id: record for record in records}
    assert by_id["r24"].arrival_s - by_id["r0"].arrival_s == pytest.approx(0.024)
    assert report.max_lag_ms > 300
    assert [limit.partition(":")[0] for limit in report.client_limits if "send" in limit] == ["client_send_lag"]
    assert report.due_per_s == pytest.approx(1000)
    assert report.sent_per_s is not None
    assert report.sent_per_s < 100


def test_the_second_trial_shows_its_cache_hits() -> None:
    """BUG-11: a server that tells cached prompt tokens has its share of hits reported for each load."""
    known: set[str] = set()

    def reply(body: dict[str, Any], number: int) -> Script:
        is_known = str(body["prompt"]) in known
        known.add(str(body["prompt"]))
        counted = usage(1, num_prompt=5, cached=5 if is_known else 0)
        pieces = [(0.0 if is_known else 20.0, words("w", finish="length")), (20.0, counted), (20.0, DONE)]
        return Script(pieces=pieces)

    shares = []
    with ScriptedServer(reply) as server:
        client = make_client(server)
        for _ in range(2):
            requests = (make_request((1, 2, 3, 4, at), request_id=f"r{at}", max_tokens=1) for at in range(3))
            client.run(ClosedLoad(requests=requests, concurrency=1), GO_ON)
            shares.append(client.report().prefix_hit_share)

    assert shares == [0.0, 1.0]


def test_a_live_load_serves_what_is_put_in() -> None:
    """Requests of a live load are due when they come, and None ends it."""
    inbox: SimpleQueue[Request | None] = SimpleQueue()
    requests = list(make_requests(2))
    inbox.put(requests[0])

    def observe(progress: Progress) -> bool:
        for record in progress.finished:
            inbox.put(requests[1] if record.request_id == "r0" else None)
        return True

    before_s = time.monotonic()
    with ScriptedServer(answer(3)) as server:
        records = make_client(server).run(LiveLoad(inbox=inbox), observe)

    assert [record.request_id for record in records] == ["r0", "r1"]
    assert before_s <= records[0].token_times_s[-1] <= records[1].arrival_s


def test_stop_cuts_off_what_is_in_flight() -> None:
    """When the observer says stop, requests in flight come back with their tokens and the connections are closed."""
    script = Script(pieces=[(0.0, words("a")), (0.0, words("b"))], end=End.HANG)
    told: list[int] = []

    def observe(progress: Progress) -> bool:
        told.append(progress.num_tokens)
        return sum(told) < 6

    with ScriptedServer(script) as server:
        records = make_client(server).run(ClosedLoad(requests=make_requests(), concurrency=3), observe)
        deadline_s = time.monotonic() + 10
        while server.num_open and time.monotonic() < deadline_s:
            time.sleep(0.005)
        num_open = server.num_open

    assert [record.finish_reason for record in records] == [FinishReason.CANCELLED] * 3
    assert [record.text for record in records] == ["ab"] * 3
    assert num_open == 0


def test_close_ends_a_load_in_another_thread() -> None:
    """`close` ends a load whose server says nothing."""
    with ScriptedServer(Script(end=End.HANG)) as server:
        client = make_client(server)
        is_running = threading.Event()
        records: list[RequestRecord] = []

        def observe(progress: Progress) -> bool:
            if progress.num_running:
                is_running.set()
            return True

        load = ClosedLoad(requests=make_requests(), concurrency=1)
        thread = threading.Thread(target=lambda: records.extend(client.run(load, observe)))
        thread.start()
        assert is_running.wait(10)
        client.close()
        thread.join(10)

    assert [record.finish_reason for record in records] == [FinishReason.CANCELLED]


@pytest.mark.parametrize("end", [End.HANG, End.RESET])
def test_a_dead_server_ends_the_load(end: End) -> None:
    """BUG-19: a server whose process has ended raises EngineDied with its reason, whatever its connections do."""
    with ScriptedServer(Script(pieces=[(0.0, words("a"))], end=end)) as server:
        died = threading.Event()
        client = make_client(server, is_alive=lambda: "exit code 9" if died.is_set() else None)

        def observe(progress: Progress) -> bool:
            if progress.num_tokens:
                died.set()
            return True

        with pytest.raises(EngineDied, match="exit code 9"):
            client.run(ClosedLoad(requests=make_requests(), concurrency=1), observe)


def test_what_the_load_raises_comes_out() -> None:
    """An error of the load's iterator, or a prompt the server cannot be given, ends the load and is raised."""

    def broken() -> Iterator[Request]:
        yield from make_requests(2)
        raise ValueError("row 3")

    with ScriptedServer(answer(3)) as server:
        with pytest.raises(ValueError, match="row 3"):
            make_client(server).run(ClosedLoad(requests=broken(), concurrency=1), GO_ON)
        with pytest.raises(InvalidSettings, match="takes text"):
            make_client(server, dialect=Dialect()).run(ClosedLoad(requests=make_requests(1), concurrency=1), GO_ON)


def test_a_server_that_refuses_everything_is_not_hammered() -> None:
    """A closed load waits a moment before it fills the place of a failed request."""
    with ScriptedServer(Script(status=429)) as server:
        first = stop_when(lambda progress: bool(progress.finished))
        records = make_client(server).run(ClosedLoad(requests=make_requests(), concurrency=2), first)

    assert len([one for one in records if one.finish_reason is FinishReason.ERROR]) == 2


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "http://host:port"])
def test_bad_addresses_are_refused(url: str) -> None:
    """A url that cannot be is refused, with its value and what to give."""
    with pytest.raises(InvalidSettings, match="give http://HOST"):
        make_client(url)


def test_bad_dialects_are_refused() -> None:
    """A dialect that no server has is refused."""
    with pytest.raises(InvalidSettings, match="api is 'grpc'"):
        Dialect(api="grpc")
    with pytest.raises(InvalidSettings, match="takes_token_ids"):
        Dialect(api="chat", takes_token_ids=True)
