"""What streams of servers show of a window: pieces with several tokens, hidden tokens, failures by kind."""

from __future__ import annotations

from dataclasses import replace

from engine.request import FinishReason
from tests.tuner.factories import make_record
from tests.tuner.test_measurement import summarised


def test_gaps_between_pieces_are_no_gaps_between_tokens() -> None:
    """BUG-01: pieces of 1, 4, 4 and 1 tokens give TPOT 10 ms, gaps between pieces of 40, 40 and 10, and no ITL."""
    times_s = (20.100, *[20.140] * 4, *[20.180] * 4, 20.190)
    record = make_record(arrival_s=20.0, token_times_s=times_s)
    found = summarised(replace(record, chunk_times_s=(20.100, 20.140, 20.180, 20.190)))
    assert found.inter_chunk is not None
    assert found.inter_chunk.mean is not None
    assert found.tpot.mean is not None
    assert (found.output_tokens, found.itl.count, found.inter_chunk.count, found.tokens_per_chunk) == (10, 0, 3, 2.5)
    assert (round(found.tpot.mean.value, 6), round(found.inter_chunk.mean.value, 6)) == (10.0, 30.0)


def test_pieces_of_one_token_are_tokens() -> None:
    """Where every piece has one token, the gaps are those between tokens, and nothing else is told."""
    record = make_record(arrival_s=20.0, token_times_s=(20.1, 20.2, 20.3))
    found = summarised(replace(record, chunk_times_s=(20.1, 20.2, 20.3)))
    assert (found.itl.count, found.inter_chunk, found.tokens_per_chunk) == (2, None, None)


def test_hidden_tokens_count_and_have_no_times() -> None:
    """BUG-03: tokens that were never shown are in the throughput; TPOT is of those that were."""
    record = make_record(arrival_s=20.0, token_times_s=(20.16, 20.18))
    found = summarised(replace(record, num_hidden_tokens=4, notes=("hidden_reasoning",)))
    assert found.tpot.mean is not None
    assert (found.output_tokens, round(found.tpot.mean.value, 6)) == (6, 20.0)
    assert found.output_tok_s.value == 6 / 30
    assert found.remarks == (("hidden_reasoning", 1),)


def test_failures_are_told_by_kind() -> None:
    """Requests that failed are counted by what went wrong, the most frequent first."""
    failed = [
        replace(make_record(arrival_s=20.0, token_times_s=()), finish_reason=FinishReason.ERROR, error=error)
        for error in ("timeout: 600 s", "http_503: busy", "timeout: 600 s")
    ]
    found = summarised(*failed)
    assert (found.num_failed, found.failures) == (3, (("timeout", 2), ("http_503", 1)))
