"""What the operator allows callers to name: devices, models, servers and targets of notifications, from one YAML file.

A caller over HTTP gives names; only here do they become UUIDs, paths and URLs, which nobody can read back over HTTP.
Server and workers each read the file of their own machine. Knows nothing of requests.

    devices:
      rack3-gpu0: {device: GPU-8f6b..., allow_device_control: true}
    models:
      chat-8b: /models/llama-3.1-8b
    targets:
      ops: {url: https://hooks.example.org/wattfront, secret_env: OPS_HOOK_SECRET}
    servers:
      vllm-prod: {kind: vllm, command: [docker, run, --rm, --network=host, --gpus=all, vllm/vllm-openai:v0.33.0]}
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from api.complaints import complaint_of
from api.errors import UsageError
from engine.errors import InvalidSettings
from engine.servers.profile import ServerProfile
from tuner.errors import InvalidRequest

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def is_name(text: str) -> bool:
    """Tell whether a text could be a name in the file."""
    return _NAME.fullmatch(text) is not None


def _name(text: str) -> str:
    if not is_name(text):
        raise ValueError("a name has letters, digits, dots, dashes and underscores, 100 at most")
    return text


Name = Annotated[str, AfterValidator(_name)]


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DeviceEntry(_In):
    """A device that callers may tune."""

    #: As for `wattfront tune --device`: a UUID, cuda:0, cpu.
    device: StrictStr
    #: Whether jobs of callers may set clocks and limits of it; the worker must allow it too.
    allow_device_control: StrictBool = False


def _http_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("give an http:// or https:// URL")
    _ = parts.port  # raises ValueError for one that is none
    return text


class TargetEntry(_In):
    """Where notifications go."""

    url: Annotated[StrictStr, AfterValidator(_http_url)]
    #: Environment variable that holds the secret which notifications are signed with.
    secret_env: StrictStr

    def secret(self, environment: Mapping[str, str] = os.environ) -> bytes | None:
        """Return the secret; None when its variable is not set."""
        found = environment.get(self.secret_env)
        return found.encode() if found else None


class ServerEntry(_In):
    """How a server is started here, or where one runs; what each field means is in docs/servers.md."""

    kind: StrictStr
    command: list[StrictStr] = Field(default_factory=list)
    env: dict[StrictStr, StrictStr] = Field(default_factory=dict)
    extra_args: list[StrictStr] = Field(default_factory=list)
    url: StrictStr | None = None
    port: StrictInt | None = None
    start_timeout_s: float = 600.0
    stop_timeout_s: float = 30.0
    api: StrictStr = "completions"
    api_key_env: StrictStr | None = None
    served_model: StrictStr | None = None

    def profile(self) -> ServerProfile:
        """Return the entry as what an adapter takes."""
        fields = self.model_dump()
        listed = {name: tuple(fields[name]) for name in ("command", "extra_args")}
        return ServerProfile(**fields | listed | {"env": tuple(fields["env"].items())})

    @model_validator(mode="after")
    def _is_profile(self) -> Self:
        """Refuse what no server could be started from."""
        try:
            self.profile()
        except InvalidSettings as error:
            raise ValueError(str(error)) from error
        if self.url is not None and self.kind != "openai":
            raise ValueError(
                f"url is {self.url!r} with kind {self.kind!r}: a server that runs already is of kind 'openai', since "
                "none of its flags can be set"
            )
        return self


class Operator(_In):
    """Everything that callers may name."""

    devices: dict[Name, DeviceEntry] = Field(default_factory=dict)
    models: dict[Name, StrictStr] = Field(default_factory=dict)
    targets: dict[Name, TargetEntry] = Field(default_factory=dict)
    servers: dict[Name, ServerEntry] = Field(default_factory=dict)

    def server_of(self, name: str, engine: str) -> ServerEntry | None:
        """Return the profile of a name; None without one. Raises InvalidRequest where it is of another engine."""
        entry = self.servers.get(name)
        if entry is not None and entry.kind != engine:
            remedy = f"it is of kind {entry.kind}; give engine {entry.kind!r}, or another name"
            raise InvalidRequest("server", name, remedy)
        return entry


def load_operator(path: Path | None) -> Operator:
    """Read the operator's file; without one nothing can be named. Raises UsageError naming file, field and value."""
    if path is None:
        return Operator()
    import yaml  # few services have such a file

    try:
        fields: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"WATTFRONT_OPERATOR_FILE is {str(path)!r}: {error.strerror}; correct the path") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"WATTFRONT_OPERATOR_FILE {path} is not YAML: {error}") from error
    try:
        return Operator.model_validate(fields or {})
    except ValidationError as error:
        words = complaint_of(error, Operator, what="the file")[1]
        raise UsageError(f"WATTFRONT_OPERATOR_FILE {path}: {words}") from error
