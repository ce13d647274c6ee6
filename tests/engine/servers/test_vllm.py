"""vLLM: a launch's words are ones that its parser takes, and say the settings; its answers are read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

from engine.errors import InvalidSettings
from engine.servers.adapter import ADAPTERS
from engine.servers.flags import CHECKPOINTS, DTYPES
from engine.servers.metrics import samples_of
from engine.servers.profile import ServerProfile
from engine.servers.vllm import KV_DTYPES, Vllm
from engine.settings import EngineSettings
from tests.api.export.known_flags import VLLM, parsed
from tests.engine.servers.making import GPUS, MODEL, VLLM_PLACE, commands_of, plain_settings, settings_of

SERVE = ("vllm", "serve")


@given(chosen=settings_of(policy=False))
@settings(max_examples=60, deadline=None)
def test_the_words_of_a_launch_say_its_settings(chosen: EngineSettings) -> None:
    """Parsed as vLLM does, the words give batch, budget, precisions, layout, context and place of the launch."""
    (command,) = commands_of(chosen, kind="vllm", command=SERVE)
    assert command.words[:3] == (*SERVE, MODEL)
    flags = parsed((*VLLM, *VLLM_PLACE), command.words[3:])
    assert flags["--max-num-seqs"] == chosen.max_batch
    assert flags["--max-num-batched-tokens"] == chosen.max_batch + chosen.prefill_chunk
    assert flags.get("--dtype") == DTYPES.get(chosen.precision)
    assert flags.get("--kv-cache-dtype") == KV_DTYPES.get(chosen.kv_precision)
    assert flags["--data-parallel-size"] == chosen.data_parallel
    assert flags.get("--max-model-len") == chosen.max_context
    assert (flags["--host"], flags["--port"]) == ("127.0.0.1", 8100)


def test_the_environment_shows_the_gpus_and_lets_caches_be_emptied() -> None:
    """The launch sees the GPUs of the settings and no others, has the mode with a cache reset; a profile's own wins."""
    on_gpu, on_cpu = (dict(commands_of(plain_settings(device=device), kind="vllm")[0].env) for device in (GPUS, "cpu"))
    assert (on_gpu["CUDA_VISIBLE_DEVICES"], on_cpu["CUDA_VISIBLE_DEVICES"]) == (GPUS, "")
    assert on_gpu["VLLM_SERVER_DEV_MODE"] == "1"
    own = (("VLLM_SERVER_DEV_MODE", "0"),)
    assert dict(commands_of(plain_settings(), kind="vllm", env=own)[0].env)["VLLM_SERVER_DEV_MODE"] == "0"
    assert ADAPTERS["vllm"].paths(ServerProfile(kind="vllm")).reset == "/reset_prefix_cache"


def test_an_operators_command_comes_first_and_its_arguments_last() -> None:
    """Flags follow a prefix with what only the launch knows filled in; the model is named where nothing serves it."""
    prefix = ("docker", "run", "--gpus", '"device={gpus}"', "-p", "{port}:{port}", "--name", "wf-{id}", "image")
    (command,) = commands_of(
        plain_settings(device=GPUS), kind="vllm", command=prefix, extra_args=("--seed", "3"), served_model="chat"
    )
    assert command.words[:11] == (
        "docker", "run", "--gpus", f'"device={GPUS}"', "-p", "8100:8100", "--name", "wf-7-1.00-abc", "image",
        "--model", MODEL,
    )  # fmt: skip
    assert command.words[-2:] == ("--seed", "3")
    assert "--served-model-name chat" in " ".join(command.words)


def test_without_a_command_of_its_own_the_module_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where there is no `vllm` on the path, as with the CPU build, this interpreter runs vLLM's server module."""
    monkeypatch.setenv("PATH", str(tmp_path))
    words = commands_of(plain_settings(), kind="vllm")[0].words
    assert words[:5] == (sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL)
    program = tmp_path / "vllm"
    program.touch(mode=0o755)
    assert commands_of(plain_settings(), kind="vllm")[0].words[:3] == (*SERVE, MODEL)


def test_what_vllm_would_serve_otherwise_is_refused() -> None:
    """What no flag says is refused; a precision of the checkpoint is the checkpoint's."""
    with pytest.raises(InvalidSettings, match="vllm cannot be started so: policy prefill_first: vLLM takes running"):
        commands_of(plain_settings(policy="prefill_first"), kind="vllm")
    with pytest.raises(InvalidSettings, match="prefill_gpus 4"):
        commands_of(plain_settings(prefill_gpus=4), kind="vllm")
    for precision in CHECKPOINTS:
        words = commands_of(plain_settings(precision=precision), kind="vllm", command=SERVE)[0].words
        assert not {"--dtype", "--quantization"} & set(words)


def test_the_size_of_the_cache_is_read() -> None:
    """The blocks of the cache stand as a label; where they are not told yet, nobody knows."""
    info = 'vllm:cache_config_info{block_size="128",engine="0",num_gpu_blocks="364"} 1.0'
    assert Vllm().num_kv_blocks(samples_of(info)) == 364
    assert Vllm().num_kv_blocks(samples_of(info.replace("364", "None"))) is None


def test_logprobs_of_a_prompt_are_scores() -> None:
    """Of an echoed prompt each token but the first has its logprob, and the most likely token its id."""
    tops = [None, {"token_id:5": -2.0, "token_id:9": -0.5}, {"token_id:6": -0.1}]
    answer = {"choices": [{"logprobs": {"token_logprobs": [None, -2.0, -0.1], "top_logprobs": tops}}]}
    scores = Vllm().scores_of(answer, 3)
    assert (scores.top_token_ids, scores.logprobs) == ((9, 6), (-2.0, -0.1))
    asked = Vllm().score_request((4, 5, 6), "m")
    assert asked is not None
    assert (asked[0], asked[1]["prompt"], asked[1]["echo"]) == ("/v1/completions", [4, 5, 6], True)


def test_prompts_are_token_ids_where_the_api_has_them() -> None:
    """Completions take token ids and count in every piece; chat takes text."""
    dialects = [ADAPTERS["vllm"].dialect(ServerProfile(kind="vllm", api=api)) for api in ("completions", "chat")]
    assert [one.takes_token_ids for one in dialects] == [True, False]
    assert dict(dialects[0].usage_options) == {"include_usage": True, "continuous_usage_stats": True}
