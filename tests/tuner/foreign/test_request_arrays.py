"""Arrays of one entry a request: whose request was answered, and what of it is told."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.foreign.fields import Fields, Source
from tuner.foreign.request_arrays import RequestFigures, figures_of

ARRAYS: dict[str, Any] = {
    "input_lens": [10, 12, 8],
    "output_lens": [3, 0, 1],
    "ttfts": [0.1, 0.0, 0.3],
    "itls": [[0.02, 0.04], [], []],
    "errors": ["", "Timeout", ""],
}


def figures(num_completed: int = 2, **changes: Any) -> RequestFigures:
    values = {name: value for name, value in (ARRAYS | changes).items() if value is not None}
    return figures_of(Fields(Source(name="f", sha256=""), values), num_completed)


def test_without_latencies_gaps_give_tpot() -> None:
    """TPOT is the sum of a request's gaps over its tokens after the first; one of one token has none."""
    found = figures()
    assert found.tpot_ms is not None
    assert found.tpot_ms.mean == pytest.approx(30.0)
    assert (found.num_failed, found.prompt_tokens, found.output_tokens) == (1, 18, 4)
    assert found.e2e_ms is None


@pytest.mark.parametrize(
    "changes", [{"errors": None}, {"errors": None, "output_lens": None, "latencies": [0.2, 0, 0.3]}]
)
def test_answered_requests_are_told_without_errors(changes: dict[str, Any]) -> None:
    """Without texts of errors a request of no token, or of no latency, is one that failed."""
    found = figures(**changes)
    assert found.num_failed == 1
    assert found.ttft_ms is not None
    assert found.ttft_ms.mean == pytest.approx(200.0)


def test_arrays_that_contradict_the_count_say_nothing() -> None:
    """Where another number of requests was answered than `completed` says, nothing is taken from the arrays."""
    assert figures(num_completed=3) == RequestFigures()
    assert figures(errors=None, output_lens=None) == RequestFigures()
