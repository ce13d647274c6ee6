"""The model that is served: its name, its engine, and requests made ready for it. Knows nothing of HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from api.model_server.answering import Answers
from api.model_server.api_errors import ApiError, ModelNotFound
from api.model_server.asked import Sampling
from api.model_server.chat_template import ChatTemplate
from api.model_server.engine_thread import EngineThread
from api.model_server.metrics import ModelMetrics
from api.model_server.output_text import OutputText
from api.model_server.vocabulary import Vocabulary
from engine.request import Request
from engine.settings import PRIORITY, EngineInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """Everything that an answer needs."""

    name: str
    info: EngineInfo
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    vocabulary: Vocabulary
    template: ChatTemplate | None
    thread: EngineThread
    metrics: ModelMetrics
    #: Seconds since 1970 at which it was opened.
    created: int
    #: Whether its engine tells requests apart by their class.
    has_classes: bool = False

    def require(self, name: str | None) -> None:
        """Raise ModelNotFound for the name of another model."""
        if name is not None and name != self.name:
            raise ModelNotFound(
                f"model is {name!r}, and this server has {self.name!r}; ask for that",
                param="model",
                code="model_not_found",
            )

    def room_for(self, num_prompt: int, max_tokens: int | None, *, param: str) -> int:
        """Return how many tokens an answer may have at most. Raises ApiError where prompt and answer do not fit."""
        limit = self.info.max_context
        wanted = limit - num_prompt if max_tokens is None else max_tokens
        if num_prompt < 1:
            raise ApiError(f"{param} is empty; give at least one token", param=param)
        if wanted < 1 or num_prompt + wanted > limit:
            asked = "at least 1" if max_tokens is None else str(max_tokens)
            raise ApiError(
                f"{num_prompt} prompt tokens and {asked} of output are more than the context of {limit} tokens; "
                "shorten the prompt or ask for less",
                param=param,
                code="context_length_exceeded",
            )
        return wanted

    def answers(
        self, answer_id: str, prompts: Sequence[tuple[int, ...]], asked: Sampling, *, max_tokens: Sequence[int]
    ) -> Answers:
        """Hand prompts to the engine. Raises ApiError."""
        if asked.priority and not self.has_classes:
            raise ApiError(
                f"priority is {asked.priority}, and this server has no classes; leave it out, or start it with "
                f"--policy {PRIORITY}",
                param="priority",
            )
        requests = [
            Request(
                request_id=f"{answer_id}-{index}",
                prompt_token_ids=prompt,
                max_tokens=limit,
                temperature=asked.temperature,
                top_p=asked.top_p,
                seed=asked.seed,
                stop=asked.stop,
                ignore_eos=asked.ignore_eos,
                priority=asked.priority,
            )
            for index, (prompt, limit) in enumerate(zip(prompts, max_tokens, strict=True))
        ]
        texts = [OutputText(request, self.vocabulary.stream(), self.eos_token_ids) for request in requests]
        return Answers(self.thread, self.metrics, requests, texts)


def new_id(prefix: str) -> str:
    """Return an id that no other answer has; an answer without a seed is drawn by it."""
    return f"{prefix}-{uuid.uuid4().hex}"


def usage_of(answers: Answers, num_output: int) -> dict[str, Any]:
    """Return token counts in OpenAI's form: what was found in a prefix cache once all answers are complete."""
    num_prompt = answers.num_prompt_tokens
    usage = {"prompt_tokens": num_prompt, "completion_tokens": num_output, "total_tokens": num_prompt + num_output}
    if (num_cached := answers.num_cached_tokens) is None:
        return usage
    return {**usage, "prompt_tokens_details": {"cached_tokens": num_cached}}
