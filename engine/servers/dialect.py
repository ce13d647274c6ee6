"""How a server of one kind wants to be asked for a continuation: the body of a request.

Every kind speaks the OpenAI API; a dialect says where it departs from it. Knows nothing of connections or answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from engine.errors import InvalidSettings
from engine.request import Request

#: What a JSON text can hold.
JSON: TypeAlias = "str | int | float | bool | list[JSON] | dict[str, JSON] | None"
#: Text of a prompt's tokens.
TextOf = Callable[[tuple[int, ...]], str]

#: Path below the server's address, by API.
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What a server takes beside the plain fields."""

    #: `completions`, or `chat` for servers that have only that.
    api: str = "completions"
    #: Whether a prompt may be token ids (completions only); text otherwise.
    takes_token_ids: bool = False
    #: Field of the most tokens to generate; some chat servers want `max_completion_tokens`.
    num_tokens_field: str = "max_tokens"
    #: Goes into `stream_options`; empty for servers that refuse the field. `continuous_usage_stats` makes a server
    #: that has it count tokens in every chunk.
    usage_options: tuple[tuple[str, JSON], ...] = (("include_usage", True),)
    #: Sent with every request.
    extra_body: tuple[tuple[str, JSON], ...] = ()
    #: Sent with requests that go on after the end-of-sequence token.
    ignore_eos_body: tuple[tuple[str, JSON], ...] = (("ignore_eos", True),)
    #: Takes the request's `max_tokens`, too, where it goes on after the end-of-sequence token (`min_tokens`).
    min_tokens_field: str | None = None

    def __post_init__(self) -> None:
        """Refuse an API that no server has, naming the value."""
        if self.api not in PATHS:
            raise InvalidSettings(f"api is {self.api!r}; choose one of {', '.join(PATHS)}")
        if self.api == "chat" and self.takes_token_ids:
            raise InvalidSettings(
                "takes_token_ids is True with api 'chat'; a message is text: choose api 'completions'"
            )

    @property
    def path(self) -> str:
        """Path below the server's address."""
        return PATHS[self.api]

    def body(self, request: Request, *, model: str, text_of: TextOf | None) -> dict[str, Any]:
        """Return the JSON body that asks for a stream.

        `text_of` is needed where the server takes no token ids; raises InvalidSettings without.
        """
        body: dict[str, Any] = {
            "model": model,
            self.num_tokens_field: request.max_tokens,
            "temperature": request.temperature,
            "stream": True,
        }
        if self.api == "chat":
            body["messages"] = [{"role": "user", "content": self._text(request, text_of)}]
        else:
            body["prompt"] = list(request.prompt_token_ids) if self.takes_token_ids else self._text(request, text_of)
        if self.usage_options:
            body["stream_options"] = dict(self.usage_options)
        if request.temperature > 0.0:
            body["top_p"] = request.top_p
        if request.seed is not None:
            body["seed"] = request.seed
        if request.stop:
            body["stop"] = list(request.stop)
        if request.ignore_eos:
            body |= dict(self.ignore_eos_body)
            if self.min_tokens_field is not None:
                body[self.min_tokens_field] = request.max_tokens
        return body | dict(self.extra_body)

    def _text(self, request: Request, text_of: TextOf | None) -> str:
        if text_of is None:
            raise InvalidSettings(
                f"request {request.request_id} is token ids, but this server takes text; give text_of or a tokenizer"
            )
        return text_of(request.prompt_token_ids)
