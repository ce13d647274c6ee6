"""A profile that says nothing, or two things at once, is refused by the field's name."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import InvalidSettings
from engine.servers.adapter import ADAPTERS
from engine.servers.profile import KINDS, ServerProfile


def test_every_kind_has_its_adapter() -> None:
    """The kinds that a profile may have are those there are adapters for, each under its own name."""
    assert tuple(ADAPTERS) == KINDS
    assert [adapter.kind for adapter in ADAPTERS.values()] == list(KINDS)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "tgi"}, "kind is 'tgi'; choose one of vllm"),
        ({"kind": "vllm", "api": "responses"}, "api is 'responses'"),
        ({"kind": "openai"}, "url is None with kind 'openai'"),
        ({"kind": "vllm", "url": "127.0.0.1:8000"}, "url is '127.0.0.1:8000'; give one that begins with http"),
        ({"kind": "vllm", "url": "http://h", "command": ("vllm",)}, r"command is \('vllm',\) beside url 'http://h'"),
        ({"kind": "vllm", "url": "http://h", "port": 8000}, "port is 8000 beside url"),
        ({"kind": "vllm", "port": 70000}, "port is 70000; give 1 to 65535"),
        ({"kind": "vllm", "start_timeout_s": 0.0}, "start_timeout_s is 0.0; give seconds above 0"),
        ({"kind": "vllm", "stop_timeout_s": float("nan")}, "stop_timeout_s is nan"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(fields: dict[str, Any], words: str) -> None:
    """Field and value stand in the message."""
    with pytest.raises(InvalidSettings, match=words):
        ServerProfile(**fields)


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_and_tried_values_are_values_of_the_knob(kind: str) -> None:
    """Of a knob with words the default and the tried values are among them; other knobs have numbers."""
    for default, tried, words in ADAPTERS[kind].knobs.values():
        values = (default, *tried)
        assert set(values) <= set(words) if words else all(isinstance(value, int) for value in values)
