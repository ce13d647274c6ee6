"""Prompts of real engines: salted, and as much shared as their trace says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, islice, pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.load import ClosedLoad, OpenLoad
from engine.request import Request
from tuner.errors import InvalidRequest
from tuner.prompts import SALT_TOKENS, encode_texts, text_prompts
from tuner.request import WorkloadSpec
from tuner.workload import encoded_texts, load_for, trace_of

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


def num_shared(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


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


SCENARIOS: dict[str, dict[str, Any]] = {
    "closed": {"concurrency": 3},
    "offline": {},
    "server": {"rate_per_s": 5.0},
    "interactive": {"rate_per_s": 5.0, "burstiness": 0.5},
    "trace": {"time_scale": 0.5},
}


@pytest.mark.parametrize(
    ("scenario", "has_file"),
    [*((name, True) for name in SCENARIOS), *((name, False) for name in SCENARIOS if name != "trace")],
)
def test_every_scenario_has_real_prompts(tmp_path: Path, scenario: str, has_file: bool) -> None:
    """Whatever decides when requests come, their prompts are tokens of the text or the file's lengths, and unique."""
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE)
    fields = SCENARIOS[scenario] | ({"trace_file": str(path)} if has_file else {})
    spec = WorkloadSpec(scenario=scenario, **fields)
    made = first(spec, 6, salt="s")
    assert [f"p{number}" for number in range(6)] == [request.request_id for request in made]
    assert len({request.prompt_token_ids for request in made}) == 6
    if has_file:
        assert [len(request.prompt_token_ids) for request in made] == [1500, 900, 600] * 2
        assert [request.max_tokens for request in made] == [40, 120, 8] * 2


def test_a_file_that_does_not_repeat_ends(tmp_path: Path) -> None:
    """BUG-53: more requests than rows come only where the workload repeats its file."""
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE)
    once = WorkloadSpec(scenario="trace", trace_file=str(path), repeat=False)
    assert (len(first(once, 10)), len(first(replace(once, scenario="closed"), 10))) == (3, 3)
    assert len(first(replace(once, repeat=True), 10)) == 10


@settings(max_examples=30, deadline=None)
@given(chains=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=2, max_size=6), salt=st.text())
def test_prompts_share_what_the_trace_shares(
    tmp_path_factory: pytest.TempPathFactory, chains: list[list[int]], salt: str
) -> None:
    """Any two prompts begin with as many equal blocks as their ids do, and not with one token block more."""
    rows = [
        {"timestamp": time_ms, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
        for time_ms, ids in enumerate(chains)
    ]
    path = tmp_path_factory.mktemp("traces") / "trace.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    spec = WorkloadSpec(scenario="trace", trace_file=str(path))
    made = [request.prompt_token_ids for request in first(spec, len(chains), salt=salt)]
    for (ids, prompt), (other_ids, other) in combinations(zip(chains, made, strict=True), 2):
        assert num_shared(ids, other_ids) == num_shared(prompt, other) // 512


def text_file(folder: Path, *rows: dict[str, Any]) -> str:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_trace_that_begins_anew_shares_nothing_with_itself(tmp_path: Path) -> None:
    """The second time, ids stand for other tokens; they are shared within that turn as within the first."""
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE)
    made = [request.prompt_token_ids for request in first(WorkloadSpec(scenario="trace", trace_file=str(path)), 6)]
    assert num_shared(made[0], made[3]) < SALT_TOKENS
    assert num_shared(made[3], made[4]) >= 512


def test_forgotten_blocks_are_made_again_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many blocks a trace has, few are kept, and an id stands for the same tokens after it was forgotten."""
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE)
    spec = WorkloadSpec(scenario="trace", trace_file=str(path))
    kept = first(spec, 6, salt="s")
    monkeypatch.setattr("tuner.prompts._MAX_KEPT_TOKENS", 600)
    assert kept == first(spec, 6, salt="s")


def test_a_salted_text_keeps_its_length_and_its_end(tmp_path: Path) -> None:
    """BUG-11: a file's own text is salted too; a prompt shorter than a salt is another one altogether."""
    said = "Name three rivers of Europe."
    spec = WorkloadSpec(trace_file=text_file(tmp_path, {"prompt": said}, {"prompt": "Why?"}))
    long, short = (request.prompt_token_ids for request in first(spec, 2, salt="a"))
    assert (len(long), long[SALT_TOKENS:]) == (len(said), tuple(said.encode())[SALT_TOKENS:])
    assert long[:SALT_TOKENS] != tuple(said.encode())[:SALT_TOKENS]
    assert len(short) == len("Why?")
    assert long != first(spec, 1, salt="b")[0].prompt_token_ids


def test_text_goes_on_with_its_beginning() -> None:
    """A prompt longer than the text has all of its tokens, in the text's order, over and over."""
    (prompt,) = text_prompts(iter([25]), range(10), stream="s", salt="")
    assert len(prompt) == 25
    assert all((one + 1) % 10 == other for one, other in pairwise(prompt))


def test_text_is_clipped_by_its_tokens(tmp_path: Path) -> None:
    """What is cut is counted in the model's tokens; an output is as long as the answer, where only that is known."""
    path = tmp_path / "share.json"
    turns = [{"from": "human", "value": "abcdefghij"}, {"from": "gpt", "value": "klmnop"}]
    path.write_text(json.dumps([{"conversations": turns}]))
    spec = WorkloadSpec(trace_file=str(path), clip_prompt_tokens=7, clip_output_tokens=4)
    found = encode_texts(trace_of(spec), spec, encode)
    assert (found.prompts, found.output_tokens) == ((tuple(b"abcdefg"),), (4,))
    cut = found.clipping
    assert (cut.num_prompts, cut.prompt_tokens, cut.num_outputs, cut.output_tokens) == (1, 3, 1, 2)


def test_outputs_that_a_file_tells_are_clipped_once(tmp_path: Path) -> None:
    """An output that was cut when the file was read is not counted again when its text is encoded."""
    path = text_file(tmp_path, {"prompt": "ab", "max_tokens": 30}, {"prompt": "cd"})
    spec = WorkloadSpec(trace_file=path, clip_output_tokens=20)
    found = encode_texts(trace_of(spec), spec, encode)
    assert found.output_tokens == (20, 0)
    assert (found.clipping.num_outputs, found.clipping.output_tokens, found.clipping.num_prompts) == (1, 10, 0)


def test_a_prompt_without_tokens_is_refused(tmp_path: Path) -> None:
    """A text that the tokenizer makes nothing of is named by its number, with what to do."""
    spec = WorkloadSpec(trace_file=text_file(tmp_path, {"prompt": "a"}, {"prompt": "b"}))
    with pytest.raises(InvalidRequest, match=r"the prompt of request 2 has no tokens .*; remove it"):
        encode_texts(trace_of(spec), spec, lambda text: [1] if text == "a" else [])
