"""Prompts of real engines: salted, and as much shared as their trace says."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from engine.load import ClosedLoad, OpenLoad
from engine.request import Request
from tuner.prompts import SALT_TOKENS
from tuner.request import WorkloadSpec
from tuner.workload import encoded_texts, load_for

CORPUS = tuple(range(5_000))
MOONCAKE = (
    '{"timestamp": 0, "input_length": 1500, "output_length": 40, "hash_ids": [0, 1, 2]}\n'
    '{"timestamp": 250, "input_length": 900, "output_length": 120, "hash_ids": [0, 7]}\n'
    '{"timestamp": 1310, "input_length": 600, "output_length": 8, "hash_ids": [8, 9]}\n'
)


def first(spec: WorkloadSpec, number: int = 3, *, stream: str = "p", salt: str = "") -> list[Request]:
    load = load_for(spec, CORPUS, capacity=4, stream=stream, salt=salt, prompts=encoded_texts(spec, encode))
    if isinstance(load, ClosedLoad):
        return list(islice(load.requests, number))
    assert isinstance(load, OpenLoad)
    return [timed.request for timed in islice(load.requests, number)]


def encode(text: str) -> list[int]:
    return list(text.encode())


def test_a_salt_changes_the_beginning_and_no_length() -> None:
    """BUG-11: another salt gives prompts of the same lengths that share no beginning; the same one gives the same."""
    spec = WorkloadSpec()
    one, other, again = (first(spec, salt=salt) for salt in ("a", "b", "a"))
    assert again == one
    for mine, theirs in zip(one, other, strict=True):
        assert len(mine.prompt_token_ids) == len(theirs.prompt_token_ids)
        assert mine.prompt_token_ids[:SALT_TOKENS] != theirs.prompt_token_ids[:SALT_TOKENS]
        assert mine.prompt_token_ids[SALT_TOKENS:] == theirs.prompt_token_ids[SALT_TOKENS:]


def test_shared_blocks_are_shared_within_a_run_alone(tmp_path: Path) -> None:
    """Equal ids of a trace are equal tokens in one run, others in another; what no id stands for is a request's own."""
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE)
    spec = WorkloadSpec(scenario="trace", trace_file=str(path))
    one, other = first(spec, salt="a"), first(spec, salt="b")
    assert [len(request.prompt_token_ids) for request in one] == [1500, 900, 600]
    assert one[0].prompt_token_ids[:512] == one[1].prompt_token_ids[:512]
    assert one[0].prompt_token_ids[512:900] != one[1].prompt_token_ids[512:900]
    assert one[2].prompt_token_ids[:512] != one[0].prompt_token_ids[:512]
    assert other[0].prompt_token_ids[:512] != one[0].prompt_token_ids[:512]


def test_text_is_the_models_own_tokens(tmp_path: Path) -> None:
    """A file's text is encoded by the engine; outputs that it does not tell are drawn as a workload's are."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Name three rivers."}\n{"prompt": "Why?", "max_tokens": 9}\n')
    found = first(WorkloadSpec(trace_file=str(path), output_tokens=(5, 5)), 2)
    assert [tuple(b"Name three rivers."), tuple(b"Why?")] == [request.prompt_token_ids for request in found]
    assert [request.max_tokens for request in found] == [5, 9]
