"""The body of a request for text, checked: what the engine has is read, what it lacks is refused by name.

A field that would change the answer is never ignored. Knows nothing of prompts' tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from api.complaints import cut, shown
from api.model_server.api_errors import ApiError
from engine.request import LOWEST_PRIORITY

#: Values of fields that the engine lacks with which nothing is asked of it.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "use_beam_search": (False,),
    "stop_token_ids": ([],),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
}
#: Fields that say who asks, and nothing of the answer.
_ABOUT_THE_CALLER = ("user", "store", "metadata", "service_tier", "request_id", "cache_salt", "safety_identifier",
                     "prompt_cache_key")  # fmt: skip
_Fields = TypeVar("_Fields", bound="Sampling")
_Model = TypeVar("_Model", bound=BaseModel)


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


_StopString = Annotated[str, Field(min_length=1)]


class StreamOptions(BaseModel):
    """What a stream says beside the text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Sampling(BaseModel):
    """What both kinds of requests have."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63)] = None
    stop: Annotated[tuple[_StopString, ...], Field(max_length=16), BeforeValidator(_as_tuple)] = ()
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0)] = 0
    priority: Annotated[int, Field(ge=0, le=LOWEST_PRIORITY)] = 0
    stream: bool = False
    stream_options: StreamOptions | None = None

    @property
    def options(self) -> StreamOptions:
        """What a stream says beside the text."""
        return self.stream_options or StreamOptions()


class CompletionFields(Sampling):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: Annotated[int, Field(ge=1)] = 16
    echo: bool = False
    add_special_tokens: bool = True


class Message(BaseModel):
    """One message of a chat; its content is text, also in parts."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None


class ChatFields(Sampling):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)


def read_fields(kind: type[_Fields], body: bytes) -> _Fields:
    """Return the fields of a body. Raises ApiError naming the field, the value and what to do."""
    asked = validated(kind, json_object(body))
    for name, value in (asked.model_extra or {}).items():
        if name not in _ABOUT_THE_CALLER and not _is_neutral(name, value):
            raise ApiError(_lacking(name, value), param=name)
    return asked


def validated(kind: type[_Model], fields: Mapping[str, Any]) -> _Model:
    """Return fields as a record; null is the same as not given. Raises ApiError."""
    try:
        return kind.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise _complaint(error) from error


def require_possible(asked: Sampling, max_tokens: int | None) -> None:
    """Refuse combinations of fields that the engine cannot serve, with ApiError."""
    if asked.stream_options is not None and not asked.stream:
        raise ApiError("stream_options is given, but stream is false; leave it out", param="stream_options")
    if asked.min_tokens and not asked.ignore_eos:
        raise ApiError(
            f"min_tokens is {asked.min_tokens}: the engine keeps an answer going only with ignore_eos; set that, too",
            param="min_tokens",
        )
    if max_tokens is not None and asked.min_tokens > max_tokens:
        raise ApiError(f"min_tokens is {asked.min_tokens}, above max_tokens {max_tokens}", param="min_tokens")


def json_object(body: bytes) -> Mapping[str, Any]:
    """Return the JSON object of a body. Raises ApiError."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is no JSON: {error}; send one JSON object in UTF-8") from error
    if not isinstance(found, dict):
        raise ApiError("the body is no JSON object; send one")
    return found


def _is_neutral(name: str, value: Any) -> bool:
    return value in NEUTRAL.get(name, ())


def _lacking(name: str, value: Any) -> str:
    if name not in NEUTRAL:
        return f"{cut(name)} is not a field of this endpoint; leave it out"
    return f"{name} is {shown(value)}, which the embedded engine does not have; leave it out"


def _complaint(error: ValidationError) -> ApiError:
    """Return the first complaint, of a field that may have several types the one that is last."""
    first = error.errors()[0]
    name = str(first["loc"][0])
    if first["type"] == "missing":
        return ApiError(f"{name} is missing; give it", param=name)
    if name == "prompt":
        words = "give a text, a list of texts, a list of token ids or a list of lists of them"
    else:
        words = f"{first['msg'][0].lower()}{first['msg'][1:]}"
    place = ".".join(str(part) for part in first["loc"]) if name != "prompt" else name
    return ApiError(f"{place} is {shown(first['input'])}: {words}", param=name)
