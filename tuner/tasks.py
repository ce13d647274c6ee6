"""Tasks with known answers, put to an engine that scores a given text: what it gets right, by the task's own metric.

Where tasks come from is `tuner.lm_tasks`' business; an engine that is asked in vain for a context so long has the
document left out. Knows nothing of references and limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.serving import ServingEngine
from tuner.errors import InvalidRequest

FIELD = "quality.tasks"
#: Stands for a context that is empty: the first token of a text has nothing before it that it could be scored from.
_EMPTY = "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What an engine scores on one task."""

    task: str
    #: The task's first metric of which more is better.
    metric: str
    score: float
    num_documents: int
    #: Documents left out because they do not fit into the engine's context.
    num_too_long: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document of a task: what is scored, and what that makes of each metric."""

    #: Contexts, each with the continuation whose likelihood is asked.
    questions: tuple[tuple[str, str], ...]
    #: Of the log-likelihoods, each with whether the continuation is the likeliest one.
    judge: Callable[[list[tuple[float, bool]]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task with its documents at hand."""

    name: str
    metric: str
    documents: tuple[Document, ...]
    #: Of the metric's value of every document.
    aggregate: Callable[[list[Any]], float]


#: Token ids of a context with its continuation, and how many of them are the continuation's.
_Pair = tuple[tuple[int, ...], int]


class TaskSet:
    """The tasks of one job, ready to be put to any engine with the same tokens and context."""

    def __init__(self, tasks: Sequence[Task], *, hash: str) -> None:  # noqa: A002 - the word of `Sample.hash`
        self._tasks = tuple(tasks)
        #: SHA-256 over all that the scores depend on beside the engine: questions, answers, metrics and the package.
        self.hash = hash
        #: By context and continuation; encoding asks the engine's process.
        self._pairs: dict[tuple[str, str], _Pair] = {}

    def results(self, serving: ServingEngine) -> tuple[TaskResult, ...]:
        """Return what an engine scores on each task.

        Documents that do not fit into its context are left out, and counted. Raises InvalidRequest when none of a
        task's fits, NumericsError when a logit is not finite.
        """
        return tuple(self._result(task, serving) for task in self._tasks)

    def _result(self, task: Task, serving: ServingEngine) -> TaskResult:
        most = serving.info.max_context
        values = []
        for document in task.documents:
            pairs = [self._pair(serving, *question) for question in document.questions]
            if max(len(token_ids) for token_ids, _ in pairs) <= most:
                values.append(document.judge([_answer(serving, *pair) for pair in pairs])[task.metric])
        if not values:
            remedy = f"none of its documents fits into a context of {most} tokens; raise workload.prompt_tokens"
            raise InvalidRequest(FIELD, task.name, remedy)
        return TaskResult(
            task=task.name,
            metric=task.metric,
            score=float(task.aggregate(values)),
            num_documents=len(values),
            num_too_long=len(task.documents) - len(values),
        )

    def _pair(self, serving: ServingEngine, context: str, continuation: str) -> _Pair:
        """Encode as lm-eval's own models do: both at once, so that tokens are those of the whole text.

        Spaces at the context's end go to the continuation, as they do there (`TemplateLM._encode_pair`).
        """
        if (context, continuation) not in self._pairs:
            before = context.rstrip()
            after = context[len(before) :] + continuation
            before = before or _EMPTY
            whole, num_before = serving.encode(before + after), len(serving.encode(before))
            self._pairs[context, continuation] = (whole, max(len(whole) - num_before, 1))
        return self._pairs[context, continuation]


def _answer(serving: ServingEngine, token_ids: tuple[int, ...], num_last: int) -> tuple[float, bool]:
    scores = serving.score(token_ids, num_last=num_last)
    return math.fsum(scores.logprobs), scores.top_token_ids == token_ids[-num_last:]
