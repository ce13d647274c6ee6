"""Tasks are answered by likelihood, over the tokens that a model of lm-eval's own would see."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from engine.serving import TokenScores
from engine.settings import EngineSettings
from tests.tuner.scripted import ScriptedEngine, StepClock
from tests.tuner.task_sets import choose, make_task
from tuner.errors import InvalidRequest
from tuner.tasks import Task, TaskResult, TaskSet


@dataclass(slots=True)
class Reader(ScriptedEngine):
    """Has a token for each character, finds every one as likely as the next, and notes what it is shown."""

    shown: list[tuple[str, str]] = field(default_factory=list)
    num_encoded: int = 0

    def encode(self, text: str) -> tuple[int, ...]:
        self.num_encoded += 1
        return tuple(text.encode())

    def score(
        self, token_ids: tuple[int, ...], *, num_last: int | None = None, keep: str | None = None,
        against: str | None = None,
    ) -> TokenScores:  # fmt: skip
        assert num_last is not None
        text = bytes(token_ids).decode()
        self.shown.append((text[:-num_last], text[-num_last:]))
        return TokenScores(top_token_ids=token_ids[-num_last:], logprobs=(-1.0,) * num_last)


def reader(max_context: int = 64) -> Reader:
    return Reader(EngineSettings(model="m", precision="fp32", max_context=max_context), StepClock(), [])


def results(task: Task, engine: Reader) -> tuple[TaskResult, ...]:
    return TaskSet([task], hash="").results(engine)


def test_the_likeliest_choice_is_the_answer() -> None:
    """Where every token is as likely, the shortest choice wins: right in one document of two."""
    task = make_task(choose("1 + 1 =", " 2", " three"), choose("2 + 2 =", " four", " 5"))
    assert results(task, reader()) == (TaskResult(task="facts", metric="acc", score=0.5, num_documents=2),)


def test_only_the_continuation_is_scored() -> None:
    """The engine sees context and continuation as one text and is asked about the continuation's tokens."""
    engine = reader()
    results(make_task(choose("a b", " c", " dd")), engine)
    assert engine.shown == [("a b", " c"), ("a b", " dd")]


def test_spaces_before_the_continuation_belong_to_it() -> None:
    """As in lm-eval's own models: tokens of words begin with their space."""
    engine = reader()
    results(make_task(choose("a b  ", "c")), engine)
    assert engine.shown == [("a b", "  c")]


def test_an_empty_context_is_a_new_line() -> None:
    """The first token of a continuation has something before it, so that all of the continuation is scored."""
    engine = reader()
    results(make_task(choose("", "word")), engine)
    assert engine.shown == [("\n", "word")]


def test_greedy_answers_are_told() -> None:
    """A metric of whether the continuation is what the engine would say counts its likeliest tokens."""
    assert results(make_task(choose("a", " b"), metric="greedy"), reader())[0].score == 1.0


def test_what_does_not_fit_is_left_out_whole() -> None:
    """A document is not cut: one choice that is too long leaves out the document, which is counted."""
    engine = reader(max_context=16)
    task = make_task(choose("short", " one", " three"), choose("short", " two", " far too long a choice"))
    (found,) = results(task, engine)
    assert (found.score, found.num_documents, found.num_too_long) == (1.0, 1, 1)
    assert len(engine.shown) == 2
    assert replace(found, num_documents=2, num_too_long=0) == results(task, reader())[0]


def test_a_task_of_which_nothing_fits_is_refused() -> None:
    """Nothing is told of a task without documents; the message names task, context and remedy."""
    with pytest.raises(InvalidRequest, match=r"quality.tasks is 'facts': .* context of 8 tokens; raise workload"):
        results(make_task(choose("much too long", " a")), reader(max_context=8))


def test_texts_are_encoded_once() -> None:
    """Every precision has the same tokens, so that a second engine is asked for scores alone."""
    tasks = TaskSet([make_task(choose("a b", " c"))], hash="")
    first, second = reader(), reader()
    assert tasks.results(first) == tasks.results(second)
    assert (first.num_encoded, second.num_encoded) == (2, 0)
