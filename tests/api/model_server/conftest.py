"""One server for all tests that only ask it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.model_server.stage import Stage, stage


@pytest.fixture(scope="package")
def served(tiny_folder: Path) -> Iterator[Stage]:
    """A server on the tiny model."""
    with stage(tiny_folder) as opened:
        yield opened
