"""Profiles that start the stub server, and loads for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.load import ClosedLoad
from engine.request import Request
from engine.servers.profile import ServerProfile
from engine.settings import EngineSettings

STUB = Path(__file__).with_name("stub_server.py")
MODEL = "tiny"


def make_profile(mode: str = "ok", **changes: Any) -> ServerProfile:
    """Return a profile that starts the stub server as a vLLM in a mode."""
    command = (sys.executable, "-S", str(STUB), "--mode", mode)
    fields: dict[str, Any] = {"kind": "vllm", "command": command, "start_timeout_s": 20.0, "stop_timeout_s": 5.0}
    return ServerProfile(**fields | changes)


def make_settings(**changes: Any) -> EngineSettings:
    fields: dict[str, Any] = {"model": MODEL, "max_batch": 4, "prefill_chunk": 60}
    return EngineSettings(**fields | changes)


def make_load(count: int, *, concurrency: int = 2, num_tokens: int = 3) -> ClosedLoad:
    """Return a load whose prompts all differ, the same ones each time."""

    def requests() -> Iterator[Request]:
        for i in range(count):
            yield Request(request_id=f"r{i}", prompt_token_ids=(i + 1, i + 2, 5, 6), max_tokens=num_tokens)

    return ClosedLoad(requests=requests(), concurrency=concurrency)
