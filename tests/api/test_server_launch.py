"""Which server a job starts, and what it is told of the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.errors import UsageError
from api.server_launch import ServerLaunch, server_launch
from api.settings import Settings
from engine.embedded.models import ModelFiles
from engine.servers.profile import ServerProfile
from tests.tuner.factories import make_request
from tuner.errors import InvalidRequest

OPERATOR = """
servers:
  vllm: {kind: vllm, command: [/opt/vllm, serve], env: {A: "1"}, extra_args: [--enforce-eager]}
  staging: {kind: openai, url: "http://10.0.0.7:8000", served_model: chat-8b}
"""


def launch(tmp_path: Path, text: str = OPERATOR, **changes: str) -> ServerLaunch:
    path = tmp_path / "operator.yaml"
    path.write_text(text)
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    request = make_request(**{"knobs": (), "engine": "vllm", "model": str(folder)} | changes)
    settings = Settings(operator_file=path)
    return server_launch(request, settings, lambda name: ModelFiles(name=name, folder=folder, model_hash="aa"))


def test_the_profile_of_the_engines_name_counts(tmp_path: Path) -> None:
    """Without a name, the operator's profile that is called like the engine starts the server; the model is a path."""
    found = launch(tmp_path)
    assert found.profile == ServerProfile(
        kind="vllm", command=("/opt/vllm", "serve"), env=(("A", "1"),), extra_args=("--enforce-eager",)
    )
    folder = tmp_path / "model"
    assert (str(folder), "aa", folder) == (found.model, found.model_hash, found.tokenizer_folder)


def test_without_a_profile_it_is_the_engines_own_program(tmp_path: Path) -> None:
    """An engine that the file does not name is started by its own program."""
    assert launch(tmp_path, engine="sglang").profile == ServerProfile(kind="sglang")


def test_other_names_are_the_servers_to_resolve(tmp_path: Path) -> None:
    """A model that does not lie here is handed on by its name, and its hash says that it is only a name."""
    found = launch(tmp_path, model="org/chat-8b")
    assert (found.model, found.model_hash, found.tokenizer_folder) == ("org/chat-8b", "by name: org/chat-8b", None)


def test_llama_cpp_gets_the_file_itself(tmp_path: Path) -> None:
    """Of a GGUF file llama.cpp takes the file; other servers take the folder that it is converted to."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    assert str(path) == launch(tmp_path, engine="llamacpp", model=str(path)).model
    assert str(tmp_path / "model") == launch(tmp_path, model=str(path)).model


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"server": "prod"}, "server is 'prod': .* names staging, vllm"),
        ({"engine": "openai"}, "server is '': .* names staging, vllm"),
        ({"server": "staging"}, "it is of kind openai; give engine 'openai'"),
    ],
)
def test_a_profile_that_there_is_not(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    """A name that the file lacks, a running server without a name, and a profile of another kind are refused."""
    with pytest.raises(InvalidRequest, match=words):
        launch(tmp_path, **changes)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{kind: tgi}", "kind is 'tgi'; choose one of vllm"),
        ("{kind: vllm, url: 'http://a:1'}", "of kind 'openai', since none of its flags can be set"),
        ("{kind: openai}", "url is None with kind 'openai'"),
        ("{kind: vllm, port: 0}", "port is 0"),
        ("{kind: vllm, command: vllm serve}", "servers.x.command"),
    ],
)
def test_an_entry_that_starts_nothing_is_refused(tmp_path: Path, entry: str, words: str) -> None:
    """The operator's file is refused with the field, whoever asks for a server of it."""
    with pytest.raises(UsageError, match=words):
        launch(tmp_path, f"servers: {{x: {entry}}}")
