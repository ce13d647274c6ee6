"""A worker on the list of those that are there."""

from __future__ import annotations

import socket
import threading

import pytest
import structlog

from api.owners import owner_name
from api.presence import Presence
from api.settings import Settings
from api.stores import Stores
from api.worker import work
from db.errors import DatabaseBusy
from db.workers import Worker
from tests.api.commands import wait_until
from tests.tuner.simulated import make_simulated
from tuner.knobs import SERVERS


def listed(stores: Stores) -> Worker:
    (worker,) = stores.workers.list()
    return worker


def test_a_worker_is_on_the_list_while_it_is_there(stores: Stores) -> None:
    """Between its start and its orderly end a worker is listed with what it takes, can start, and runs."""
    with Presence(stores, ("gpu0", "simulated:*")) as presence:
        worker = listed(stores)
        assert (worker.owner, worker.host, worker.job_id) == (owner_name(), socket.gethostname(), None)
        assert (worker.devices, set(worker.engines)) == (("gpu0", "simulated:*"), {"embedded", "simulated", *SERVERS})
        presence.runs("a" * 32)
        assert listed(stores).job_id == "a" * 32
        presence.runs(None)
        assert listed(stores).job_id is None
    assert stores.workers.list() == []


def test_a_worker_says_now_and_then_that_it_is_there(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting worker is seen again and again, and comes back on the list when somebody took it off."""
    monkeypatch.setattr("api.presence._INTERVAL_S", 0.01)
    with Presence(stores, None):
        first = listed(stores)
        wait_until(lambda: listed(stores).last_seen > first.last_seen, what="a sign of life")
        stores.workers.forget(first.owner)
        wait_until(stores.workers.list, what="the worker to come back")
        assert listed(stores).devices == ("*",)


def test_a_list_that_cannot_be_written_stops_no_worker(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy database costs the list its news, and a line in the log; the worker goes on."""

    def busy(*_: object, **__: object) -> None:
        raise DatabaseBusy("another process holds the lock")

    for name in ("seen", "forget"):
        monkeypatch.setattr(f"db.workers.WorkerStore.{name}", busy)
    with structlog.testing.capture_logs() as logs, Presence(stores, None):
        pass
    assert [entry["event"] for entry in logs] == ["presence_not_told"] * 2


def test_a_worker_runs_only_what_it_takes(stores: Stores, settings: Settings) -> None:
    """A worker that takes simulated devices leaves another device's job in the queue, and is listed with its own."""
    other = stores.jobs.create(make_simulated(device="gpu0", engine="embedded"), priority=9)
    job = stores.jobs.create(make_simulated())
    stop = threading.Event()
    seen: list[str | None] = []

    def watch() -> None:
        def look() -> bool:
            seen.extend(worker.job_id for worker in stores.workers.list())
            return stores.jobs.get(job.id).has_ended

        wait_until(look, what="the job to end")
        stop.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    work(stores, settings, should_stop=stop, takes=("simulated:*",), poll_s=0.01)
    watcher.join()
    assert stores.jobs.get(other.id).started_at is None
    assert job.id in seen
    assert stores.workers.list() == []
