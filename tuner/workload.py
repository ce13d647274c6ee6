"""Seeded requests: lengths drawn from the workload's ranges or taken from its trace, prompts, and when they arrive.

For engines that compute, prompts are consecutive tokens of a real text, each at a place of its own, so that no two
requests share a prefix and no weight ever meets a row of zeros (input values change a chip's power: Bhalachandra et
al., arXiv 2212.08805). An engine that is simulated only counts tokens; its prompts are zeros, and every point of a job
meets the same lengths and arrivals, so that points differ by their knobs alone. Knows nothing of how requests are
served.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import resources
from itertools import count

from engine.load import ClosedLoad, Load, OpenLoad, TimedRequest
from engine.request import Request
from probes.simulated.clock import TICKS_PER_S
from tuner.errors import InvalidRequest, TraceChanged
from tuner.request import WorkloadSpec
from tuner.request_trace import Trace, load_trace

#: Requests in flight under `offline`, as a multiple of those that run at once: each that ends finds the next waiting.
OFFLINE_FACTOR = 2
#: Tokens of prompts that are kept to be used again: 32 MiB.
_MAX_KEPT_TOKENS = 4 * 2**20


def corpus_text() -> str:
    """Return the public-domain prose that prompts are cut from (tuner/corpus/README.md)."""
    return resources.files("tuner").joinpath("corpus", "prose.txt").read_text(encoding="utf-8")


def requests(spec: WorkloadSpec, corpus_ids: Sequence[int], *, stream: str = "") -> Iterator[Request]:
    """Return the workload's requests with prompts of text, without end.

    The same spec and stream give the same requests for ever; another `stream` gives others of the same kind. Outputs
    are forced to the drawn length, so that every point does the same work. Raises InvalidRequest when a prompt would
    be longer than the text.
    """
    longest = spec.prompt_tokens[1]
    if longest >= len(corpus_ids):
        raise InvalidRequest(
            "workload.prompt_tokens",
            longest,
            f"give fewer than {len(corpus_ids)}: so many tokens has the prompt text with this model's tokenizer",
        )
    return _drawn(spec, corpus_ids, stream)


def num_offered(spec: WorkloadSpec, capacity: int) -> int | None:
    """Return how many requests are kept in flight at an engine that runs `capacity` at once; None of an open load."""
    if spec.is_open:
        return None
    return OFFLINE_FACTOR * capacity if spec.scenario == "offline" else spec.concurrency or capacity


def simulated_load(spec: WorkloadSpec, *, capacity: int, stream: str = "") -> Load:
    """Return the workload as an engine that only counts tokens takes it; the same for the same spec.

    `stream` names the requests and changes nothing else. Raises InvalidRequest for a trace that cannot be read. A
    trace that is over begins anew.
    """
    offered = num_offered(spec, capacity)
    if offered is not None:
        return ClosedLoad(requests=_counted(_lengths(spec), stream), concurrency=offered)
    if spec.trace_file is not None:
        return OpenLoad(requests=_replayed(trace_of(spec), spec.time_scale, stream))
    assert spec.rate_per_s is not None  # the spec saw to it
    return OpenLoad(requests=_poisson(spec, spec.rate_per_s, stream))


def trace_of(spec: WorkloadSpec) -> Trace:
    """Return the trace of a workload that has one; as noted at submission, it is read once in a process.

    Raises InvalidRequest when it cannot be read, and TraceChanged when it is no longer what was submitted.
    """
    assert spec.trace_file is not None
    if spec.trace_sha256 is None:
        return load_trace(spec.trace_file)
    return _as_submitted(spec.trace_file, spec.trace_sha256)


@lru_cache(maxsize=4)
def _as_submitted(path: str, sha256: str) -> Trace:
    """Read a trace and hold it to its hash; what a running job has read no longer hangs on the file."""
    trace = load_trace(path)
    if trace.sha256 != sha256:
        raise TraceChanged(path, submitted=sha256, found=trace.sha256)
    return trace


def max_context(spec: WorkloadSpec) -> int:
    """Longest prompt plus output that the workload can ask for. Raises InvalidRequest for a bad trace."""
    if spec.trace_file is not None:
        return trace_of(spec).longest_tokens
    return spec.prompt_tokens[1] + spec.output_tokens[1]


def workload_hash(spec: WorkloadSpec) -> str:
    """Fingerprint of everything that decides the requests: the spec, the text, and the content of the trace."""
    text = hashlib.sha256(corpus_text().encode()).hexdigest()
    trace = "" if spec.trace_file is None else trace_of(spec).sha256
    return hashlib.sha256(f"{spec!r}/{text}/{trace}".encode()).hexdigest()


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
    draw = random.Random(f"{spec.seed}/lengths").random
    (shortest_in, longest_in), (shortest_out, longest_out) = spec.prompt_tokens, spec.output_tokens
    choices_in, choices_out = longest_in - shortest_in + 1, longest_out - shortest_out + 1
    while True:
        yield shortest_in + int(draw() * choices_in), shortest_out + int(draw() * choices_out)


def _counted(lengths: Iterator[tuple[int, int]], stream: str) -> Iterator[Request]:
    prompts = _Prompts()
    for number, (num_in, num_out) in enumerate(lengths):
        yield Request(
            request_id=f"{stream}{number}",
            prompt_token_ids=prompts[num_in],
            max_tokens=num_out,
            ignore_eos=True,
        )


def _poisson(spec: WorkloadSpec, rate_per_s: float, stream: str) -> Iterator[TimedRequest]:
    gap_s = random.Random(f"{spec.seed}/arrivals").expovariate
    offset_s = 0.0
    for request in _counted(_lengths(spec), stream):
        offset_s += gap_s(rate_per_s)
        yield TimedRequest(offset_s=_exact(offset_s), request=request)


def _replayed(trace: Trace, time_scale: float, stream: str) -> Iterator[TimedRequest]:
    lengths = (pair for _ in count() for pair in zip(trace.prompt_tokens, trace.output_tokens, strict=True))
    offsets_s = (turn * trace.period_s + offset_s for turn in count() for offset_s in trace.offsets_s)
    for offset_s, request in zip(offsets_s, _counted(lengths, stream), strict=True):
        yield TimedRequest(offset_s=_exact(time_scale * offset_s), request=request)


def _exact(offset_s: float) -> float:
    """Return the time rounded to a step of simulated clocks, so that it is as long after any start."""
    return round(offset_s * TICKS_PER_S) / TICKS_PER_S
