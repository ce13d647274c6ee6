"""Tasks that need no package: questions with choices, of which one is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from tuner.tasks import Document, Task, TaskSet


def choose(context: str, *choices: str, right: int = 0) -> Document:
    """Return a document that is answered by the choice with the highest log-likelihood."""

    def judge(answers: list[tuple[float, bool]]) -> Mapping[str, Any]:
        best = max(range(len(answers)), key=lambda place: answers[place][0])
        return {"acc": float(best == right), "greedy": float(answers[right][1])}

    return Document(questions=tuple((context, choice) for choice in choices), judge=judge)


def make_task(*documents: Document, name: str = "facts", metric: str = "acc") -> Task:
    return Task(name=name, metric=metric, documents=documents, aggregate=fmean)


def make_tasks(names: Sequence[str] = ("facts",), limit: int = 200) -> TaskSet:
    """Stand in for `tuner.lm_tasks.open_tasks`: tasks of two documents, answered by the shorter choice."""
    documents = (choose("to be or", " not", " never"), choose("not to", " be", " b", right=1))
    return TaskSet([make_task(*documents, name=name) for name in names], hash=f"{list(names)} {limit}")
