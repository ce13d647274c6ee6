"""Problems as pages for people, and as they were for programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.stores import Stores
from tests.api.pages.browser import Pages, faults_in_every_view
from tests.db.factories import make_request

PAGE = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture
def client(stores: Stores) -> Iterator[TestClient]:
    with TestClient(create_app(stores), base_url="http://localhost", raise_server_exceptions=False) as opened:
        yield opened


def test_a_page_that_is_not_there_leads_on(client: TestClient) -> None:
    """Somebody who follows a wrong link gets a page of status 404 with its address and the way to the others."""
    answer = client.get("/nowhere", headers=PAGE)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "Nothing is at /nowhere." in answer.text
    assert 'href="/jobs">Jobs</a>' in answer.text


def test_a_job_that_is_not_there_is_named(client: TestClient) -> None:
    """The page of a job that was deleted says which job was asked for, as text."""
    answer = client.get("/jobs/abcd%3Cb%3E", headers=PAGE)
    assert answer.status_code == 404
    assert "No such job" in answer.text
    assert "abcd&lt;b&gt;" in answer.text


@pytest.mark.parametrize("path", ["/nowhere", "/jobs/abcd1234", "/v1/nowhere"])
def test_programs_get_problems(client: TestClient, path: str) -> None:
    """Whoever does not ask for HTML gets the problem that it always got."""
    answer = client.get(path)
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_rest_interface_never_answers_with_a_page(client: TestClient) -> None:
    """Also a browser gets data from the paths that are for programs."""
    assert client.get("/v1/jobs/abcd1234", headers=PAGE).headers["content-type"] == "application/problem+json"


def test_a_fault_is_a_page_with_the_id_of_the_request(
    client: TestClient, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours shows no word of it, but what to look for in the log, and offers to try again."""
    stores.jobs.create(make_request())

    def fail() -> dict[str, int]:
        raise RuntimeError("secret words")

    monkeypatch.setattr(stores.counts, "jobs", fail)
    answer = client.get("/", headers=PAGE | {"x-request-id": "look-for-me"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "look-for-me")
    assert "look-for-me" in answer.text
    assert "secret" not in answer.text
    assert "Try again" in answer.text


def test_it_works_at_every_width_in_both_schemes(open_page: Pages) -> None:
    """The page of an error is as accessible as any."""
    page = open_page("/nowhere")
    open_page.forgive("404 for")
    assert faults_in_every_view(page) == []
