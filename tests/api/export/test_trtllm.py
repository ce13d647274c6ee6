"""`trtllm-serve`: options that its command takes, a YAML file beside them, and both give the knobs back."""

from __future__ import annotations

import yaml
from hypothesis import given, settings

from api.export.recipe import Recipe
from api.export.trtllm import render
from engine.servers.flags import DTYPES
from engine.servers.trtllm import FILE_NAME
from tests.api.export.known_flags import TRTLLM, parsed
from tests.api.export.making import command_of, comments_of, recipes

PRECISIONS = {value: name for name, value in DTYPES.items()}
#: Of `LlmArgs` and `KvCacheConfig` in tensorrt_llm/llmapi/llm_args.py.
OPTIONS = {"enable_chunked_prefill", "dtype", "kv_cache_config", "enable_attention_dp"}


@given(recipe=recipes)
@settings(max_examples=60, deadline=None)
def test_command_and_file_give_the_knobs_back(recipe: Recipe) -> None:
    """Options and file name every knob's value again, and what they do not say stands in the comments."""
    script = render(recipe)
    words = command_of(script, begins="trtllm-serve")
    flags, knobs, told = parsed(TRTLLM, words[2:]), dict(recipe.knobs), comments_of(script)
    text = script.decode()
    options = yaml.safe_load(text[text.index("END_OF_YAML'\n") + 13 : text.rindex("END_OF_YAML")])
    assert (flags["--extra_llm_api_options"], set(options) <= OPTIONS) == (FILE_NAME, True)
    spread = knobs.pop("expert_parallel") == "on"
    replicas = int(knobs.pop("data_parallel"))
    shared = replicas if spread else 1
    assert flags["--tensor_parallel_size"] == int(knobs.pop("tensor_parallel")) * shared
    assert ("--moe_expert_parallel_size" in flags) == spread
    assert options.get("enable_attention_dp", False) == (shared > 1)
    assert spread or replicas == 1 or f"data_parallel {replicas}" in told
    batch = int(knobs.pop("max_batch"))
    assert (flags["--max_batch_size"], flags["--max_num_tokens"]) == (batch, batch + int(knobs.pop("prefill_chunk")))
    assert flags["--pipeline_parallel_size"] == knobs.pop("pipeline_parallel")
    precision, cache = str(knobs.pop("precision")), str(knobs.pop("kv_precision"))
    assert PRECISIONS.get(options.get("dtype", "")) == precision or f"precision {precision}" in told
    said = options.get("kv_cache_config", {}).get("dtype", "auto")
    assert said == cache or f"kv_precision {cache}" in told
    assert f"--lock-gpu-clocks=0,{knobs.pop('sm_clock_cap_mhz')}" in told
    assert f"--power-limit={knobs.pop('power_cap_w')}" in told
    assert all(f"{name} {value}" in told or value in ("decode_first", 0, 1.0) for name, value in knobs.items())
