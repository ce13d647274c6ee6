"""How one machine starts a server: its operator's command, environment and limits, and where it is to listen.

A profile is what an operator writes once; a caller only ever names it. Knows no server's flags.
"""

# ruff: noqa: A005 - Python's own `profile` is imported nowhere here, and by no name but its full one
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import InvalidSettings
from engine.servers.dialect import PATHS

#: Servers that there are adapters for; `openai` is any server that is already running.
KINDS = ("vllm", "sglang", "trtllm", "dynamo", "llamacpp", "openai")
#: Where servers listen: for this machine alone.
HOST = "127.0.0.1"
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProfile:
    """How a server of one kind is started, or where one runs already."""

    kind: str
    #: Words that start it, a prefix such as docker or srun included; flags are added at the end. Empty takes the
    #: kind's own program. In each word `{port}`, `{gpus}`, `{model}` and `{id}` are filled in.
    command: tuple[str, ...] = ()
    #: Set for the server beside what this process has; wins over what the kind sets.
    env: tuple[tuple[str, str], ...] = ()
    #: Added after the flags, so that they win where a server takes the last of two.
    extra_args: tuple[str, ...] = ()
    #: Address of a server that is already running: nothing is started or stopped, and only its load is changed.
    url: str | None = None
    #: Where it is to listen; None takes a port that is free.
    port: int | None = None
    start_timeout_s: float = 600.0
    #: From asking it to end to killing it.
    stop_timeout_s: float = 30.0
    #: `completions`, or `chat` for servers that have only that.
    api: str = "completions"
    #: Environment variable that holds the key the server asks for.
    api_key_env: str | None = None
    #: What the server calls the model; None takes the kind's own name for it.
    served_model: str | None = None

    def __post_init__(self) -> None:
        """Refuse a profile that says nothing or two things at once, naming field, value and remedy."""
        if self.kind not in KINDS:
            raise InvalidSettings(f"kind is {self.kind!r}; choose one of {', '.join(KINDS)}")
        if self.api not in PATHS:
            raise InvalidSettings(f"api is {self.api!r}; choose one of {', '.join(PATHS)}")
        if self.kind == "openai" and self.url is None:
            raise InvalidSettings("url is None with kind 'openai'; give the address of the running server")
        if self.url is not None:
            self._check_url(self.url)
        if self.port is not None and not 0 < self.port <= _MAX_PORT:
            raise InvalidSettings(f"port is {self.port}; give 1 to {_MAX_PORT}, or none for a free one")
        for field in ("start_timeout_s", "stop_timeout_s"):
            value = getattr(self, field)
            if not 0.0 < value < float("inf"):
                raise InvalidSettings(f"{field} is {value}; give seconds above 0")

    def _check_url(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidSettings(f"url is {url!r}; give one that begins with http:// or https://")
        for field in ("command", "env", "extra_args", "port"):
            value = getattr(self, field)
            if value:
                raise InvalidSettings(f"{field} is {value!r} beside url {url!r}; a running server is not started")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one launch is to be."""

    port: int
    #: Takes files that flags name.
    folder: Path
    #: Marks the launch's processes.
    server_id: str

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://{HOST}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One process of a server."""

    words: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a launch runs: the processes of a server, and files that must be there before."""

    commands: tuple[Command, ...]
    #: Path and text.
    files: tuple[tuple[Path, str], ...] = ()


def filled(words: Sequence[str], *, place: Place, model: str, gpus: str) -> tuple[str, ...]:
    """Return a profile's words with what only a launch knows filled in; other braces are left as they are."""
    values = {"{port}": str(place.port), "{gpus}": gpus, "{model}": model, "{id}": place.server_id}
    made = []
    for word in words:
        for name, value in values.items():
            word = word.replace(name, value)
        made.append(word)
    return tuple(made)


def gpus_of(device: str) -> str:
    """Return what a server sees of a machine's GPUs: the UUIDs that settings name, nothing where they say `cpu`."""
    return "" if device == "cpu" else device
