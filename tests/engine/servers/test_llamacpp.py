"""llama.cpp: flags of `llama-server`, and of the Python server that knows fewer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import InvalidSettings
from engine.servers.adapter import ADAPTERS
from engine.servers.profile import ServerProfile
from engine.settings import EngineSettings
from tests.api.export.known_flags import Known, parsed
from tests.engine.servers.making import GPUS, commands_of

#: As common/arg.cpp of llama.cpp takes them.
LLAMA_SERVER = (
    Known(names=("-m", "--model"), kind=str),
    Known(names=("-hf", "--hf-repo"), kind=str),
    Known(names=("-a", "--alias"), kind=str),
    Known(names=("--host",), kind=str),
    Known(names=("--port",), kind=int),
    Known(names=("--metrics",), kind=bool),
    Known(names=("-np", "--parallel"), kind=int),
    Known(names=("-b", "--batch-size"), kind=int),
    Known(names=("-ub", "--ubatch-size"), kind=int),
    Known(names=("-c", "--ctx-size"), kind=int),
    Known(names=("-ctk", "--cache-type-k"), kind=str, choices=("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0")),
    Known(names=("-ctv", "--cache-type-v"), kind=str, choices=("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0")),
    Known(names=("-fa", "--flash-attn"), kind=str, choices=("on", "off", "auto")),
    Known(names=("-t", "--threads"), kind=int),
    Known(names=("-ngl", "--gpu-layers"), kind=int),
)
#: As llama_cpp/server/settings.py of llama-cpp-python 0.3 takes them.
PYTHON_SERVER = tuple(
    Known(names=(f"--{name}",), kind=kind)
    for name, kind in (
        ("model", str), ("model_alias", str), ("host", str), ("port", int), ("n_ctx", int), ("n_batch", int),
        ("n_ubatch", int), ("n_threads", int), ("n_gpu_layers", int),
    )
)  # fmt: skip
FILE = "/models/tiny.gguf"
PYTHON = ("python3", "-m", "llama_cpp.server")


def make(**changes: Any) -> EngineSettings:
    fields: dict[str, Any] = {"model": FILE, "max_batch": 4, "prefill_chunk": 60, "max_context": 256}
    return EngineSettings(**fields | changes)


def flags_of(chosen: EngineSettings, *, model: str = FILE) -> dict[str, int | str | bool]:
    (command,) = commands_of(chosen, model=model, kind="llamacpp")
    assert command.words[0] == "llama-server"
    return parsed(LLAMA_SERVER, command.words[1:])


def test_slots_batches_and_context_are_those_of_the_settings() -> None:
    """Each slot has the whole context that was asked for, and a step is one batch of chunk and slots together."""
    flags = flags_of(make(num_threads=2))
    assert (flags["--parallel"], flags["--ctx-size"], flags["--threads"]) == (4, 4 * 256, 2)
    assert (flags["--batch-size"], flags["--ubatch-size"], flags["--metrics"]) == (64, 64, True)
    assert (flags["--model"], flags["--alias"], "--gpu-layers" in flags) == (FILE, FILE, False)
    assert flags_of(make(device=GPUS))["--gpu-layers"] == 999


def test_a_quantised_cache_comes_with_flash_attention() -> None:
    """Values in 8 bits need flash attention, so it is asked for; formats that it has not are refused."""
    flags = flags_of(make(kv_precision="int8"))
    assert (flags["--cache-type-k"], flags["--cache-type-v"], flags["--flash-attn"]) == ("q8_0", "q8_0", "on")
    with pytest.raises(InvalidSettings, match="llamacpp cannot be started so: kv_precision fp8"):
        flags_of(make(kv_precision="fp8"))


def test_a_model_is_a_file_the_one_file_of_a_folder_or_an_id(tmp_path: Path) -> None:
    """A folder with one file stands for it; with none or several it is refused; anything else is an id of the hub."""
    assert flags_of(make(), model="ggml-org/tiny-GGUF")["--hf-repo"] == "ggml-org/tiny-GGUF"
    with pytest.raises(InvalidSettings, match=r"with 0 \.gguf files; name one file"):
        flags_of(make(), model=str(tmp_path))
    (tmp_path / "a.gguf").touch()
    assert flags_of(make(), model=str(tmp_path))["--model"] == str(tmp_path / "a.gguf")


def test_a_layout_of_gpus_is_not_its_own() -> None:
    """Layers are spread by the server itself, so a layout is refused."""
    with pytest.raises(InvalidSettings, match="tensor_parallel 2: the server itself spreads layers"):
        flags_of(make(tensor_parallel=2))


def test_the_python_server_has_flags_of_its_own() -> None:
    """The Python server is told in its own words, answers one request at a time and has neither health nor metrics."""
    (command,) = commands_of(make(max_batch=1), model=FILE, kind="llamacpp", command=PYTHON)
    flags = parsed(PYTHON_SERVER, command.words[3:])
    assert (flags["--model"], flags["--model_alias"], flags["--n_ctx"], flags["--n_batch"]) == (FILE, FILE, 256, 60)
    with pytest.raises(InvalidSettings, match="max_batch 4: this server answers one request after the other"):
        commands_of(make(), model=FILE, kind="llamacpp", command=PYTHON)
    paths = ADAPTERS["llamacpp"].paths(ServerProfile(kind="llamacpp", command=PYTHON))
    assert (paths.health, paths.metrics, paths.models) == (None, None, "/v1/models")


def test_prompts_are_not_kept_between_requests() -> None:
    """Every request says that its prompt is not to be taken from a slot's cache: there is no other reset."""
    dialect = ADAPTERS["llamacpp"].dialect(ServerProfile(kind="llamacpp"))
    assert dict(dialect.extra_body) == {"cache_prompt": False}
    assert ADAPTERS["llamacpp"].paths(ServerProfile(kind="llamacpp")).version == ("/props", "build_info")
