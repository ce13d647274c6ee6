"""TensorRT-LLM: a launch's options are ones that `trtllm-serve` takes, and the file beside them says the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidSettings, NotScored
from engine.servers.adapter import ADAPTERS
from engine.servers.profile import ServerProfile
from engine.servers.trtllm import FILE_NAME, Trtllm
from engine.settings import EngineSettings
from tests.api.export.known_flags import TRTLLM, Known, parsed
from tests.engine.servers.making import MODEL, PLACE, commands_of, plain_settings, settings_of

#: What only a launch says, as tensorrt_llm/commands/serve.py takes it.
PLACE_FLAGS = (
    Known(names=("--host",), kind=str),
    Known(names=("--port",), kind=int),
    Known(names=("--max_seq_len",), kind=int),
)
HAS = settings_of(policy=False, kv_precision=st.sampled_from(("auto", "fp8", "nvfp4")), data_parallel=st.just(1))


@given(chosen=HAS)
@settings(max_examples=40, deadline=None)
def test_the_words_of_a_launch_say_its_settings(chosen: EngineSettings) -> None:
    """Parsed as the command does, the words give batch, budget, layout and context; the file is where they say."""
    profile = ServerProfile(kind="trtllm")
    start = Trtllm().start(chosen, profile, model=MODEL, place=PLACE)
    words = start.commands[0].words
    assert words[:2] == ("trtllm-serve", MODEL)
    flags = parsed((*TRTLLM, *PLACE_FLAGS), words[2:])
    assert (flags["--max_batch_size"], flags["--port"]) == (chosen.max_batch, 8100)
    assert flags["--max_num_tokens"] == chosen.max_batch + chosen.prefill_chunk
    assert flags.get("--max_seq_len") == chosen.max_context
    ((path, text),) = start.files
    assert (str(path), path) == (flags["--extra_llm_api_options"], PLACE.folder / FILE_NAME)
    options = yaml.safe_load(text)
    assert (options["enable_chunked_prefill"], options["return_perf_metrics"]) == (True, True)
    assert options.get("kv_cache_config", {}).get("dtype", "auto") == chosen.kv_precision


@pytest.mark.parametrize(
    "changes", [{"kv_precision": "bf16"}, {"policy": "prefill_first"}, {"data_parallel": 2}, {"prefill_gpus": 1}]
)
def test_what_it_would_serve_otherwise_is_refused(changes: dict[str, str | int]) -> None:
    """A setting that neither option nor file says is refused by its name."""
    (name,) = changes
    with pytest.raises(InvalidSettings, match=f"trtllm cannot be started so: {name} {changes[name]}"):
        commands_of(plain_settings(**changes), kind="trtllm")


def test_a_folder_goes_by_its_last_part(tmp_path: Path) -> None:
    """The server calls a model in a folder by the folder's name, and any other model as it was given."""
    profile = ServerProfile(kind="trtllm")
    folder = tmp_path / "llama-8b"
    folder.mkdir()
    adapter = ADAPTERS["trtllm"]
    assert (adapter.served_name(str(folder), profile), adapter.served_name(MODEL, profile)) == ("llama-8b", MODEL)
    assert adapter.paths(profile).metrics == "/prometheus/metrics"


def test_it_scores_nothing() -> None:
    """There is no way to ask it for the probabilities of a prompt."""
    assert Trtllm().score_request((1, 2), MODEL) is None
    with pytest.raises(NotScored, match="trtllm gives no probabilities"):
        Trtllm().scores_of({}, 2)
