"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from api.model_server.api_errors import ApiError
from api.model_server.asked import Message, json_object, validated
from api.model_server.completions import require_known
from api.model_server.served_model import ServedModel


class TokenizeFields(BaseModel):
    """A text, or a chat."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    return_token_strs: bool = False


class DetokenizeFields(BaseModel):
    """Tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = None
    tokens: list[int]


async def tokenize(request: Request, body: bytes) -> Response:
    """Return a text's or a chat's tokens. Raises ApiError."""
    model: ServedModel = request.app.state.model
    asked = validated(TokenizeFields, json_object(body))
    model.require(asked.model)
    if (asked.prompt is None) == (asked.messages is None):
        raise ApiError("give either prompt or messages", param="prompt")
    if asked.messages is None:
        text, adds_special = asked.prompt or "", asked.add_special_tokens is not False
    elif model.template is None:
        raise ApiError(f"{model.name} has no chat template; give prompt instead", param="messages")
    else:
        text = model.template.prompt(
            asked.messages, is_open=asked.add_generation_prompt, values=asked.chat_template_kwargs
        )
        adds_special = asked.add_special_tokens is True
    token_ids = model.vocabulary.encode(text, adds_special=adds_special)
    spelled = [model.vocabulary.token(token) for token in token_ids] if asked.return_token_strs else None
    return JSONResponse(
        {
            "count": len(token_ids),
            "max_model_len": model.info.max_context,
            "tokens": token_ids,
            "token_strs": spelled,
        }
    )


async def detokenize(request: Request, body: bytes) -> Response:
    """Return the text of tokens, special ones included. Raises ApiError."""
    model: ServedModel = request.app.state.model
    asked = validated(DetokenizeFields, json_object(body))
    model.require(asked.model)
    require_known(asked.tokens, model.vocab_size, param="tokens")
    return JSONResponse({"prompt": model.vocabulary.decode_all(asked.tokens)})
