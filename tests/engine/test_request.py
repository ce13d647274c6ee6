"""What a request may ask, and the latencies of its record."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import RequestRefused
from engine.request import FinishReason, RequestRecord
from tests.engine.requests import make_request


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt_token_ids": ()}, "prompt is empty"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"stop": ("",)}, "empty string"),
        ({"priority": -1}, "priority is -1; give 0"),
        ({"priority": 10}, "priority is 10"),
    ],
)
def test_impossible_requests_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    """BUG-38: an empty prompt, no tokens to make or a senseless sampling field is refused before any work."""
    with pytest.raises(RequestRefused, match=words):
        make_request(**changes)


def make_record(**changes: Any) -> RequestRecord:
    fields: dict[str, Any] = {
        "request_id": "r",
        "num_prompt_tokens": 3,
        "token_ids": (1, 2, 3),
        "text": "abc",
        "arrival_s": 10.0,
        "token_times_s": (10.5, 10.7, 10.9),
        "finish_reason": FinishReason.LENGTH,
    }
    return RequestRecord(**fields | changes)


def test_latencies_of_a_record() -> None:
    """TTFT runs from arrival to first token, TPOT is the mean gap after it, end to end reaches the last token."""
    record = make_record()

    assert record.ttft_s == pytest.approx(0.5)
    assert record.tpot_s == pytest.approx(0.2)
    assert record.e2e_s == pytest.approx(0.9)


def test_latencies_that_do_not_exist_are_none() -> None:
    """One token has no gap and no token has no latency at all: None, never 0."""
    one = make_record(token_ids=(1,), token_times_s=(10.5,))
    none = make_record(token_ids=(), token_times_s=())

    assert one.tpot_s is None
    assert (none.ttft_s, none.tpot_s, none.e2e_s) == (None, None, None)
