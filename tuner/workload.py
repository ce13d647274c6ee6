"""Seeded requests: lengths drawn from the workload's ranges, prompts cut from real text.

Prompts are consecutive tokens of a text, at a place of their own, so that no two requests share a prefix and no
weight ever meets a row of zeros (input values change a chip's power: Bhalachandra et al., arXiv 2212.08805). Knows
nothing of how requests are served.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from importlib import resources

from engine.request import Request
from tuner.errors import InvalidRequest
from tuner.request import WorkloadSpec


def corpus_text() -> str:
    """Return the public-domain prose that prompts are cut from (tuner/corpus/README.md)."""
    return resources.files("tuner").joinpath("corpus", "prose.txt").read_text(encoding="utf-8")


def requests(spec: WorkloadSpec, corpus_ids: Sequence[int], *, stream: str = "") -> Iterator[Request]:
    """Return the workload's requests, without end.

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


def max_context(spec: WorkloadSpec) -> int:
    """Longest prompt plus output that the workload can ask for."""
    return spec.prompt_tokens[1] + spec.output_tokens[1]


def workload_hash(spec: WorkloadSpec) -> str:
    """Fingerprint of everything that decides the requests: the spec and the text."""
    text = hashlib.sha256(corpus_text().encode()).hexdigest()
    return hashlib.sha256(f"{spec!r}/{text}".encode()).hexdigest()
