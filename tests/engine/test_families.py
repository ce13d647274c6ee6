"""Every model family against transformers, on tiny random weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.embedded.config import load_config
from engine.embedded.families import ARCHITECTURES, FAMILIES
from engine.embedded.weights import Weights
from engine.errors import CheckpointError
from tests.engine.conftest import OpenTiny
from tests.engine.logits import all_logits
from tests.engine.reference import load_reference, reference_logits, reference_tokens
from tests.engine.requests import make_request, serve, tokens_of
from tests.engine.tiny_families import FAMILY_CASES, WINDOWED_CASES, change_config, write_family

PROMPT = tuple((37 * i + 11) % 256 for i in range(41))
#: Largest difference from transformers in fp32; logits are of size 1 to 10.
TOLERANCE = 1e-4
FolderOf = Callable[[str], Path]


@pytest.fixture(scope="module", name="folder_of")
def _folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    """The checkpoint of a case, written once."""

    @cache
    def folder_of(case: str) -> Path:
        return write_family(tmp_path_factory.mktemp(case), case)

    return folder_of


@pytest.fixture(scope="module", name="reference_of")
def _reference_of(folder_of: FolderOf) -> Callable[[str], Any]:
    """The reference's model of a case, loaded once."""
    return cache(lambda case: load_reference(folder_of(case)))


@pytest.mark.parametrize("case", FAMILY_CASES)
def test_logits_equal_transformers(
    open_tiny: OpenTiny, folder_of: FolderOf, reference_of: Callable[[str], Any], case: str
) -> None:
    """Every family's logits are transformers' at every position, some of them beyond the window."""
    found = all_logits(open_tiny(folder=folder_of(case)), PROMPT)

    assert float((found - reference_logits(reference_of(case), PROMPT)).abs().max()) <= TOLERANCE


@pytest.mark.parametrize("case", FAMILY_CASES)
def test_greedy_tokens_equal_transformers(
    open_tiny: OpenTiny, folder_of: FolderOf, reference_of: Callable[[str], Any], case: str
) -> None:
    """Every family continues a prompt as transformers' generate does."""
    answer = serve(open_tiny(folder=folder_of(case)), [make_request(PROMPT[:9], max_tokens=16)])[0].token_ids

    assert answer == reference_tokens(reference_of(case), PROMPT[:9], 16)


@pytest.mark.parametrize("chunk", [1, 7, 40])
@pytest.mark.parametrize("case", FAMILY_CASES)
def test_chunks_give_the_logits_of_one_pass(open_tiny: OpenTiny, folder_of: FolderOf, case: str, chunk: int) -> None:
    """A prompt computed in chunks has the logits of one computed at once, in every family."""
    opened = open_tiny(folder=folder_of(case))

    assert torch.allclose(all_logits(opened, PROMPT, chunk=chunk), all_logits(opened, PROMPT), atol=1e-5)


@pytest.mark.parametrize("case", FAMILY_CASES)
def test_company_changes_no_token(open_tiny: OpenTiny, folder_of: FolderOf, case: str) -> None:
    """BUG-33: requests of several lengths served together get the tokens they get alone, in every family."""
    opened = open_tiny(folder=folder_of(case), prefill_chunk=16)
    requests = [make_request(PROMPT[:n], request_id=f"r{n}", max_tokens=12) for n in (1, 5, 17, 40)]

    alone = [tokens_of(serve(opened, [request]))[0] for request in requests]

    assert tokens_of(serve(opened, requests)) == alone


@pytest.mark.parametrize("case", FAMILY_CASES)
def test_preemption_changes_no_token(open_tiny: OpenTiny, folder_of: FolderOf, case: str) -> None:
    """BUG-34: requests that were put back and computed again get the tokens they get alone, in every family."""
    requests = [make_request(PROMPT[i : i + 20], request_id=f"r{i}", max_tokens=24) for i in range(4)]
    roomy, tight = (open_tiny(folder=folder_of(case), max_context=64, num_kv_blocks=blocks) for blocks in (16, 7))

    alone = [tokens_of(serve(roomy, [request]))[0] for request in requests]
    records = serve(tight, requests)

    assert sum(record.num_preemptions for record in records) > 0
    assert tokens_of(records) == alone


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize("case", FAMILY_CASES)
def test_narrow_precisions_stay_near(open_tiny: OpenTiny, folder_of: FolderOf, case: str, precision: str) -> None:
    """At most positions every family's logits in bf16 and int8 are near those in fp32.

    Not at all: where two experts are nearly as likely, rounding may take the other one.
    """
    exact = all_logits(open_tiny(folder=folder_of(case)), PROMPT)

    near = all_logits(open_tiny(folder=folder_of(case), precision=precision), PROMPT)

    assert float(((near - exact).norm(dim=1) / exact.norm(dim=1)).median()) < 0.1


@pytest.mark.parametrize("prefill_chunk", [3, 8, 16])
@pytest.mark.parametrize("case", WINDOWED_CASES)
def test_beyond_the_window_every_step_equals_full_masks(
    open_tiny: OpenTiny, folder_of: FolderOf, reference_of: Callable[[str], Any], case: str, prefill_chunk: int
) -> None:
    """BUG-43: 30 tokens past prompts around the window are those of transformers' full-mask pass, in every family."""
    opened = open_tiny(folder=folder_of(case), prefill_chunk=prefill_chunk)

    for num_prompt in (6, 7, 8, 9, 20):
        prompt = PROMPT[:num_prompt]
        answer = serve(opened, [make_request(prompt, max_tokens=30)])[0].token_ids
        logits = reference_logits(reference_of(case), prompt + answer)
        assert list(answer) == logits[num_prompt - 1 : -1].argmax(dim=-1).tolist()


LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(6)],
    "long_factor": [2.0 + 0.3 * i for i in range(6)],
    "partial_rotary_factor": 0.75,
    "rope_theta": 10000.0,
}
LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10000.0}
LOCAL = {"rope_type": "default", "rope_theta": 10000.0}


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64}),
        ("phi3", {"rope_parameters": LONGROPE | {"factor": 3.0}, "original_max_position_embeddings": 64}),
        ("phi3", {"rope_parameters": LONGROPE | {"attention_factor": 1.3}, "original_max_position_embeddings": 64}),
        ("gemma3", {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": LOCAL}}),
        ("gemma3", {"rope_parameters": {"full_attention": YARN, "sliding_attention": LOCAL | {"rope_theta": 500.0}}}),
        ("gemma2", {"rope_parameters": LINEAR}),
        ("qwen3", {"rope_parameters": YARN}),
        ("mixtral", {"head_dim": 16, "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.9}}),
        ("qwen3_moe", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}}),
    ],
)
def test_rope_scalings_equal_transformers(
    tmp_path: Path, open_tiny: OpenTiny, case: str, changes: dict[str, Any]
) -> None:
    """Each scaling, of all layers or of global ones alone, gives transformers' logits."""
    folder = write_family(tmp_path, case, **changes)

    found = all_logits(open_tiny(folder=folder, max_context=64), PROMPT)

    assert float((found - reference_logits(load_reference(folder), PROMPT)).abs().max()) <= TOLERANCE


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("gemma3", {"rope_parameters": ..., "rope_theta": 5e5, "rope_local_base_freq": 700.0}),
        ("gemma3", {"rope_parameters": ..., "rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
        ("gemma3", {"rope_parameters": ..., "layer_types": ..., "sliding_window_pattern": 3}),
        ("gemma3", {"layer_types": ...}),
        ("gemma2", {"layer_types": ..., "query_pre_attn_scalar": ..., "final_logit_softcapping": ...}),
        ("gemma2", {"layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"]}),
        ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
        ("gemma2", {"hidden_activation": ..., "rms_norm_eps": ..., "rope_parameters": ..., "attention_bias": ...}),
        ("phi3", {"rms_norm_eps": ..., "rope_parameters": ..., "sliding_window": ..., "architectures": ...}),
        ("mixtral", {"rms_norm_eps": ..., "rope_parameters": ..., "sliding_window": ..., "head_dim": ...}),
        ("qwen3", {"use_sliding_window": ..., "layer_types": ..., "rope_parameters": None}),
        (
            "qwen3_moe",
            {"norm_topk_prob": ..., "mlp_only_layers": ..., "decoder_sparse_step": ..., "architectures": ...},
        ),
        ("qwen3_moe", {"num_local_experts": ..., "num_experts": 8, "mlp_only_layers": None}),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 8}),
    ],
)
def test_short_and_older_configs_mean_what_transformers_reads(
    folder_of: FolderOf, tmp_path: Path, open_tiny: OpenTiny, case: str, changes: dict[str, Any]
) -> None:
    """BUG-42: missing and null fields, and earlier spellings, are read as transformers reads them."""
    (tmp_path / "model.safetensors").symlink_to(folder_of(case) / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text((folder_of(case) / name).read_text())
    change_config(tmp_path, **changes)

    found = all_logits(open_tiny(folder=tmp_path), PROMPT)

    assert float((found - reference_logits(load_reference(tmp_path), PROMPT)).abs().max()) <= TOLERANCE


@pytest.mark.parametrize("case", FAMILY_CASES)
def test_parameters_are_those_of_the_file(folder_of: FolderOf, reference_of: Callable[[str], Any], case: str) -> None:
    """The count of parameters, which memory is predicted from, is the checkpoint's own in every family."""
    assert load_config(folder_of(case)).num_parameters == reference_of(case).num_parameters()


@pytest.mark.parametrize(("case", "num_idle"), [("mixtral", 4 * 2), ("qwen3_moe", 4 * 6), ("qwen3_moe-sparse", 1 * 2)])
def test_active_parameters_leave_out_the_experts_not_taken(folder_of: FolderOf, case: str, num_idle: int) -> None:
    """A token meets all parameters but those of the experts it does not go through."""
    config = load_config(folder_of(case))
    assert config.experts is not None
    expert = 3 * config.hidden_size * config.experts.intermediate_size

    assert config.num_active_parameters == config.num_parameters - num_idle * expert


@pytest.mark.parametrize("case", ["phi3", "gemma3", "mixtral", "qwen3_moe"])
def test_a_missing_tensor_is_named(
    folder_of: FolderOf, open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """BUG-41: whichever tensor of a family is missing is named; nothing is left at random values."""
    name = sorted(Weights(folder_of(case))._file_of)[17]
    located = {other: path for other, path in Weights(folder_of(case))._file_of.items() if other != name}
    monkeypatch.setattr("engine.embedded.weights._locate", lambda folder: located)

    with pytest.raises(CheckpointError, match=f"no file has the tensor {name}"):
        open_tiny(folder=folder_of(case))


def test_a_tensor_of_another_family_is_named(folder_of: FolderOf, tmp_path: Path, open_tiny: OpenTiny) -> None:
    """BUG-41: a checkpoint with parts that the stated architecture has no use for is refused by the part's name."""
    (tmp_path / "model.safetensors").symlink_to(folder_of("qwen2") / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text((folder_of("qwen2") / name).read_text())
    change_config(tmp_path, architectures=["MistralForCausalLM"], layer_types=...)

    with pytest.raises(CheckpointError, match=r"has the tensor model\.layers\.\d\.self_attn\..*bias \(12 such\)"):
        open_tiny(folder=tmp_path)


def test_every_architecture_is_documented() -> None:
    """The table of docs/models.md has a line for each architecture, and for no other."""
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")

    assert re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE) == list(ARCHITECTURES)


def test_every_family_is_tried() -> None:
    """Each family has at least one case in the tests above."""
    assert {family.model_type for family in FAMILIES.values()} == {case[0] for case in FAMILY_CASES.values()}
