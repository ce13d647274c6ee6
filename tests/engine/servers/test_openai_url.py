"""A server that is running already: nothing of it is set, and its metrics are read whatever they are called."""

from __future__ import annotations

import pytest

from engine.errors import InvalidSettings
from engine.servers.adapter import ADAPTERS
from engine.servers.metrics import counters_of, samples_of
from engine.servers.profile import ServerProfile
from tests.engine.servers.making import MODEL, PLACE, plain_settings

URL = ServerProfile(kind="openai", url="http://127.0.0.1:9/v1")


def test_it_has_no_knobs_and_is_not_started() -> None:
    """No knob of such a server can be set, and there is nothing that could be run."""
    adapter = ADAPTERS["openai"]
    assert dict(adapter.knobs) == {}
    with pytest.raises(InvalidSettings, match="kind is 'openai': such a server is not started"):
        adapter.start(plain_settings(), URL, model=MODEL, place=PLACE)


@pytest.mark.parametrize(
    "name", ["vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"]
)
def test_metrics_of_every_known_server_are_read(name: str) -> None:
    """What runs is read under the names of vLLM, SGLang and llama.cpp."""
    assert counters_of(samples_of(f"{name} 3.0"), ADAPTERS["openai"].metrics).running == 3.0


def test_it_is_asked_in_plain_words() -> None:
    """Prompts go out as text, as not every server takes token ids; the model is the one that was named."""
    adapter = ADAPTERS["openai"]
    assert (adapter.dialect(URL).takes_token_ids, adapter.served_name(MODEL, URL)) == (False, MODEL)
    assert adapter.paths(URL).health is None
