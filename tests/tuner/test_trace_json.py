"""Traces as JSON lines, row by row: times, shared blocks, conversations flattened, faults told by field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tuner.sessions import FLATTENED, NO_DELAYS
from tuner.trace_json import MooncakeReader
from tuner.traces import RowFault, Trace


def read(*rows: dict[str, Any] | str) -> Trace:
    reader = MooncakeReader()
    for row in rows:
        reader.take(row if isinstance(row, str) else json.dumps(row))
    return reader.finish("0" * 64)


def row(timestamp: float | None = None, prompt: int = 600, output: int = 11, **more: Any) -> dict[str, Any]:
    timed = {} if timestamp is None else {"timestamp": timestamp}
    return {**timed, "input_length": prompt, "output_length": output, **more}


def test_a_row_keeps_the_ids_of_its_blocks() -> None:
    """Each request has its own ids, and no more than its prompt has blocks."""
    trace = read(row(0, 1500, hash_ids=[0, 1, 2]), row(250, 900, hash_ids=[0, 7]), row(300, 10, hash_ids=[4, 5, 6]))
    assert trace.blocks is not None
    assert [list(trace.blocks.of(number)) for number in range(3)] == [[0, 1, 2], [0, 7], [4]]
    assert list(trace.offsets_s) == [0.0, 0.25, 0.3]


def test_ids_follow_their_rows_into_order() -> None:
    """A row that stood too late takes its ids along, and one that has none stays without."""
    trace = read(row(250, hash_ids=[5, 6]), row(100), row(0, hash_ids=[7, 8]))
    assert trace.blocks is not None
    assert [list(trace.blocks.of(number)) for number in range(3)] == [[7, 8], [], [5, 6]]


def test_too_few_ids_are_told() -> None:
    """A prompt with fewer ids than blocks is taken, and the note says what becomes of the rest."""
    trace = read(row(0, 1500, hash_ids=[0]), row(1))
    assert trace.notes == ("1 rows have fewer hash_ids than their prompt has blocks; the rest is shared with nobody",)


def test_a_conversation_is_flattened() -> None:
    """A turn comes its delay after an assumed answer, with all before it as its prompt; another one is not touched."""
    trace = read(
        row(1000, 600, 11, session_id="a"),
        row(1500, 50, 2, session_id="b"),
        row(None, 40, 21, session_id="a", delay=200),
        row(None, 30, 5, session_id="a"),
    )
    # 500 ms to the first token, 30 ms for each of the others: 0.5 + 0.3 + 0.2, then 0.5 + 0.6.
    assert pytest.approx([0.0, 0.5, 1.0, 2.1]) == list(trace.offsets_s)
    assert list(trace.prompt_tokens) == [600, 50, 600 + 11 + 40, 651 + 21 + 30]
    assert (f"2 {FLATTENED}",) == trace.notes


def test_turns_share_their_conversations_blocks_alone() -> None:
    """Prompts of one conversation begin with the same blocks, those of another with others; no trace has such ids."""
    trace = read(row(0, 600, session_id="a"), row(1, 600, session_id="b"), row(None, 500, session_id="a", delay=1))
    assert trace.blocks is not None
    begun, other, later = (list(trace.blocks.of(number)) for number in range(3))
    assert begun == later[:2]
    assert not set(other) & set(later)
    assert all(one < 0 for one in begun + other + later)


def test_delays_of_a_file_without_times_are_told() -> None:
    """Without times conversations have their lengths alone, and the note says that delays are not used."""
    trace = read(row(None, session_id="a"), row(None, session_id="a", delay=5))
    assert (False, (f"1 {NO_DELAYS}",)) == (trace.has_times, trace.notes)


@pytest.mark.parametrize(
    ("bad", "column", "words"),
    [
        ('{"timestamp": 1,', "", "it is no JSON"),
        ({"timestamp": 1}, "input_length", "it lacks input_length, output_length; correct or remove the line"),
        (row(None), "timestamp", "it lacks timestamp"),
        (row(None, session_id="new"), "timestamp", "no later turn of a session that has one"),
        (row(1, hash_ids=[-1]), "hash_ids", "give a list of whole numbers from 0"),
        (row(1, hash_ids="0"), "hash_ids", "hash_ids is '0'"),
        (row(1, hash_ids=[1.5]), "hash_ids", "give a list of whole numbers from 0"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "timestamp", "give a number of milliseconds"),
        ({**row(1), "input_length": True}, "input_length", "input_length is 'True'; give a whole number"),
        (row(1, delay="soon"), "delay", "delay is 'soon'; give a number of milliseconds"),
        (row(1, prompt=0), "input_length", "its prompt has 0 tokens; give 1 to 1000000"),
        (row(1, output=0), "output_length", "its output has 0 tokens"),
    ],
)
def test_a_fault_names_its_field(bad: dict[str, Any] | str, column: str, words: str) -> None:
    """A row is refused by its field, with what stands there and what to do."""
    with pytest.raises(RowFault) as refused:
        read(row(0), bad)
    assert column == refused.value.column
    assert words in str(refused.value)


def test_a_time_among_rows_without_is_refused() -> None:
    """A file has times or has none: a row that differs from the first says so."""
    with pytest.raises(RowFault, match="it has a timestamp, but the first row has none"):
        read(row(None, session_id="a"), row(5, session_id="b"))


def test_a_conversation_beyond_the_limit_is_refused() -> None:
    """A turn whose prompt grows too long with what was said before is refused as a prompt that long."""
    with pytest.raises(RowFault, match="its prompt has 1200011 tokens"):
        read(row(0, 600_000, session_id="a"), row(None, 600_000, session_id="a"))
