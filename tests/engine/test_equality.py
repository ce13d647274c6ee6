"""What a request is answered does not depend on how it is served, in any precision and KV format.

Chunked = unchunked, batched = alone, preempted = not, paged = not: the same rows go through the same layers, each
quantised by itself, so what differs is the order in which a product's terms are added. In fp32 that is 1e-6 of the
logits. Where hidden states, keys and values are in 16 bit, or inputs are rounded, a last bit may tip the next rounding
over, so the tolerance is a few roundings of what a row is rounded to; a wrong mask or slot is off by more than the
logits are long. The same step twice is equal bit by bit everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence as Listing

import pytest
import torch

from engine.embedded.loop import EmbeddedEngine
from engine.embedded.precision import KV_PRECISIONS, MODES
from engine.embedded.scheduler import Batch
from engine.embedded.sequence import Sequence
from engine.request import Request
from tests.engine.conftest import OpenTiny
from tests.engine.logits import all_logits
from tests.engine.requests import make_request, serve

TEXT = tuple(b"a text of some length, so that it takes several chunks and several blocks of keys and values.")
PROMPTS = [TEXT[:5], TEXT[3:20], TEXT[7:71], TEXT[:65], TEXT]
#: Norm of a row's difference over the norm of the row.
TOLERANCES = {
    "fp32": 1e-5, "tf32": 2e-3, "bf16": 0.03, "fp16": 4e-3, "fp8": 0.2, "int8": 0.01, "int8_dynamic": 0.03,
    "int4_g32": 0.01, "int4": 0.01, "int4_g128": 0.01, "nvfp4": 0.6, "mxfp4": 0.6,
}  # fmt: skip
#: The same in fp32 with keys and values in another format.
KV_TOLERANCES = {"bf16": 5e-3, "fp8": 0.06, "int8": 5e-3}
#: (precision, KV format, tolerance) of every mode.
CASES = [
    *((name, "auto", TOLERANCES[name]) for name in MODES),
    *(("fp32", name, KV_TOLERANCES[name]) for name in KV_PRECISIONS if name != "auto"),
]
Answer = tuple[tuple[int, ...], torch.Tensor]
every_mode = pytest.mark.parametrize(("precision", "kv_precision", "tolerance"), CASES)


def make_requests(prompts: Listing[tuple[int, ...]] = PROMPTS, max_tokens: int = 10) -> list[Request]:
    return [make_request(prompt, request_id=f"r{i}", max_tokens=max_tokens) for i, prompt in enumerate(prompts)]


def worst_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest relative difference of a row of logits."""
    return float(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


def answers_of(opened: EmbeddedEngine, requests: Listing[Request]) -> tuple[dict[str, Answer], int]:
    """Serve requests at once; return each one's tokens with the logits they came from, and the preemptions."""
    rows: dict[str, list[torch.Tensor]] = {request.request_id: [] for request in requests}
    run = opened.runner.run

    def run_and_keep(batch: Batch[Sequence]) -> torch.Tensor:
        sampled = [piece.sequence.request.request_id for piece in batch.slices if piece.is_sampled]
        logits = run(batch)
        for request_id, row in zip(sampled, logits, strict=True):
            rows[request_id].append(row.clone())
        return logits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened.runner, "run", run_and_keep)
        records = serve(opened, requests)
    told = {record.request_id: (record.token_ids, torch.stack(rows[record.request_id])) for record in records}
    return told, sum(record.num_preemptions for record in records)


def worst_of(answers: dict[str, Answer], expected: dict[str, Answer]) -> float:
    """Return the largest relative difference of the logits that follow the same tokens."""
    worst = 0.0
    for request_id, (tokens, logits) in answers.items():
        other_tokens, other_logits = expected[request_id]
        differing = [i for i, (one, other) in enumerate(zip(tokens, other_tokens, strict=True)) if one != other]
        num_same = differing[0] + 1 if differing else len(tokens)
        worst = max(worst, worst_difference(logits[:num_same], other_logits[:num_same]))
    return worst


@every_mode
def test_chunked_is_unchunked(open_tiny: OpenTiny, precision: str, kv_precision: str, tolerance: float) -> None:
    """Logits are the same in chunks of 1, 7, 16 and 64 tokens, read from the cache, as in one piece beside it."""
    opened = open_tiny(precision=precision, kv_precision=kv_precision, can_emulate=True)
    whole = all_logits(opened, TEXT)
    for chunk in (1, 7, 16, 64):
        assert worst_difference(all_logits(opened, TEXT, chunk=chunk), whole) < tolerance, chunk


@every_mode
def test_batched_is_alone(open_tiny: OpenTiny, precision: str, kv_precision: str, tolerance: float) -> None:
    """Each request's logits are those that it has alone, whoever is served beside it."""
    opened = open_tiny(precision=precision, kv_precision=kv_precision, can_emulate=True, max_batch=5)
    alone = {name: answer for one in make_requests() for name, answer in answers_of(opened, [one])[0].items()}
    together, _ = answers_of(opened, make_requests())
    assert worst_of(together, alone) < tolerance


@every_mode
def test_preempted_is_not(open_tiny: OpenTiny, precision: str, kv_precision: str, tolerance: float) -> None:
    """Requests that gave up their blocks and were computed again have the logits of those that never had to."""
    settings = {"precision": precision, "kv_precision": kv_precision, "can_emulate": True}
    growing = make_requests(PROMPTS[:3], max_tokens=32)
    expected, num_calm = answers_of(open_tiny(**settings), growing)
    short, num_preemptions = answers_of(open_tiny(**settings, num_kv_blocks=8), growing)
    assert num_calm == 0
    assert num_preemptions > 0
    assert worst_of(short, expected) < tolerance


@every_mode
def test_the_same_twice_is_equal(open_tiny: OpenTiny, precision: str, kv_precision: str, tolerance: float) -> None:
    """The same steps of the same precision give the same logits, bit by bit."""
    opened = open_tiny(precision=precision, kv_precision=kv_precision, can_emulate=True)
    assert torch.equal(all_logits(opened, TEXT, chunk=16), all_logits(opened, TEXT, chunk=16))
