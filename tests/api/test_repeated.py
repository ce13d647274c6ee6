"""Parameters given more than once: refused where a route takes one value, taken where it takes several."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Query
from fastapi.testclient import TestClient
from pydantic import BaseModel, Field

from api.problems import add_problem_handlers
from api.repeated import require_once


class Asked(BaseModel):
    """Parameters as a model."""

    size: int = 0
    shade: Annotated[str, Field(alias="tone")] = ""
    tag: list[str] = []


def page(limit: int = 5) -> int:
    """Return how many are asked for."""
    return limit


@pytest.fixture
def client() -> TestClient:
    app = FastAPI(dependencies=[Depends(require_once)])
    add_problem_handlers(app)

    @app.get("/plain")
    def plain(limit: Annotated[int, Depends(page)], job: Annotated[list[str], Query()]) -> Any:
        return [limit, job]

    @app.get("/model")
    def model(asked: Annotated[Asked, Query()]) -> Any:
        return asked.tag

    return TestClient(app)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/plain?job=a&limit=1&limit=1", "query parameter limit is given 2 times; give it once"),
        ("/model?size=1&size=2&size=3", "query parameter size is given 3 times; give it once"),
        ("/model?tone=a&tone=b", "query parameter tone is given 2 times; give it once"),
    ],
)
def test_one_value_is_taken_once(client: TestClient, path: str, words: str) -> None:
    """Parameters of a dependency, of a model and by another name are refused by name and count, equal values too."""
    answer = client.get(path)
    assert (answer.status_code, answer.json()["detail"]) == (422, words)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/plain?job=a&job=b&limit=3", [3, ["a", "b"]]),
        ("/model?tag=a&tag=b", ["a", "b"]),
        ("/model?else=a&else=b&tag=c", ["c"]),
    ],
)
def test_lists_and_unknown_names_may_be_repeated(client: TestClient, path: str, expected: list[Any]) -> None:
    """A route that takes several values gets them all, and a name that it does not know stops nobody."""
    assert client.get(path).json() == expected
