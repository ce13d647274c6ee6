"""Notifications arrive signed, are tried again, go nowhere but to the operator's targets, and never hold anybody up."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from api import webhooks
from api.app import create_app
from api.operator_file import TargetEntry
from api.settings import Settings
from api.stores import Stores
from api.webhooks import FIRST_PAUSE_S, LONGEST_PAUSE_S, MAX_ATTEMPTS, Webhooks, keep_and_send, pause_s
from db.deliveries import Delivery, DeliveryStore
from db.service import DeliveryState, Scope
from tests.api.conftest import Main
from tests.db.factories import Clock

BODY = {"event": "night.finished", "night": "2026-03-29", "sentences": ["nothing moved – 3 °C"]}
ENVIRONMENT = {"OPS_SECRET": "s3cret"}


@dataclass
class Receiver:
    """What a target got, and what it answers by path."""

    url: str
    got: list[tuple[str, Message, bytes]] = field(default_factory=list)
    #: Lets those go that hang.
    let_go: threading.Event = field(default_factory=threading.Event)


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Run a real server on loopback: /ok, /broken (500), /moved (redirect), /hangs, /drips."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            running.got.append((self.path, self.headers, body))
            if self.path == "/hangs":
                running.let_go.wait(60)
            elif self.path == "/drips":
                self._drip()
            else:
                self.send_response({"/ok": 204, "/broken": 500, "/moved": 302}[self.path])
                self.send_header("Location", f"{running.url}/ok")
                self.end_headers()

        def do_GET(self) -> None:
            running.got.append((self.path, self.headers, b""))

        def _drip(self) -> None:
            """Send a header that never ends, a byte at a time."""
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
            while not running.let_go.wait(0.02):
                try:
                    self.wfile.write(b"x")
                except OSError:  # the sender has gone
                    return

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running = Receiver(url=f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield running
    finally:
        running.let_go.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def target() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def deliveries(stores: Stores, clock: Clock) -> DeliveryStore:
    return DeliveryStore(stores.database, clock.now)


def sender(deliveries: DeliveryStore, clock: Clock, **targets: str) -> Webhooks:
    """Return a sender that knows some targets by name and URL."""
    known = {name: TargetEntry(url=url, secret_env="OPS_SECRET") for name, url in targets.items()}
    return Webhooks(deliveries, known, clock.now, ENVIRONMENT)


def only(deliveries: DeliveryStore) -> Delivery:
    (one,) = deliveries.list(limit=9)
    return one


def test_a_notification_arrives_signed(deliveries: DeliveryStore, clock: Clock, target: Receiver) -> None:
    """The target gets the body as JSON with its event, id and time, and can check the signature by its secret."""
    deliveries.add("ops", "night/1/finished", BODY)
    assert sender(deliveries, clock, ops=f"{target.url}/ok").send_due() is None
    ((path, headers, body),) = target.got
    assert (path, json.loads(body), headers["Content-Type"]) == ("/ok", BODY, "application/json")
    timestamp = str(int(clock.now().timestamp()))
    signed = hmac.new(b"s3cret", timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    assert headers["X-Wattfront-Signature"] == f"sha256={signed}"
    assert (headers["X-Wattfront-Timestamp"], headers["X-Wattfront-Event"]) == (timestamp, "night.finished")
    assert headers["X-Wattfront-Delivery"] == str(only(deliveries).id)
    assert only(deliveries).state is DeliveryState.DELIVERED


def test_an_address_that_the_client_chokes_on_costs_nobody_else(
    deliveries: DeliveryStore, clock: Clock, target: Receiver
) -> None:
    """Sent side by side with it, another delivery arrives once and is noted; the wrong one fails as any other."""
    for name in ("odd", "ops"):
        deliveries.add(name, "night/1/finished", BODY)
    due_at = sender(deliveries, clock, odd="http://xn--a/", ops=f"{target.url}/ok").send_due()
    assert due_at is not None
    by_target = {one.target: one for one in deliveries.list(limit=9)}
    assert (by_target["ops"].state, by_target["odd"].state) == (DeliveryState.DELIVERED, DeliveryState.PENDING)
    assert by_target["odd"].last_error == "it cannot be sent (InvalidCodepoint); the server's log has more"
    assert due_at == by_target["odd"].next_attempt_at


def test_a_failure_is_tried_again_until_it_is_given_up(
    deliveries: DeliveryStore, clock: Clock, target: Receiver
) -> None:
    """A target that answers 500 is asked eight times under one id, ever less often; then it has failed."""
    deliveries.add("ops", "night/1/finished", BODY)
    outbox = sender(deliveries, clock, ops=f"{target.url}/broken")
    pauses = []
    while (due_at := outbox.send_due()) is not None:
        pauses.append((due_at - clock.now()).total_seconds())
        clock.time = due_at
    assert pauses == pytest.approx([pause_s(only(deliveries).id, attempt) for attempt in range(1, MAX_ATTEMPTS)])
    assert pauses == sorted(pauses)
    assert {headers["X-Wattfront-Delivery"] for _, headers, _ in target.got} == {str(only(deliveries).id)}
    assert len({headers["X-Wattfront-Signature"] for _, headers, _ in target.got}) == len(target.got) == MAX_ATTEMPTS
    assert (only(deliveries).state, only(deliveries).last_error) == (DeliveryState.FAILED, "it answered 500")


def test_pauses_differ_and_stay_within_bounds() -> None:
    """Pauses grow from a minute to six hours, are the same for the same delivery, and others for another."""
    pauses = [[pause_s(number, attempt) for attempt in range(1, MAX_ATTEMPTS)] for number in (1, 1, 2)]
    assert pauses[0] == pauses[1] != pauses[2]
    assert all(FIRST_PAUSE_S <= pause <= LONGEST_PAUSE_S for pause in (*pauses[0], *pauses[2]))
    assert pauses[0][0] < 1.25 * FIRST_PAUSE_S
    assert pauses[0][-1] >= LONGEST_PAUSE_S / 1.25


def test_nobody_is_led_elsewhere(deliveries: DeliveryStore, clock: Clock, target: Receiver) -> None:
    """A redirect is a failure: what it points to is not asked."""
    deliveries.add("ops", "night/1/finished", BODY)
    sender(deliveries, clock, ops=f"{target.url}/moved").send_due()
    assert [path for path, *_ in target.got] == ["/moved"]
    assert "answered 302 and pointed elsewhere" in str(only(deliveries).last_error)


def test_a_target_that_does_not_answer_holds_nobody_up(
    deliveries: DeliveryStore, clock: Clock, target: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Targets that hang, or answer a byte at a time for ever, are left after the time limit; another has its news."""
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 1.0)
    names = ("hangs", "drips", "ok")
    for name in names:
        deliveries.add(name, "night/1/finished", BODY)
    sender(deliveries, clock, **{name: f"{target.url}/{name}" for name in names}).send_due()
    errors = {one.target: one.last_error for one in deliveries.list(limit=9)}
    assert errors == {"hangs": "no answer within 1 s", "drips": "no answer within 1 s", "ok": None}


def test_who_is_not_there_is_told_without_the_address(deliveries: DeliveryStore, clock: Clock) -> None:
    """A target that nobody listens at, or whose URL is none, fails; what callers see has neither URL nor host."""
    with receiver() as gone:
        url = gone.url
    for name in ("gone", "odd"):
        deliveries.add(name, "night/1/finished", BODY)
    sender(deliveries, clock, gone=url, odd="http://xn--iñvalid-.example/").send_due()
    for one in deliveries.list(limit=9):
        assert str(one.last_error).startswith("no connection, or it broke (")
        assert "127.0.0.1" not in str(one.last_error)
        assert one.state is DeliveryState.PENDING


def test_a_target_without_its_secret_is_refused_by_name(stores: Stores, clock: Clock, target: Receiver) -> None:
    """Nothing is sent unsigned: the message names variable and target, and it is sent once the variable is set."""
    deliveries = DeliveryStore(stores.database, clock.now)
    deliveries.add("ops", "night/1/finished", BODY)
    environment: dict[str, str] = {}
    known = {"ops": TargetEntry(url=f"{target.url}/ok", secret_env="OPS_SECRET")}
    outbox = Webhooks(deliveries, known, clock.now, environment)
    due_at = outbox.send_due()
    assert only(deliveries).last_error == "OPS_SECRET, the secret of target 'ops', is not set; set it for the server"
    assert (target.got, due_at is not None) == ([], True)
    environment |= ENVIRONMENT
    clock.time = due_at or clock.time
    outbox.send_due()
    assert (len(target.got), only(deliveries).state) == (1, DeliveryState.DELIVERED)


def test_only_configured_targets_are_told(deliveries: DeliveryStore, clock: Clock) -> None:
    """A target that the operator has taken out of the file gets nothing, and its name is told."""
    deliveries.add("gone", "night/1/finished", BODY)
    sender(deliveries, clock).send_due()
    assert only(deliveries).last_error == "target 'gone' is not in the server's operator file; add it there"


def test_a_large_notification_is_not_sent(deliveries: DeliveryStore, clock: Clock, target: Receiver) -> None:
    """No more than 64 KB are sent to anybody."""
    deliveries.add("ops", "night/1/finished", BODY | {"sentences": ["x" * 70_000]})
    sender(deliveries, clock, ops=f"{target.url}/ok").send_due()
    assert target.got == []
    assert "65536 are sent at most" in str(only(deliveries).last_error)


def test_a_look_sends_what_it_announces(deliveries: DeliveryStore, clock: Clock, target: Receiver) -> None:
    """What keeping the nights announces leaves in the same look, which says when the next is due."""
    due_at = clock.now() + timedelta(hours=1)

    def keep() -> datetime:
        deliveries.add("ops", "night/1/started", BODY)
        return due_at

    assert keep_and_send(keep, sender(deliveries, clock, ops=f"{target.url}/ok")) == due_at
    assert [path for path, *_ in target.got] == ["/ok"]


def test_deliveries_are_listed(stores: Stores, settings: Settings) -> None:
    """`/v1/deliveries` shows who was told what and how far it is, in pages, newest first, and never an address."""
    for number in range(3):
        stores.deliveries.add("ops", f"night/{number}/started", BODY)
    (taken,) = stores.deliveries.take_due(limit=1, hold_s=60.0)
    stores.deliveries.failed(taken, "it answered 500", None)
    client = TestClient(create_app(stores, settings), base_url="http://127.0.0.1")
    first = client.get("/v1/deliveries", params={"limit": 2}).json()
    rest = client.get("/v1/deliveries", params={"limit": 2, "before": first["next"]}).json()
    assert [one["event_key"][6] for one in first["items"] + rest["items"]] == ["2", "1", "0"]
    (failed,) = client.get("/v1/deliveries", params={"state": "failed"}).json()["items"]
    shown: dict[str, Any] = {"state": "failed", "num_attempts": 1, "last_error": "it answered 500", "body": BODY}
    assert failed | shown == failed
    assert (failed["next_attempt_at"], rest["next"]) == (None, None)
    assert client.get("/v1/deliveries", params={"state": "lost"}).status_code == 422


def test_deliveries_are_for_administrators(stores: Stores, settings: Settings) -> None:
    """A key that may tune may not see who is told what; one of scope admin may."""
    keys = {scope: stores.keys.create(scope.value, scope)[1] for scope in (Scope.TUNE, Scope.ADMIN)}
    client = TestClient(create_app(stores, settings), base_url="http://127.0.0.1")
    headers = {scope: {"authorization": f"Bearer {key}"} for scope, key in keys.items()}
    assert [client.get("/v1/deliveries", headers=headers[scope]).status_code for scope in keys] == [403, 200]


def test_a_running_service_sends(
    stores: Stores, settings: Settings, target: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A service that keeps nights sends what is due at its first look, to the target of its operator's file."""
    file = tmp_path / "operator.yaml"
    file.write_text(f"targets: {{ops: {{url: '{target.url}/ok', secret_env: OPS_SECRET}}}}")
    monkeypatch.setenv("OPS_SECRET", "s3cret")
    stores.deliveries.add("ops", "night/1/started", BODY)
    app = create_app(stores, settings.model_copy(update={"operator_file": file}))
    with TestClient(app, base_url="http://127.0.0.1"):
        assert app.state.nightly.wait_for_look(1, timeout_s=60.0)
    assert [path for path, *_ in target.got] == ["/ok"]
    assert only(stores.deliveries).state is DeliveryState.DELIVERED


def test_a_target_is_tried_by_hand(
    main_with: Main, stores: Stores, target: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`wattfront notify TARGET --test` tells at once whether it arrived; a failure has code 1 and is not repeated."""
    file = tmp_path / "operator.yaml"
    entries = [f"  {name}: {{url: '{target.url}/{name}', secret_env: OPS_SECRET}}" for name in ("ok", "broken")]
    file.write_text("\n".join(["targets:", *entries]))
    monkeypatch.setenv("WATTFRONT_OPERATOR_FILE", str(file))
    monkeypatch.setenv("OPS_SECRET", "s3cret")
    ended = [main_with("notify", name, "--test") for name in ("ok", "broken", "other")]
    assert [one.code for one in ended] == [0, 1, 2]
    assert [one.out for one in ended[:2]] == ["ok has it\n", "broken does not have it: it answered 500\n"]
    assert "TARGET is 'other': name a target of WATTFRONT_OPERATOR_FILE, which has broken, ok" in ended[2].err
    assert [one.state.value for one in stores.deliveries.list(limit=9)] == ["failed", "delivered"]
    assert [headers["X-Wattfront-Event"] for _, headers, _ in target.got] == ["test", "test"]
    assert "give --test" in main_with("notify", "ok").err
