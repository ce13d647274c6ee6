"""Workloads: the same requests for the same seed, prompts that are real text, a fingerprint of all of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import Request
from tuner.errors import InvalidRequest
from tuner.request import WorkloadSpec
from tuner.workload import corpus_text, max_context, requests, workload_hash

#: Every token another, so that a prompt's place in the text can be seen.
TEXT = tuple(range(1000, 1500))

ranges = st.tuples(st.integers(1, 60), st.integers(0, 60)).map(lambda pair: (pair[0], pair[0] + pair[1]))
specs = st.builds(WorkloadSpec, prompt_tokens=ranges, output_tokens=ranges, seed=st.integers())


def make_spec(**changes: Any) -> WorkloadSpec:
    return replace(WorkloadSpec(prompt_tokens=(8, 16), output_tokens=(2, 6), seed=7), **changes)


def first(count: int, spec: WorkloadSpec, stream: str = "") -> list[Request]:
    return list(islice(requests(spec, TEXT, stream=stream), count))


@settings(max_examples=50, deadline=None)
@given(spec=specs, stream=st.text(max_size=4))
def test_the_same_seed_gives_the_same_requests(spec: WorkloadSpec, stream: str) -> None:
    """A spec and a stream decide every request, however often they are asked."""
    assert first(8, spec, stream) == first(8, spec, stream)


@settings(max_examples=50, deadline=None)
@given(spec=specs, stream=st.text(max_size=4))
def test_prompts_are_consecutive_text_of_the_asked_lengths(spec: WorkloadSpec, stream: str) -> None:
    """Every prompt is a stretch of the text as it stands, and both lengths lie in their ranges, ends included."""
    for request in first(20, spec, stream):
        start, length = request.prompt_token_ids[0] - TEXT[0], len(request.prompt_token_ids)
        assert TEXT[start : start + length] == request.prompt_token_ids
        assert spec.prompt_tokens[0] <= length <= spec.prompt_tokens[1]
        assert spec.output_tokens[0] <= request.max_tokens <= spec.output_tokens[1]
        assert request.ignore_eos


def test_every_length_of_a_range_occurs() -> None:
    """Over many requests the shortest and the longest length both come up."""
    spec = make_spec()
    drawn = first(500, spec)
    assert set(range(8, 17)) == {len(request.prompt_token_ids) for request in drawn}
    assert set(range(2, 7)) == {request.max_tokens for request in drawn}


@pytest.mark.parametrize("changed", ["stream", "seed"])
def test_another_stream_or_seed_gives_other_requests(changed: str) -> None:
    """Points of one job, and jobs of different seeds, meet different prompts."""
    other = first(8, make_spec(), "b") if changed == "stream" else first(8, make_spec(seed=8), "a")
    prompts = [request.prompt_token_ids for request in first(8, make_spec(), "a")]
    assert prompts != [request.prompt_token_ids for request in other]


def test_ids_are_unique_and_tell_the_stream() -> None:
    """No two requests of a stream share an id, and the id begins with the stream's name."""
    ids = [request.request_id for request in first(50, make_spec(), "point/")]
    assert len(set(ids)) == 50
    assert all(one.startswith("point/") for one in ids)


@pytest.mark.parametrize("missing", [0, 1, 100])
def test_a_prompt_longer_than_the_text_is_refused(missing: int) -> None:
    """A range that the text cannot fill is refused at the call, before any request was asked for."""
    spec = make_spec(prompt_tokens=(8, len(TEXT) + missing))
    with pytest.raises(InvalidRequest, match=rf"workload.prompt_tokens is {len(TEXT) + missing}: give fewer than 500"):
        requests(spec, TEXT)


def test_the_longest_prompt_that_fits_is_served() -> None:
    """A prompt may be all of the text but one token."""
    spec = make_spec(prompt_tokens=(len(TEXT) - 1, len(TEXT) - 1))
    assert TEXT[:-1] == first(1, spec)[0].prompt_token_ids


def test_the_context_holds_the_longest_request() -> None:
    """The context asked of an engine is the longest prompt with the longest output."""
    assert max_context(make_spec()) == 16 + 6


def test_prompts_are_prose() -> None:
    """The text is long, English and without control characters, so that prompts differ and look like language."""
    text = corpus_text()
    assert len(text) > 100_000
    assert " the " in text
    assert all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.parametrize(
    "changes",
    [{"prompt_tokens": (8, 17)}, {"output_tokens": (3, 6)}, {"concurrency": 4}, {"seed": 8}],
    ids=lambda changes: next(iter(changes)),
)
def test_the_fingerprint_changes_with_every_field(changes: dict[str, Any]) -> None:
    """Two workloads that differ in any field have different fingerprints."""
    assert workload_hash(make_spec()) != workload_hash(make_spec(**changes))


def test_the_fingerprint_stays_and_knows_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal workloads have equal fingerprints as long as the text is the same, and only as long."""
    before = workload_hash(make_spec())
    assert before == workload_hash(make_spec())
    monkeypatch.setattr("tuner.workload.corpus_text", lambda: "another text")
    assert before != workload_hash(make_spec())
