"""Figures for Prometheus."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from api.app import create_app
from api.metrics import COUNTS_FRESH_S, TRIALS_FRESH_S, StoredFigures
from api.settings import Settings
from api.stores import Stores
from db.errors import DatabaseBusy
from tests.api.scripted import claimed
from tests.db.factories import make_point, make_request, make_trial

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def client(stores: Stores, settings: Settings) -> TestClient:
    return TestClient(create_app(stores, settings), base_url="http://localhost")


def samples_of(text: str) -> Samples:
    """Return the samples of a scrape by name and labels."""
    families = text_string_to_metric_families(text)
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def test_what_is_stored_is_told(client: TestClient, stores: Stores) -> None:
    """Jobs and attempts are counted by state, with a 0 where there are none, beside queue, workers and nights."""
    claim = claimed(stores, make_request())
    stores.jobs.create(make_request())
    stores.trials.finish(stores.trials.start(claim, 0, make_point()), make_trial())
    stores.trials.start(claim, 1, make_point(16))
    stores.deliveries.add("ops", "night/1/started", {"event": "night.started"})
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    found = samples_of(answer.text)
    for name, label, value, count in (
        ("wattfront_jobs", "state", "queued", 1),
        ("wattfront_jobs", "state", "running", 1),
        ("wattfront_jobs", "state", "failed", 0),
        ("wattfront_trials", "state", "complete", 1),
        ("wattfront_trials", "state", "running", 1),
        ("wattfront_trials", "state", "invalid", 0),
        ("wattfront_nights", "outcome", "missed", 0),
        ("wattfront_deliveries", "state", "pending", 1),
        ("wattfront_deliveries", "state", "failed", 0),
    ):
        assert (value, count) == (value, found[name, ((label, value),)])
    for name, least in (("wattfront_queue_age_seconds", 0), ("wattfront_workers", 0), ("wattfront_event_streams", 0)):
        assert found[name, ()] >= least
    assert found["wattfront_database_up", ()] == 1
    assert any(name == "wattfront_build_info" for name, _ in found)


def test_requests_are_counted_under_the_template_of_their_route(client: TestClient, stores: Stores) -> None:
    """Two jobs share a series; an address that no route has is told as none, whatever it was; problems have theirs."""
    for job_id in (stores.jobs.create(make_request()).id for _ in range(2)):
        assert client.get(f"/v1/jobs/{job_id}").status_code == 200
    client.get("/v1/jobs/0000")
    client.get("/nothing/here")
    found = samples_of(client.get("/metrics").text)
    counts = {labels: value for (name, labels), value in found.items() if name.endswith("duration_seconds_count")}
    for route, status, count in (("/v1/jobs/{job_id}", "200", 2), ("/v1/jobs/{job_id}", "404", 1), ("none", "404", 1)):
        assert count == counts[("method", "GET"), ("route", route), ("status", status)]


def test_counts_are_remembered_for_a_while(stores: Stores) -> None:
    """The database is asked again only once a figure is too old, and for the costly one less often."""
    time_s = 0.0
    figures = StoredFigures(stores, lambda: 0, clock=lambda: time_s)

    def count(name: str, state: str) -> float:
        family = next(one for one in figures.collect() if one.name == name)
        return next(sample.value for sample in family.samples if sample.labels["state"] == state)

    assert count("wattfront_jobs", "running") == count("wattfront_trials", "running") == 0
    stores.trials.start(claimed(stores, make_request()), 0, make_point())
    time_s = COUNTS_FRESH_S - 0.1
    assert count("wattfront_jobs", "running") == 0
    time_s = COUNTS_FRESH_S
    assert (count("wattfront_jobs", "running"), count("wattfront_trials", "running")) == (1, 0)
    time_s = TRIALS_FRESH_S
    assert count("wattfront_trials", "running") == 1


def test_a_database_that_fails_is_a_figure(stores: Stores, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the database cannot be read, the scrape says so, counts its errors by kind, and tells the rest."""

    def fail(*_: object) -> None:
        raise DatabaseBusy("locked")

    monkeypatch.setattr(type(stores.counts), "jobs", fail)
    stores.database.num_errors["DatabaseBusy"] += 2
    client = TestClient(create_app(stores, settings), base_url="http://localhost")
    answer = client.get("/metrics")
    found = samples_of(answer.text)
    assert (answer.status_code, found["wattfront_database_up", ()]) == (200, 0)
    assert found["wattfront_database_errors_total", (("kind", "DatabaseBusy"),)] == 2
    assert ("process_resident_memory_bytes", ()) in found
