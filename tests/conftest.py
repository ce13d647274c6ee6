"""What holds for every test and every process that a test starts: torch's threads sleep while they wait.

By default they spin, and on a machine that does something else besides, each step of a model waits for a thread that
has no core: tiny models took 20 times as long there. No figure that a test looks at depends on it.

Laws are tried on half as many examples as hypothesis would by itself, unless the test says how many:
HYPOTHESIS_PROFILE=thorough tries ten times as many.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.postgres import PostgresServer, postgres_server

settings.register_profile("suite", max_examples=50)
settings.register_profile("thorough", max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # here, not in a fixture: it is read once, when torch is loaded


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that need the real checkpoint: they take longest, and at the end one core would wait."""
    with_model = {item.path for item in items if item.get_closest_marker("model") is not None}
    items.sort(key=lambda item: item.path not in with_model)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server; a test that asks for it is skipped where there is none."""
    with postgres_server() as server:
        yield server
