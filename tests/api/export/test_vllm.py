"""`vllm serve`: flags that vLLM's parser takes, and that give the knobs back."""

from __future__ import annotations

from hypothesis import given, settings

from api.export.recipe import Recipe
from api.export.vllm import render
from engine.servers.flags import CHECKPOINTS, DTYPES
from engine.servers.vllm import KV_DTYPES
from tests.api.export.known_flags import VLLM, parsed
from tests.api.export.making import command_of, comments_of, make_recipe, recipes
from tuner.request import KnobValue

PRECISIONS = {value: name for name, value in DTYPES.items()}
KV_PRECISIONS = {value: name for name, value in KV_DTYPES.items()}


def knobs_of(words: list[str]) -> dict[str, KnobValue]:
    """Return the knobs that a command says, as far as it does."""
    flags = parsed(VLLM, words[3:])
    batch, budget = int(flags["--max-num-seqs"]), int(flags["--max-num-batched-tokens"])
    knobs: dict[str, KnobValue] = {
        "max_batch": batch,
        "prefill_chunk": budget - batch,
        "tensor_parallel": int(flags["--tensor-parallel-size"]),
        "pipeline_parallel": int(flags["--pipeline-parallel-size"]),
        "data_parallel": int(flags["--data-parallel-size"]),
        "expert_parallel": "on" if "--no-enable-expert-parallel" in flags else "off",
        "kv_precision": KV_PRECISIONS.get(str(flags.get("--kv-cache-dtype")), "auto"),
    }
    if "--dtype" in flags:
        knobs["precision"] = PRECISIONS[str(flags["--dtype"])]
    if "--quantization" in flags:
        knobs["precision"] = str(flags["--quantization"])
    return knobs


@given(recipe=recipes)
@settings(max_examples=60, deadline=None)
def test_the_flags_give_the_knobs_back(recipe: Recipe) -> None:
    """Parsed flags name every knob's value again, and what they do not say stands in the comments with its value."""
    script = render(recipe)
    words = command_of(script, begins="vllm")
    assert words[:3] == ["vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct"]
    said = knobs_of(words)
    assert said == {name: value for name, value in recipe.knobs.items() if name in said}
    unsaid = {name: value for name, value in recipe.knobs.items() if name not in said}
    told = comments_of(script)
    assert f"--lock-gpu-clocks=0,{unsaid.pop('sm_clock_cap_mhz')}" in told
    assert f"--power-limit={unsaid.pop('power_cap_w')}" in told
    for name, default in (("policy", "decode_first"), ("prefill_gpus", 0), ("max_prefill_fraction", 1.0)):
        value = unsaid.pop(name)
        assert value == default or f"{name} {value}" in told
    assert set(unsaid) <= {"precision"}
    assert all(f"precision {value}" in told for value in unsaid.values())


def test_a_precision_of_the_checkpoint_is_told_and_not_set() -> None:
    """For a precision that vLLM reads from the checkpoint there is no flag, and a comment says which to name."""
    for precision in CHECKPOINTS:
        script = render(make_recipe(precision=precision))
        assert "--quantization" not in script.decode()
        assert f"precision {precision}" in comments_of(script)


def test_the_embedded_engines_point_is_exported_with_a_word_of_caution() -> None:
    """A point of our own engine becomes flags, and the script says that it was measured with another engine."""
    script = render(make_recipe(engine="embedded", precision="fp32", model="smollm2-135m"))
    assert "--dtype float32" in script.decode()
    assert "HuggingFaceTB/SmolLM2-135M-Instruct" in script.decode()
    assert "vllm is another engine" in comments_of(script)
