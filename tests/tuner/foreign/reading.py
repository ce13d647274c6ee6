"""Made-up files of other tools: written as the tool does, then read."""

from __future__ import annotations

import json
from typing import Any

from tuner.foreign.result import ForeignResult
from tuner.foreign_results import read_results


def read_all(*documents: Any) -> tuple[ForeignResult, ...]:
    """Return the results of a file of one object, or of several, one a line."""
    return read_results("\n".join(json.dumps(one) for one in documents).encode(), name="results.json")


def read_one(document: Any) -> ForeignResult:
    """Return the one result of a file of one object."""
    (result,) = read_all(document)
    return result
