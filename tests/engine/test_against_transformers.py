"""The real checkpoint against transformers: logits, greedy text, batches, chunks, preemption."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from engine.embedded.loop import EmbeddedEngine
from engine.embedded.models import ModelFiles
from engine.embedded.scheduler import Batch
from engine.embedded.sequence import Sequence
from engine.settings import EngineSettings
from tests.engine.reference import load_reference, reference_logits
from tests.engine.requests import make_request, serve, tokens_of
from tuner.workload import corpus_text

pytestmark = [pytest.mark.model, pytest.mark.slow]

#: 20 prompts of 1 to 2,000 tokens.
LENGTHS = (1, 2, 3, 5, 8, 13, 16, 17, 31, 32, 33, 64, 65, 100, 128, 129, 200, 333, 512, 2000)
NUM_OUTPUT = 8
#: The prompts up to 129 tokens, which fill a batch of 16.
NUM_SHORT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One prompt and its greedy continuation, served alone and unchunked, beside transformers."""

    #: Largest difference of logits, over the prompt's positions and those of the continuation.
    worst: float
    #: What our engine answered.
    token_ids: tuple[int, ...]
    #: What transformers finds likeliest after the prompt and after each token of ours but the last. By induction these
    #: are our tokens exactly when ours are transformers' own greedy continuation.
    likeliest: tuple[int, ...]


@pytest.fixture(scope="module", name="opened")
def _opened(smollm: ModelFiles) -> EmbeddedEngine:
    """Our engine with room for everything."""
    return open_smollm(smollm, num_kv_blocks=160)


def open_smollm(smollm: ModelFiles, **settings: Any) -> EmbeddedEngine:
    chosen: dict[str, Any] = {"max_batch": 16, "prefill_chunk": 4096, "max_context": 2048}
    return EmbeddedEngine(EngineSettings(model="smollm2-135m", **chosen | settings), smollm.folder)


@pytest.fixture(scope="module", name="prompts")
def _prompts(opened: EmbeddedEngine) -> list[tuple[int, ...]]:
    """Stretches of real text, each from a place of its own."""
    token_ids = opened.encode(corpus_text())
    return [token_ids[997 * i : 997 * i + length] for i, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module", name="compared")
def _compared(smollm: ModelFiles, opened: EmbeddedEngine, prompts: list[tuple[int, ...]]) -> list[Comparison]:
    """Each prompt served alone; both models compute each position once, for logits and tokens alike."""
    reference = load_reference(smollm.folder)
    return [compared_with(reference, opened, prompt) for prompt in prompts]


def compared_with(reference: Any, opened: EmbeddedEngine, prompt: tuple[int, ...]) -> Comparison:
    token_ids, logits = served_with_logits(opened, prompt)
    expected = reference_logits(reference, prompt + token_ids[:-1])
    return Comparison(
        worst=float((logits - expected).abs_().max()),
        token_ids=token_ids,
        likeliest=tuple(expected[len(prompt) - 1 :].argmax(dim=-1).tolist()),
    )


def served_with_logits(opened: EmbeddedEngine, prompt: tuple[int, ...]) -> tuple[tuple[int, ...], torch.Tensor]:
    """Return a prompt's greedy continuation and the logits (prompt and continuation but its last token, vocab)."""
    seen: list[torch.Tensor] = []
    run = opened.runner.run

    def run_and_keep(batch: Batch[Sequence]) -> torch.Tensor:
        seen.append(run(batch, all_rows=True))
        return seen[-1][-1:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened.runner, "run", run_and_keep)
        record = serve(opened, [make_request(prompt, max_tokens=NUM_OUTPUT)])[0]
    return record.token_ids, torch.cat(seen)


def test_logits_equal_transformers(compared: list[Comparison]) -> None:
    """fp32 logits differ from transformers' by at most 1e-3 on prompts of 1 to 2,000 tokens and what follows them."""
    assert max(comparison.worst for comparison in compared) <= 1e-3


def test_greedy_tokens_equal_transformers(compared: list[Comparison]) -> None:
    """The greedy continuation of every prompt is transformers' own, token by token."""
    assert [comparison.token_ids for comparison in compared] == [comparison.likeliest for comparison in compared]
    assert {len(comparison.token_ids) for comparison in compared} == {NUM_OUTPUT}


@pytest.mark.parametrize("prefill_chunk", [16, 64, 4096])
def test_company_and_chunks_change_nothing(
    opened: EmbeddedEngine, prompts: list[tuple[int, ...]], compared: list[Comparison], prefill_chunk: int
) -> None:
    """BUG-33: in a batch of 16, with chunks of 16 and 64 and unchunked, each request's tokens are those given alone."""
    opened.set_prefill_chunk(prefill_chunk)
    requests = [make_request(p, request_id=f"r{i}", max_tokens=NUM_OUTPUT) for i, p in enumerate(prompts[:NUM_SHORT])]

    assert tokens_of(serve(opened, requests)) == [comparison.token_ids for comparison in compared[:NUM_SHORT]]


def test_preemption_changes_nothing(
    smollm: ModelFiles, prompts: list[tuple[int, ...]], compared: list[Comparison]
) -> None:
    """BUG-34: requests that were put back and recomputed give the tokens given alone."""
    short = [i for i, length in enumerate(LENGTHS) if length <= 65]
    # At their ends these 13 prompts need some 35 blocks together; 16 make them take turns.
    opened = open_smollm(smollm, max_batch=16, prefill_chunk=64, num_kv_blocks=16, max_context=256)
    requests = [make_request(prompts[i], request_id=f"r{i}", max_tokens=NUM_OUTPUT) for i in short]

    records = serve(opened, requests)

    assert sum(record.num_preemptions for record in records) > 0
    assert tokens_of(records) == [compared[i].token_ids for i in short]


def test_the_model_answers_a_question(opened: EmbeddedEngine) -> None:
    """The checkpoint is the real one: asked for the capital of France, it says Paris."""
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"

    record = serve(opened, [make_request(opened.encode(question), max_tokens=12, ignore_eos=False)])[0]

    assert "Paris" in record.text
    assert torch.get_num_threads() >= 1
