"""The real checkpoint against transformers: logits, greedy text, batches, chunks, preemption."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.embedded.loop import EmbeddedEngine
from engine.embedded.models import ModelFiles
from engine.settings import EngineSettings
from tests.engine.logits import all_logits
from tests.engine.reference import load_reference, reference_logits, reference_tokens
from tests.engine.requests import make_request, serve, tokens_of
from tuner.workload import corpus_text

pytestmark = [pytest.mark.model, pytest.mark.slow]

#: 20 prompts of 1 to 2,000 tokens.
LENGTHS = (1, 2, 3, 5, 8, 13, 16, 17, 31, 32, 33, 64, 65, 100, 128, 200, 333, 512, 1000, 2000)
NUM_OUTPUT = 10
#: The prompts up to 333 tokens, which fill a batch of 16.
NUM_SHORT = 17


@pytest.fixture(scope="module", name="reference")
def _reference(smollm: ModelFiles) -> Any:
    """Transformers' model."""
    return load_reference(smollm.folder)


@pytest.fixture(scope="module", name="opened")
def _opened(smollm: ModelFiles) -> EmbeddedEngine:
    """Our engine with room for everything."""
    return open_smollm(smollm)


def open_smollm(smollm: ModelFiles, **settings: Any) -> EmbeddedEngine:
    chosen: dict[str, Any] = {"max_batch": 1, "prefill_chunk": 4096, "max_context": 2048}
    return EmbeddedEngine(EngineSettings(model="smollm2-135m", **chosen | settings), smollm.folder)


@pytest.fixture(scope="module", name="prompts")
def _prompts(opened: EmbeddedEngine) -> list[tuple[int, ...]]:
    """Stretches of real text, each from a place of its own."""
    token_ids = opened.encode(corpus_text())
    return [token_ids[997 * i : 997 * i + length] for i, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module", name="alone")
def _alone(opened: EmbeddedEngine, prompts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Each prompt's greedy continuation, served alone and unchunked."""
    return [serve(opened, [make_request(prompt, max_tokens=NUM_OUTPUT)])[0].token_ids for prompt in prompts]


def test_logits_equal_transformers(opened: EmbeddedEngine, reference: Any, prompts: list[tuple[int, ...]]) -> None:
    """fp32 logits differ from transformers' by at most 1e-3 on prompts of 1 to 2,000 tokens."""
    worst = max(
        float((all_logits(opened, prompt) - reference_logits(reference, prompt)).abs().max()) for prompt in prompts
    )

    assert worst <= 1e-3


def test_greedy_tokens_equal_transformers(
    reference: Any, prompts: list[tuple[int, ...]], alone: list[tuple[int, ...]]
) -> None:
    """The greedy continuation of every prompt is transformers' own, token by token."""
    assert alone == [reference_tokens(reference, prompt, NUM_OUTPUT) for prompt in prompts]


@pytest.mark.parametrize("prefill_chunk", [16, 64, 4096])
def test_company_and_chunks_change_nothing(
    smollm: ModelFiles, prompts: list[tuple[int, ...]], alone: list[tuple[int, ...]], prefill_chunk: int
) -> None:
    """BUG-33: in a batch of 16, with chunks of 16 and 64 and unchunked, each request's tokens are those given alone."""
    opened = open_smollm(smollm, max_batch=16, prefill_chunk=prefill_chunk)
    requests = [make_request(p, request_id=f"r{i}", max_tokens=NUM_OUTPUT) for i, p in enumerate(prompts[:NUM_SHORT])]

    assert tokens_of(serve(opened, requests)) == alone[:NUM_SHORT]


def test_preemption_changes_nothing(
    smollm: ModelFiles, prompts: list[tuple[int, ...]], alone: list[tuple[int, ...]]
) -> None:
    """BUG-34: requests that were put back and recomputed give the tokens given alone."""
    short = [i for i, length in enumerate(LENGTHS) if length <= 65]
    # At their ends these 13 prompts need some 35 blocks together; 16 make them take turns.
    opened = open_smollm(smollm, max_batch=16, prefill_chunk=64, num_kv_blocks=16, max_context=256)
    requests = [make_request(prompts[i], request_id=f"r{i}", max_tokens=NUM_OUTPUT) for i in short]

    records = serve(opened, requests)

    assert sum(record.num_preemptions for record in records) > 0
    assert tokens_of(records) == [alone[i] for i in short]


def test_the_model_answers_a_question(opened: EmbeddedEngine) -> None:
    """The checkpoint is the real one: asked for the capital of France, it says Paris."""
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"

    record = serve(opened, [make_request(opened.encode(question), max_tokens=12, ignore_eos=False)])[0]

    assert "Paris" in record.text
    assert torch.get_num_threads() >= 1
