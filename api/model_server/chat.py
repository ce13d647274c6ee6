"""POST /v1/chat/completions: a chat made a prompt by the checkpoint's template, and the assistant's next message."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from api.model_server.answering import Answers, Piece
from api.model_server.api_errors import ApiError
from api.model_server.asked import ChatFields, read_fields, require_possible
from api.model_server.served_model import ServedModel, new_id, usage_of
from api.model_server.streaming import event_stream, unless_gone


async def chat(request: Request, body: bytes) -> Response:
    """Answer one request. Raises ApiError, CallerLeft."""
    model: ServedModel = request.app.state.model
    asked = read_fields(ChatFields, body)
    model.require(asked.model)
    max_tokens = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    require_possible(asked, max_tokens)
    if model.template is None:
        raise ApiError(
            f"{model.name} has no chat template; use /v1/completions, or start the server with --chat-template FILE"
        )
    text = model.template.prompt(asked.messages, is_open=asked.add_generation_prompt, values=asked.chat_template_kwargs)
    prompt = model.vocabulary.encode(text, adds_special=asked.add_special_tokens)
    limit = model.room_for(len(prompt), max_tokens, param="messages")
    answer_id = new_id("chatcmpl")
    answers = model.answers(answer_id, [prompt], asked, max_tokens=[limit])
    shape = _Shape(answer_id, model.name, asked, answers)
    if asked.stream:
        return await event_stream(request, answers, shape.chunks, shape.last)
    try:
        return await unless_gone(request, shape.whole())
    finally:
        answers.close()


class _Shape:
    """The answer to one request in OpenAI's form."""

    def __init__(self, answer_id: str, model: str, asked: ChatFields, answers: Answers) -> None:
        self._head = {"id": answer_id, "created": int(time.time()), "model": model}
        self._options = asked.options
        self._answers = answers
        self._num_tokens = 0
        self._has_begun = False

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """Return a chunk of the text; before the first one that of the role, as OpenAI does."""
        chunks = []
        if not self._has_begun:
            self._has_begun = True
            chunks.append(self._chunk({"role": "assistant", "content": ""}, None))
        self._num_tokens = piece.num_tokens
        chunks.append(self._chunk({"content": piece.text}, piece.finish_reason))
        return chunks

    def last(self) -> list[dict[str, Any]]:
        if not self._options.include_usage:
            return []
        return [{**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage()}]

    async def whole(self) -> Response:
        text, reason = "", None
        async for piece in self._answers.pieces():
            text += piece.text
            reason = piece.finish_reason
            self._num_tokens = piece.num_tokens
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        body = {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage()}
        return JSONResponse(body)

    def _chunk(self, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        return {**chunk, "usage": self._usage()} if self._options.continuous_usage_stats else chunk

    def _usage(self) -> dict[str, Any]:
        return usage_of(self._answers, self._num_tokens)
