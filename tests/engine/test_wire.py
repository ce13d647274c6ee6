"""Records over the border between host and child."""

from __future__ import annotations

import io

import pytest

from engine import wire
from engine.errors import EngineError, RequestTooLong, error_of_kind
from engine.load import LoadReport, Progress
from tests.engine.requests import make_request
from tests.engine.test_request import make_record


def over_the_wire(record: object) -> wire.Message:
    stream = io.StringIO()
    wire.write(stream, {"it": record})
    message: wire.Message = wire.read(stream.getvalue())["it"]
    return message


def test_records_survive_exactly() -> None:
    """A request, a record, a step's progress and a load's report come back equal, floats to the last bit."""
    request = make_request(stop=("a", "b"), temperature=0.1 + 0.2)
    record = make_record(token_times_s=(0.1 + 0.2, 1e-17, 123456.789012345))
    progress = Progress(
        time_s=1 / 3, num_running=1, num_waiting=2, num_tokens=3, num_prompt_tokens=4, first_tokens=("x",),
        finished=(record,), kv_blocks_used=5,
    )  # fmt: skip

    report = LoadReport(prefix_hit_share=1 / 3, client_limits=("cpu: 1", "lag: 2"))

    assert wire.report_from(over_the_wire(report)) == report
    assert wire.request_from(over_the_wire(request)) == request
    assert wire.record_from(over_the_wire(record)) == record
    assert wire.progress_from(over_the_wire(progress)) == progress


def test_errors_are_rebuilt_by_their_kind() -> None:
    """An error's kind brings back its class; an unknown kind is an EngineError that keeps its words."""
    assert type(error_of_kind("request_too_long", "m")) is RequestTooLong
    assert type(error_of_kind("from the future", "m")) is EngineError


def test_what_is_no_message_is_refused() -> None:
    """A line that is not an object does not pass for one."""
    with pytest.raises(ValueError, match="not a message"):
        wire.read("[1]")
