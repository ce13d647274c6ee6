"""The OpenAPI document: names that stay, problems and keys of every route, links from what is made."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.limits import HEALTH_PATHS
from api.stores import Stores

METHODS = ("get", "put", "post", "delete", "patch")


@pytest.fixture
def document(stores: Stores) -> dict[str, Any]:
    document: dict[str, Any] = TestClient(create_app(stores), base_url="http://localhost").get("/openapi.json").json()
    return document


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return every operation by method and path."""
    return {(method, path): one for path, found in document["paths"].items() for method, one in found.items()}


def test_every_operation_has_a_name_of_its_own(document: dict[str, Any]) -> None:
    """Operation ids are the names of the routes' functions, and no two routes share one."""
    names = [one["operationId"] for one in operations(document).values()]
    assert sorted(set(names)) == sorted(names)
    assert {"list_jobs", "create_job", "cancel_job", "get_job", "list_audit"} <= set(names)
    assert {method for method, _ in operations(document)} <= set(METHODS)


def test_every_answer_of_an_error_is_a_problem(document: dict[str, Any]) -> None:
    """Each route tells its errors, in the one form that problems have; FastAPI's own is nowhere."""
    for (method, path), one in operations(document).items():
        errors = {status: answer for status, answer in one["responses"].items() if status[0] in "45"}
        assert {"400", "401", "422", "429", "503"} <= set(errors), (method, path)
        for status, answer in errors.items():
            schema = answer["content"]["application/problem+json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/Problem"}, (method, path, status)
            assert answer["description"]
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_examples_are_of_the_form(document: dict[str, Any]) -> None:
    """Each example of a problem has the fields of one and the status that it stands under."""
    for one in operations(document).values():
        for status, answer in one["responses"].items():
            for media in answer.get("content", {}).values():
                if status[0] in "45" and "example" in media:
                    assert (set(media["example"]), media["example"]["status"]) == (
                        {"type", "title", "status", "detail"},
                        int(status),
                    )


def test_every_route_but_health_tells_of_the_key(document: dict[str, Any]) -> None:
    """The way to send a key is described, and asked for by everything but health."""
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for (_, path), one in operations(document).items():
        assert one["security"] == ([] if path in HEALTH_PATHS else [{"key": []}])


def test_what_is_made_links_to_what_can_be_asked_of_it(document: dict[str, Any]) -> None:
    """A new job's answer leads to the job, its trials, its front and its end by its id."""
    links = operations(document)["post", "/v1/jobs"]["responses"]["201"]["links"]
    assert {"get_job", "list_trials", "get_front", "cancel_job"} <= set(links)
    assert links["cancel_job"]["parameters"] == {"job_id": "$response.body#/id"}
