"""Workloads: the same requests for the same seed, prompts that are real text, a fingerprint of all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.load import ClosedLoad, OpenLoad, TimedRequest
from engine.request import Request
from tuner.errors import InvalidRequest, TraceChanged
from tuner.request import WorkloadSpec
from tuner.workload import (
    OFFLINE_FACTOR,
    corpus_text,
    encoded_texts,
    load_for,
    max_context,
    mean_lengths,
    mean_rate_per_s,
    num_offered,
    requests,
    simulated_load,
    trace_of,
    workload_hash,
)

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
    [
        {"prompt_tokens": (8, 17)},
        {"output_tokens": (3, 6)},
        {"concurrency": 4},
        {"scenario": "offline"},
        {"scenario": "server", "rate_per_s": 2.0},
        {"scenario": "server", "rate_per_s": 3.0},
        {"seed": 8},
        {"scenario": "server", "rate_per_s": 2.0, "burstiness": 0.5},
        {"scenario": "server", "rate_per_s": 2.0, "ramp_to_per_s": 3.0, "ramp_s": 5.0},
    ],
    ids=str,
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


# Loads of an engine that only counts tokens

SERVER = WorkloadSpec(scenario="server", rate_per_s=20.0, prompt_tokens=(8, 16), output_tokens=(2, 6), seed=7)
TRACE = """{"timestamp": 0, "input_length": 100, "output_length": 5}
{"timestamp": 1000, "input_length": 300, "output_length": 7}
{"timestamp": 4000, "input_length": 200, "output_length": 500}
"""


def arrivals(spec: WorkloadSpec, **options: Any) -> Iterator[TimedRequest]:
    load = simulated_load(spec, capacity=4, **options)
    assert isinstance(load, OpenLoad)
    return load.requests


def make_trace(folder: Path, content: str = TRACE, **changes: Any) -> WorkloadSpec:
    (folder / "trace.jsonl").write_text(content)
    return WorkloadSpec(scenario="trace", trace_file=str(folder / "trace.jsonl"), **changes)


@pytest.mark.parametrize(
    ("changes", "offered"),
    [({}, 64), ({"concurrency": 3}, 3), ({"scenario": "offline"}, OFFLINE_FACTOR * 64)],
)
def test_a_closed_load_keeps_its_requests_in_flight(changes: dict[str, Any], offered: int) -> None:
    """Left open, as many are in flight as run at once; offline always more, so that the next one is there."""
    spec = make_spec(**changes)
    load = simulated_load(spec, capacity=64)
    assert isinstance(load, ClosedLoad)
    assert (load.concurrency, num_offered(spec, 64)) == (offered, offered)


def test_arrivals_keep_nothing_in_flight() -> None:
    """How many requests of an open load are in flight is not the load's to say."""
    assert num_offered(SERVER, 64) is None


@settings(max_examples=50, deadline=None)
@given(spec=specs, stream=st.text(max_size=4))
def test_counted_requests_have_the_asked_lengths(spec: WorkloadSpec, stream: str) -> None:
    """Both lengths lie in their ranges, the same for every stream, and the ids tell the stream."""
    load = simulated_load(spec, capacity=4, stream=stream)
    again = simulated_load(spec, capacity=4)
    assert isinstance(load, ClosedLoad)
    assert isinstance(again, ClosedLoad)
    for number, (one, other) in enumerate(zip(islice(load.requests, 20), again.requests, strict=False)):
        assert spec.prompt_tokens[0] <= len(one.prompt_token_ids) <= spec.prompt_tokens[1]
        assert spec.output_tokens[0] <= one.max_tokens <= spec.output_tokens[1]
        assert (one.prompt_token_ids, one.max_tokens) == (other.prompt_token_ids, other.max_tokens)
        assert f"{stream}{number}" == one.request_id


def test_counted_requests_come_in_every_length() -> None:
    """Over many requests every length of both ranges comes up, the ends included."""
    drawn = [timed.request for timed in islice(arrivals(SERVER), 500)]
    assert set(range(8, 17)) == {len(request.prompt_token_ids) for request in drawn}
    assert set(range(2, 7)) == {request.max_tokens for request in drawn}


@pytest.mark.parametrize("scenario", ["server", "interactive"])
def test_arrivals_are_a_poisson_process(scenario: str) -> None:
    """Gaps have the mean of the rate, and a standard deviation as large as that."""
    offsets_s = [timed.offset_s for timed in islice(arrivals(replace(SERVER, scenario=scenario)), 20_000)]
    gaps_s = [later - earlier for earlier, later in pairwise(offsets_s)]
    mean_s = sum(gaps_s) / len(gaps_s)
    deviation_s = (sum((gap_s - mean_s) ** 2 for gap_s in gaps_s) / len(gaps_s)) ** 0.5
    assert pytest.approx(1 / 20, rel=0.03) == mean_s
    assert pytest.approx(1 / 20, rel=0.03) == deviation_s


def test_every_point_meets_the_same_arrivals() -> None:
    """Another stream changes the names alone; another seed changes the times."""
    times = [timed.offset_s for timed in islice(arrivals(SERVER), 50)]
    assert times == [timed.offset_s for timed in islice(arrivals(SERVER, stream="point/"), 50)]
    assert times != [timed.offset_s for timed in islice(arrivals(replace(SERVER, seed=8)), 50)]


def test_arrivals_do_not_hang_on_the_lengths() -> None:
    """The same seed gives the same times whatever the ranges are, so that loads can be compared."""
    longer = replace(SERVER, prompt_tokens=(100, 900))
    assert [one.offset_s for one in islice(arrivals(SERVER), 50)] == [
        one.offset_s for one in islice(arrivals(longer), 50)
    ]


def test_a_trace_is_replayed_and_begins_anew(tmp_path: Path) -> None:
    """Requests come as recorded; after the last and one mean gap the first comes again."""
    drawn = list(islice(arrivals(make_trace(tmp_path)), 5))
    assert [timed.offset_s for timed in drawn] == [0.0, 1.0, 4.0, 6.0, 7.0]
    lengths = [(len(timed.request.prompt_token_ids), timed.request.max_tokens) for timed in drawn]
    assert lengths == [(100, 5), (300, 7), (200, 500), (100, 5), (300, 7)]
    assert len({timed.request.request_id for timed in drawn}) == 5


def test_a_trace_can_be_made_faster(tmp_path: Path) -> None:
    """A time scale of a half doubles the load."""
    drawn = islice(arrivals(make_trace(tmp_path, time_scale=0.5)), 4)
    assert [timed.offset_s for timed in drawn] == [0.0, 0.5, 2.0, 3.0]


def test_the_context_holds_the_longest_request_of_a_trace(tmp_path: Path) -> None:
    """The context is that of the row with most tokens in all, not of the longest prompt."""
    assert max_context(make_trace(tmp_path)) == 200 + 500


def test_the_fingerprint_knows_the_trace(tmp_path: Path) -> None:
    """The same path with other content is another workload."""
    before = workload_hash(make_trace(tmp_path))
    assert before == workload_hash(make_trace(tmp_path))
    assert before != workload_hash(make_trace(tmp_path, TRACE.replace("500", "501")))


def test_long_prompts_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many lengths a workload has, what is kept of them stays small, and the requests are right."""
    monkeypatch.setattr("tuner.workload._MAX_KEPT_TOKENS", 100)
    spec = replace(SERVER, prompt_tokens=(1, 90))
    kept = [len(timed.request.prompt_token_ids) for timed in islice(arrivals(spec), 200)]
    monkeypatch.undo()
    assert kept == [len(timed.request.prompt_token_ids) for timed in islice(arrivals(spec), 200)]


def submitted(folder: Path) -> WorkloadSpec:
    """A trace as a job has it that noted its hash."""
    spec = make_trace(folder)
    return replace(spec, trace_sha256=trace_of(spec).sha256)


@pytest.mark.parametrize("use", [max_context, workload_hash, lambda spec: simulated_load(spec, capacity=1)])
def test_a_trace_that_changed_since_submission_is_refused(
    tmp_path: Path, use: Callable[[WorkloadSpec], object]
) -> None:
    """Whatever reads the trace first names the field, the file and both ways out."""
    spec = replace(submitted(tmp_path), trace_sha256="ab" * 32)
    with pytest.raises(
        TraceChanged, match=r"workload.trace_file is '.*': its content is not what was submitted"
    ) as error:
        use(spec)
    assert error.value.remedy.endswith("put the file back as it was, or submit a new job with it")


def test_a_trace_that_was_read_no_longer_hangs_on_its_file(tmp_path: Path) -> None:
    """Between trials the file may change or go: every point of the job meets the requests that were submitted."""
    spec = submitted(tmp_path)
    before = [one.offset_s for one in islice(arrivals(spec), 5)]
    assert spec.trace_file is not None
    make_trace(tmp_path, TRACE.replace("500", "501"))
    assert before == [one.offset_s for one in islice(arrivals(spec), 5)]
    Path(spec.trace_file).unlink()
    assert max_context(spec) == 200 + 500


def test_a_noted_hash_changes_no_fingerprint(tmp_path: Path) -> None:
    """It says what the content says: jobs of before it was noted are compared with those of after it."""
    assert workload_hash(make_trace(tmp_path)) == workload_hash(submitted(tmp_path))


@pytest.mark.parametrize("changes", [{"clip_prompt_tokens": 99}, {"clip_output_tokens": 9}, {"repeat": False}], ids=str)
def test_the_fingerprint_knows_what_is_made_of_a_trace(tmp_path: Path, changes: dict[str, Any]) -> None:
    """The same file clipped otherwise, or replayed once, is another workload."""
    assert workload_hash(make_trace(tmp_path)) != workload_hash(make_trace(tmp_path, **changes))


def test_a_trace_is_clipped_as_asked(tmp_path: Path) -> None:
    """Prompts and outputs are cut before they are served, the context is no longer than that, and it is told."""
    spec = make_trace(tmp_path, clip_prompt_tokens=150, clip_output_tokens=6)
    drawn = [timed.request for timed in islice(arrivals(spec), 3)]
    lengths = [(len(request.prompt_token_ids), request.max_tokens) for request in drawn]
    assert lengths == [(100, 5), (150, 6), (150, 6)]
    assert max_context(spec) == 150 + 6
    cut = trace_of(spec).clipping
    assert (cut.num_prompts, cut.prompt_tokens, cut.num_outputs, cut.output_tokens) == (2, 200, 2, 495)


def test_outputs_that_a_file_does_not_tell_are_drawn_and_clipped(tmp_path: Path) -> None:
    """Such outputs lie in the workload's range, cut as those that a file tells, and the context holds them."""
    spec = make_prompts(tmp_path, output_tokens=(2, 90), clip_output_tokens=8)
    load = simulated_load(spec, capacity=1)
    assert isinstance(load, ClosedLoad)
    outputs = [request.max_tokens for request in islice(load.requests, 300)]
    assert set(outputs[1::2]) == {7}
    assert set(outputs[::2]) == set(range(2, 9))
    assert mean_lengths(spec)[1] == (5 + 7) / 2
    assert max_context(spec) >= len(PROMPTS[0]) + 8


def test_the_mean_rate_is_that_of_the_arrivals(tmp_path: Path) -> None:
    """Of a trace it follows the time scale, of a ramp it is the last one, and a closed load has none."""
    assert mean_rate_per_s(make_spec()) is None
    assert mean_rate_per_s(replace(SERVER, ramp_to_per_s=5.0, ramp_s=9.0)) == 5.0
    assert mean_rate_per_s(make_trace(tmp_path, time_scale=0.5)) == pytest.approx(3 / (6.0 * 0.5))


def test_a_file_without_times_is_not_replayed(tmp_path: Path) -> None:
    """Prompts without times name the scenarios that take them."""
    spec = make_trace(tmp_path, '{"prompt": "Why?"}\n')
    with pytest.raises(InvalidRequest, match="its form is prompts, without times; choose the scenario closed"):
        trace_of(spec)


# Loads of an engine that computes

PROMPTS = ("Name three rivers.", "Why is copper used for pans?")


def make_prompts(folder: Path, **changes: Any) -> WorkloadSpec:
    path = folder / "prompts.jsonl"
    path.write_text(f'{{"prompt": "{PROMPTS[0]}"}}\n{{"prompt": "{PROMPTS[1]}", "output_tokens": 7}}\n')
    return WorkloadSpec(trace_file=str(path), **changes)


def encode(text: str) -> list[int]:
    return list(text.encode())


def served(spec: WorkloadSpec, number: int = 6, **options: Any) -> list[Request]:
    load = load_for(spec, TEXT, capacity=4, prompts=encoded_texts(spec, encode), **options)
    if isinstance(load, ClosedLoad):
        return list(islice(load.requests, number))
    assert isinstance(load, OpenLoad)
    return [timed.request for timed in islice(load.requests, number)]


@pytest.fixture(params=["closed", "server", "trace", "closed with a trace", "text"])
def computed(request: pytest.FixtureRequest, tmp_path: Path) -> WorkloadSpec:
    """A workload of each way in which prompts are made."""
    made: dict[str, Callable[[], WorkloadSpec]] = {
        "closed": make_spec,
        "server": lambda: SERVER,
        "trace": lambda: make_trace(tmp_path),
        "closed with a trace": lambda: replace(make_trace(tmp_path), scenario="closed"),
        "text": lambda: make_prompts(tmp_path),
    }
    return made[request.param]()


def test_a_salt_changes_no_length_and_every_beginning(computed: WorkloadSpec) -> None:
    """BUG-11: however prompts are made, two salts give equal lengths, and no prompt that begins as its other one."""
    plain, one, other = (served(computed, stream="p", salt=salt) for salt in ("", "launch 1", "launch 2"))
    for requested, mine, theirs in zip(plain, one, other, strict=True):
        assert len(requested.prompt_token_ids) == len(mine.prompt_token_ids) == len(theirs.prompt_token_ids)
        assert requested.max_tokens == mine.max_tokens == theirs.max_tokens
        begun = {request.prompt_token_ids[:8] for request in (requested, mine, theirs)}
        assert len(begun) == 3


def test_the_same_stream_and_salt_give_the_same_requests(computed: WorkloadSpec) -> None:
    """A point that is measured again under the same salt meets the same requests, to the token and the name."""
    options: dict[str, Any] = {"stream": "p", "salt": "launch"}
    assert served(computed, **options) == served(computed, **options)
    assert served(computed, **options) != served(computed, **options | {"stream": "q"})


@pytest.mark.parametrize("salt", ["", "launch"])
def test_points_of_an_open_load_meet_the_same_lengths_and_arrivals(salt: str) -> None:
    """Other streams have other prompts of the same lengths at the same times, as a counting engine has them."""
    one, other = (load_for(SERVER, TEXT, capacity=4, stream=stream, salt=salt) for stream in ("p", "q"))
    assert isinstance(one, OpenLoad)
    assert isinstance(other, OpenLoad)
    for mine, theirs, counted in islice(zip(one.requests, other.requests, arrivals(SERVER), strict=True), 40):
        assert mine.offset_s == theirs.offset_s == counted.offset_s
        lengths = {len(timed.request.prompt_token_ids) for timed in (mine, theirs, counted)}
        assert len(lengths) == 1
        assert mine.request.max_tokens == theirs.request.max_tokens == counted.request.max_tokens
        assert mine.request.prompt_token_ids != theirs.request.prompt_token_ids


def test_requests_of_one_run_share_no_beginning() -> None:
    """BUG-11: even prompts cut from one place of a short text begin otherwise when they are salted."""
    made = served(replace(SERVER, prompt_tokens=(400, 499)), 60, salt="launch")
    assert len({request.prompt_token_ids[:8] for request in made}) == 60


def test_text_must_be_encoded_first(tmp_path: Path) -> None:
    """A file's text without its tokens is refused before a load runs; a file without text needs none."""
    with pytest.raises(InvalidRequest, match="its prompts are text, which this engine has not encoded; encode them"):
        load_for(make_prompts(tmp_path), TEXT, capacity=1)
    assert encoded_texts(make_trace(tmp_path), encode) is None
    assert encoded_texts(make_spec(), encode) is None


def test_text_is_served_in_the_files_order_as_often_as_asked(tmp_path: Path) -> None:
    """BUG-53: rows come in order, and more than there are only where the file is repeated."""
    once = [bytes(request.prompt_token_ids).decode() for request in served(make_prompts(tmp_path, repeat=False))]
    again = [bytes(request.prompt_token_ids).decode() for request in served(make_prompts(tmp_path), 4)]
    assert tuple(once) == PROMPTS
    assert tuple(again) == PROMPTS * 2


@pytest.mark.parametrize("changes", [{}, {"scenario": "server", "rate_per_s": 2.0}])
def test_prompts_longer_than_the_text_are_refused_under_every_load(changes: dict[str, Any]) -> None:
    """Whatever decides when requests come, a range that the text cannot fill is refused at the call."""
    with pytest.raises(InvalidRequest, match=r"workload.prompt_tokens is 500: give fewer than 500"):
        load_for(make_spec(prompt_tokens=(8, 500), **changes), TEXT, capacity=1)
