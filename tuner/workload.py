"""Seeded requests: lengths drawn from the workload's ranges or taken from its file, prompts, and when they arrive.

For engines that compute, prompts are consecutive tokens of a real text, each at a place of its own, so that no two
requests share a prefix and no weight ever meets a row of zeros (input values change a chip's power: Bhalachandra et
al., arXiv 2212.08805); a file's own text and shared prefixes are kept (docs/workloads.md). An engine that is simulated
only counts tokens; its prompts are zeros, and every point of a job meets the same lengths and arrivals, so that points
differ by their knobs alone. Knows nothing of how requests are served.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from itertools import count

from engine.load import ClosedLoad, Load, OpenLoad, TimedRequest
from engine.request import Request
from tuner.arrivals import random_times_s, replayed_times_s
from tuner.errors import InvalidRequest, TraceChanged
from tuner.prompts import EncodedPrompts, encode_texts, encoded_prompts, salted, text_prompts, trace_prompts
from tuner.request import LATER_FIELDS, WorkloadSpec
from tuner.request_trace import load_trace
from tuner.traces import Trace, clipped

#: Requests in flight under `offline`, as a multiple of those that run at once: each that ends finds the next waiting.
OFFLINE_FACTOR = 2
#: Tokens of prompts that are kept to be used again: 32 MiB.
_MAX_KEPT_TOKENS = 4 * 2**20


def corpus_text() -> str:
    """Return the public-domain prose that prompts are cut from (tuner/corpus/README.md)."""
    return resources.files("tuner").joinpath("corpus", "prose.txt").read_text(encoding="utf-8")


def requests(spec: WorkloadSpec, corpus_ids: Sequence[int], *, stream: str = "") -> Iterator[Request]:
    """Return requests of the workload's lengths with prompts of text, without end.

    The same spec and stream give the same requests for ever; another `stream` gives others of the same kind. Outputs
    are forced to the drawn length, so that every point does the same work. A file's requests are left out. Raises
    InvalidRequest when a prompt would be longer than the text.
    """
    _require_text(spec, corpus_ids)
    return _drawn(spec, corpus_ids, stream)


def num_offered(spec: WorkloadSpec, capacity: int) -> int | None:
    """Return how many requests are kept in flight at an engine that runs `capacity` at once; None of an open load."""
    if spec.is_open:
        return None
    return OFFLINE_FACTOR * capacity if spec.scenario == "offline" else spec.concurrency or capacity


def simulated_load(spec: WorkloadSpec, *, capacity: int, stream: str = "") -> Load:
    """Return the workload as an engine that only counts tokens takes it; the same for the same spec.

    `stream` names the requests and changes nothing else. Raises InvalidRequest for a trace that cannot be read. A
    trace that is over begins anew, unless the workload does not repeat it.
    """
    return _load(spec, _counted(_lengths(spec), stream), capacity)


def load_for(
    spec: WorkloadSpec,
    corpus_ids: Sequence[int],
    *,
    capacity: int,
    stream: str = "",
    salt: str = "",
    prompts: EncodedPrompts | None = None,
) -> Load:
    """Return the workload as an engine that computes takes it, with prompts of real text; for every scenario.

    Lengths and arrivals are the same for every stream where requests arrive by themselves, so that points differ by
    their knobs alone; the prompts' text is each stream's own. A `salt` makes that text this run's own, so that nothing
    that a server kept of another one fits: to be another for every launch and trial. `prompts` are what
    `encoded_texts` made of a file with text; without such a file it is None. Raises InvalidRequest for a trace that
    cannot be read, and for prompts longer than the text that they are cut from.
    """
    if spec.trace_file is None and not spec.is_open:
        made = requests(spec, corpus_ids, stream=stream)
        if salt:
            made = (
                replace(one, prompt_token_ids=salted(one.prompt_token_ids, corpus_ids, f"{salt}/{one.request_id}"))
                for one in made
            )
        return _load(spec, made, capacity)
    made = _with_text(spec, corpus_ids, stream=stream, salt=salt, prompts=prompts)
    return _load(spec, made, capacity)


def encoded_texts(spec: WorkloadSpec, encode: Callable[[str], Sequence[int]]) -> EncodedPrompts | None:
    """Return the text of a workload's file as a model's tokens; None where it has no text.

    To be asked once for each tokenizer, before a load runs: an engine may not be able to encode while it serves.
    Raises InvalidRequest for a file that cannot be read.
    """
    if spec.trace_file is None:
        return None
    trace = trace_of(spec)
    return encode_texts(trace, spec, encode) if trace.texts else None


def trace_of(spec: WorkloadSpec) -> Trace:
    """Return the requests of a workload that has a file, clipped as it asks; noted at submission, it is read once.

    Raises InvalidRequest when it cannot be read or has no times to be replayed, and TraceChanged when it is no longer
    what was submitted.
    """
    assert spec.trace_file is not None
    read = (
        load_trace(spec.trace_file) if spec.trace_sha256 is None else _as_submitted(spec.trace_file, spec.trace_sha256)
    )
    if spec.scenario == "trace" and not read.has_times:
        remedy = f"its form is {read.form}, without times; choose the scenario closed, offline, server or interactive"
        raise InvalidRequest("workload.trace_file", spec.trace_file, remedy)
    return clipped(read, spec.clip_prompt_tokens, spec.clip_output_tokens)


@lru_cache(maxsize=4)
def _as_submitted(path: str, sha256: str) -> Trace:
    """Read a trace and hold it to its hash; what a running job has read no longer hangs on the file."""
    trace = load_trace(path)
    if trace.sha256 != sha256:
        raise TraceChanged(path, submitted=sha256, found=trace.sha256)
    return trace


def max_context(spec: WorkloadSpec) -> int:
    """Longest prompt plus output that the workload can ask for; of text, a byte counts as a token.

    Raises InvalidRequest for a bad trace.
    """
    if spec.trace_file is None:
        return spec.prompt_tokens[1] + spec.output_tokens[1]
    trace = trace_of(spec)
    untold = trace.longest_untold_tokens
    return max(trace.longest_tokens, untold + _drawn_output(spec)[1] if untold else 0)


def mean_lengths(spec: WorkloadSpec) -> tuple[float, float]:
    """Return the mean tokens of prompts and outputs; of text estimated. Raises InvalidRequest for a bad trace."""
    drawn = sum(_drawn_output(spec)) / 2
    if spec.trace_file is None:
        return sum(spec.prompt_tokens) / 2, drawn
    trace = trace_of(spec)
    num_untold = trace.output_tokens.count(0)
    outputs = sum(trace.output_tokens) + num_untold * drawn
    return sum(trace.prompt_tokens) / trace.num_requests, outputs / trace.num_requests


def mean_rate_per_s(spec: WorkloadSpec) -> float | None:
    """Return how many requests arrive a second on average; None of a load that keeps a number in flight.

    Of a ramp it is the rate at its end. Raises InvalidRequest for a bad trace.
    """
    if spec.scenario == "trace":
        trace = trace_of(spec)
        return trace.num_requests / (trace.period_s * spec.time_scale)
    return spec.rate_per_s if spec.ramp_to_per_s is None else spec.ramp_to_per_s


def workload_hash(spec: WorkloadSpec) -> str:
    """Fingerprint of everything that decides the requests: the spec, the text, and the content of the trace."""
    text = hashlib.sha256(corpus_text().encode()).hexdigest()
    trace = "" if spec.trace_file is None else trace_of(spec).sha256
    later = {name: value for name, value in spec.described().items() if name in LATER_FIELDS}
    return hashlib.sha256(f"{spec!r}/{text}/{trace}{later or ''}".encode()).hexdigest()


def _load(spec: WorkloadSpec, made: Iterator[Request], capacity: int) -> Load:
    """Return requests with what decides when they come."""
    offered = num_offered(spec, capacity)
    if offered is not None:
        return ClosedLoad(requests=made, concurrency=offered)
    if spec.scenario == "trace":
        times_s = replayed_times_s(trace_of(spec), time_scale=spec.time_scale, repeat=spec.repeat)
    else:
        times_s = random_times_s(spec)
    return OpenLoad(requests=map(_timed, times_s, made))


def _timed(offset_s: float, request: Request) -> TimedRequest:
    return TimedRequest(offset_s=offset_s, request=request)


def _require_text(spec: WorkloadSpec, corpus_ids: Sequence[int]) -> None:
    longest = spec.prompt_tokens[1]
    if longest >= len(corpus_ids):
        raise InvalidRequest(
            "workload.prompt_tokens",
            longest,
            f"give fewer than {len(corpus_ids)}: so many tokens has the prompt text with this model's tokenizer",
        )


def _drawn(spec: WorkloadSpec, corpus_ids: Sequence[int], stream: str) -> Iterator[Request]:
    draw = random.Random(f"{spec.seed}/{stream}")
    number = 0
    while True:
        length = draw.randint(*spec.prompt_tokens)
        start = draw.randrange(len(corpus_ids) - length)
        yield Request(
            request_id=f"{stream}{number}",
            prompt_token_ids=tuple(corpus_ids[start : start + length]),
            max_tokens=draw.randint(*spec.output_tokens),
            ignore_eos=True,
        )
        number += 1


class _Prompts(dict[int, tuple[int, ...]]):
    """Prompts by their length, kept while they are small: a simulated second asks for hundreds."""

    def __init__(self) -> None:
        super().__init__()
        self._num_tokens = 0

    def __missing__(self, length: int) -> tuple[int, ...]:
        self._num_tokens += length
        if self._num_tokens > _MAX_KEPT_TOKENS:
            self.clear()
            self._num_tokens = length
        self[length] = prompt = (0,) * length
        return prompt


def _lengths(spec: WorkloadSpec) -> Iterator[tuple[int, int]]:
    """Yield prompt and output tokens; not by randint, which takes three times as long."""
    if spec.trace_file is not None:
        trace = trace_of(spec)  # before the first request is asked for: a bad file is told at once
        return _file_lengths(spec, trace.prompt_tokens, trace.output_tokens)
    return _drawn_lengths(spec, spec.prompt_tokens, spec.output_tokens)


def _drawn_lengths(spec: WorkloadSpec, prompts: tuple[int, int], outputs: tuple[int, int]) -> Iterator[tuple[int, int]]:
    draw = random.Random(f"{spec.seed}/lengths").random
    (shortest_in, longest_in), (shortest_out, longest_out) = prompts, outputs
    choices_in, choices_out = longest_in - shortest_in + 1, longest_out - shortest_out + 1
    while True:
        yield shortest_in + int(draw() * choices_in), shortest_out + int(draw() * choices_out)


def _file_lengths(spec: WorkloadSpec, prompts: Sequence[int], outputs: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the lengths of a file; outputs that it does not tell are drawn as those of other workloads."""
    drawn = _drawn_lengths(spec, (1, 1), _drawn_output(spec))
    for _ in count() if spec.repeat else range(1):
        for prompt, output in zip(prompts, outputs, strict=True):
            yield prompt, output or next(drawn)[1]


def _drawn_output(spec: WorkloadSpec) -> tuple[int, int]:
    """Return between what an output is drawn: clipped as those that a file tells."""
    shortest, longest = spec.output_tokens
    most = spec.clip_output_tokens or longest
    return min(shortest, most), min(longest, most)


def _with_text(
    spec: WorkloadSpec, corpus_ids: Sequence[int], *, stream: str, salt: str, prompts: EncodedPrompts | None
) -> Iterator[Request]:
    """Return requests with prompts of real text, in the order of their arrival."""
    if spec.trace_file is None:
        _require_text(spec, corpus_ids)
        lengths, again = _lengths(spec), _lengths(spec)
        made = text_prompts((prompt for prompt, _ in again), corpus_ids, stream=f"{spec.seed}/{stream}", salt=salt)
        return _requests(made, (output for _, output in lengths), stream)
    trace = trace_of(spec)
    if trace.texts:
        if prompts is None:
            remedy = "its prompts are text, which this engine has not encoded; encode them first (encoded_texts)"
            raise InvalidRequest("workload.trace_file", spec.trace_file, remedy)
        of_file = [len(prompt) for prompt in prompts.prompts]
        outputs = (output for _, output in _file_lengths(spec, of_file, prompts.output_tokens))
        made = encoded_prompts(prompts, corpus_ids, stream=stream, salt=salt, repeat=spec.repeat)
        return _requests(made, outputs, stream)
    made = trace_prompts(trace, corpus_ids, stream=f"{spec.seed}/{stream}", salt=salt, repeat=spec.repeat)
    return _requests(made, (output for _, output in _lengths(spec)), stream)


def _requests(prompts: Iterator[tuple[int, ...]], outputs: Iterator[int], stream: str) -> Iterator[Request]:
    for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        yield Request(request_id=f"{stream}{number}", prompt_token_ids=prompt, max_tokens=output, ignore_eos=True)


def _counted(lengths: Iterator[tuple[int, int]], stream: str) -> Iterator[Request]:
    prompts = _Prompts()
    for number, (num_in, num_out) in enumerate(lengths):
        yield Request(
            request_id=f"{stream}{number}",
            prompt_token_ids=prompts[num_in],
            max_tokens=num_out,
            ignore_eos=True,
        )
