"""SGLang's server: flags that its parser takes, and that give the knobs back."""

from __future__ import annotations

from hypothesis import given, settings

from api.export.recipe import Recipe
from api.export.sglang import render
from engine.servers.flags import DTYPES
from engine.servers.sglang import KV_DTYPES
from tests.api.export.known_flags import SGLANG, parsed
from tests.api.export.making import command_of, comments_of, recipes
from tuner.request import KnobValue

PRECISIONS = {value: name for name, value in DTYPES.items()}
KV_PRECISIONS = {value: name for name, value in KV_DTYPES.items()}


def knobs_of(words: list[str]) -> dict[str, KnobValue]:
    """Return the knobs that a command says, as the server reads it: attention groups divide what is of all of them."""
    flags = parsed(SGLANG, words[3:])
    is_spread = "--expert-parallel-size" in flags
    shared = int(flags.get("--attention-data-parallel-size", 1))
    knobs: dict[str, KnobValue] = {
        "max_batch": int(flags["--max-running-requests"]) // shared,
        "prefill_chunk": int(flags["--chunked-prefill-size"]) // shared,
        "policy": "decode_first" if "--enable-mixed-chunk" in flags else "prefill_first",
        "tensor_parallel": int(flags["--tensor-parallel-size"]) // shared,
        "pipeline_parallel": int(flags["--pipeline-parallel-size"]),
        "data_parallel": shared if is_spread else int(flags["--data-parallel-size"]),
        "expert_parallel": "on" if is_spread else "off",
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
    words = command_of(script, begins="python3")
    assert words[:3] == ["python3", "-m", "sglang.launch_server"]
    said = knobs_of(words)
    told = comments_of(script)
    for name, value in recipe.knobs.items():
        if name == "kv_precision" and value == "int8":
            assert (said[name], "kv_precision int8" in told) == ("auto", True)
        elif name in said:
            assert said[name] == value
        elif name == "sm_clock_cap_mhz":
            assert f"--lock-gpu-clocks=0,{value}" in told
        elif name == "power_cap_w":
            assert f"--power-limit={value}" in told
        else:
            assert (name, value) in (("prefill_gpus", 0), ("max_prefill_fraction", 1.0)) or f"{name} {value}" in told


@given(recipe=recipes)
@settings(max_examples=40, deadline=None)
def test_every_gpu_of_the_layout_is_asked_for(recipe: Recipe) -> None:
    """The server takes as many GPUs as the point's layout has without a pool for prompts."""
    flags = parsed(SGLANG, command_of(render(recipe), begins="python3")[3:])
    sizes = [int(flags.get(f"--{name}-parallel-size", 1)) for name in ("tensor", "pipeline", "data")]
    assert sizes[0] * sizes[1] * sizes[2] == recipe.settings.num_gpus - recipe.settings.prefill_gpus
