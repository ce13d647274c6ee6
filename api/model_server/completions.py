"""POST /v1/completions: prompts as text or tokens, each continued by itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from api.model_server.answering import Answers, Piece
from api.model_server.api_errors import ApiError
from api.model_server.asked import CompletionFields, read_fields, require_possible
from api.model_server.served_model import ServedModel, new_id, usage_of
from api.model_server.streaming import event_stream, unless_gone

_OBJECT = "text_completion"


async def complete(request: Request, body: bytes) -> Response:
    """Answer one request. Raises ApiError, CallerLeft."""
    model: ServedModel = request.app.state.model
    asked = read_fields(CompletionFields, body)
    model.require(asked.model)
    require_possible(asked, asked.max_tokens)
    prompts = _prompts(model, asked)
    limits = [model.room_for(len(prompt), asked.max_tokens, param="prompt") for prompt in prompts]
    answer_id = new_id("cmpl")
    echoes = [model.vocabulary.decode(prompt) for prompt in prompts] if asked.echo else [""] * len(prompts)
    answers = model.answers(answer_id, prompts, asked, max_tokens=limits)
    shape = _Shape(answer_id, model.name, asked, answers, echoes)
    if asked.stream:
        return await event_stream(request, answers, shape.chunks, shape.last)
    try:
        return await unless_gone(request, shape.whole())
    finally:
        answers.close()


def _prompts(model: ServedModel, asked: CompletionFields) -> list[tuple[int, ...]]:
    """Return each prompt's tokens. Raises ApiError for tokens that the vocabulary does not have."""
    prompt = asked.prompt
    listed: Sequence[str | int | list[int]] = [prompt] if isinstance(prompt, str) else prompt
    if not listed:
        raise ApiError("prompt is an empty list; give at least one prompt", param="prompt")
    if isinstance(listed[0], int):
        listed = [[token for token in listed if isinstance(token, int)]]
    prompts = []
    for one in listed:
        if isinstance(one, str):
            prompts.append(model.vocabulary.encode(one, adds_special=asked.add_special_tokens))
        elif isinstance(one, list):
            require_known(one, model.vocab_size, param="prompt")
            prompts.append(tuple(one))
    return prompts


def require_known(token_ids: Sequence[int], vocab_size: int, *, param: str) -> None:
    """Raise ApiError for a token that the model does not have."""
    strange = next((token for token in token_ids if not 0 <= token < vocab_size), None)
    if strange is not None:
        raise ApiError(f"{param} has token {strange}; the vocabulary has 0 to {vocab_size - 1}", param=param)


class _Shape:
    """The answers to one request in OpenAI's form."""

    def __init__(
        self, answer_id: str, model: str, asked: CompletionFields, answers: Answers, echoes: Sequence[str]
    ) -> None:
        self._head = {"id": answer_id, "object": _OBJECT, "created": int(time.time()), "model": model}
        self._options = asked.options
        self._answers = answers
        self._to_echo = dict(enumerate(echoes))
        self._num_tokens = [0] * len(echoes)

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        self._num_tokens[piece.index] = piece.num_tokens
        text = self._to_echo.pop(piece.index, "") + piece.text
        chunk = {**self._head, "choices": [_choice(piece.index, text, piece.finish_reason)]}
        if self._options.continuous_usage_stats:
            chunk["usage"] = self._usage()
        return [chunk]

    def last(self) -> list[dict[str, Any]]:
        return [{**self._head, "choices": [], "usage": self._usage()}] if self._options.include_usage else []

    async def whole(self) -> Response:
        texts = [self._to_echo[index] for index in range(len(self._num_tokens))]
        reasons: list[str | None] = [None] * len(texts)
        async for piece in self._answers.pieces():
            texts[piece.index] += piece.text
            reasons[piece.index] = piece.finish_reason
            self._num_tokens[piece.index] = piece.num_tokens
        choices = [_choice(index, text, reasons[index]) for index, text in enumerate(texts)]
        return JSONResponse({**self._head, "choices": choices, "usage": self._usage()})

    def _usage(self) -> dict[str, Any]:
        return usage_of(self._answers, sum(self._num_tokens))


def _choice(index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
