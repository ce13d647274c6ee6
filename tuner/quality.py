"""What a precision costs in output quality: the figures, and what they are told from. Pure.

Two texts are scored. Prompts of the job's own lengths, each with what the reference greedily makes of it: over the last
NUM_SCORED positions of each, KL divergence and top-1 agreement say how far a precision's next token is from the
reference's, and over the reference's own completion the perplexity ratio says how unlikely the precision finds it. And,
where the job names one, a text file of the user's, of which only the perplexity is told. Beside that it may name tasks
with known answers: each has a score, which is put beside the reference's.

Perplexity is exp(-mean log p(next token)). Knows nothing of engines and of what was measured before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from engine.errors import NumericsError
from engine.request import Request
from engine.serving import TokenScores
from tuner.errors import InvalidRequest
from tuner.measurement import Quality, TaskScore
from tuner.request import WorkloadSpec
from tuner.tasks import FIELD, TaskResult
from tuner.workload import requests

#: Raise it when the same outputs would give other figures.
VERSION = 1
#: Prompts of the job that are scored.
NUM_PROMPTS = 4
#: Tokens that the reference adds to each prompt at most.
NUM_COMPLETED = 32
#: Positions at the end of prompt and completion that are scored: those that have most of the context behind them. Kept
#: in full for a vocabulary of 150,000 they take 150 MB in files.
NUM_SCORED = 64
#: Tokens of the user's text that are scored, and the longest piece of it that is seen at once.
NUM_TEXT_TOKENS = 1024
TEXT_PIECE = 512
#: Bytes of the text file that are read; more than enough for those tokens.
_MAX_TEXT_BYTES = 64 * 1024
#: exp of more than this is no finite number.
_MAX_SURPRISE = 700.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What is scored of a job: prompts, and the user's text in pieces."""

    prompts: tuple[tuple[int, ...], ...]
    #: Tokens that each prompt is completed with.
    num_completed: tuple[int, ...]
    #: Of the text file; empty without one.
    pieces: tuple[tuple[int, ...], ...] = ()
    #: Hash of the tasks, and the context that decides which of their documents fit; none without tasks.
    tasks: tuple[str, int] | None = None

    @property
    def hash(self) -> str:
        """SHA-256 over everything that the figures depend on beside model and engine."""
        content = (VERSION, NUM_SCORED, self.prompts, self.num_completed, self.pieces)
        of_tasks = () if self.tasks is None else (self.tasks,)  # without tasks it is the hash of before there were any
        return hashlib.sha256(repr(content + of_tasks).encode()).hexdigest()

    def completion_requests(self) -> list[Request]:
        """Return the requests whose outputs are the completions, named by their place: greedy, and never shorter."""
        return [
            Request(request_id=f"quality/{place}", prompt_token_ids=prompt, max_tokens=count, ignore_eos=True)
            for place, (prompt, count) in enumerate(zip(self.prompts, self.num_completed, strict=True))
        ]


def sample_of(
    spec: WorkloadSpec,
    corpus_ids: Sequence[int],
    text_ids: Sequence[int] = (),
    *,
    max_context: int,
    tasks_hash: str | None = None,
) -> Sample:
    """Return what to score of a job, for an engine with so much context.

    The prompts are drawn as those of its requests are, and are none of them. Raises InvalidRequest as `requests` does.
    """
    drawn = list(islice(requests(spec, corpus_ids, stream="quality/"), NUM_PROMPTS))
    prompts = tuple(request.prompt_token_ids[: max_context - 1] for request in drawn)
    size = min(TEXT_PIECE, max_context)
    text = text_ids[:NUM_TEXT_TOKENS]
    pieces = (tuple(text[start : start + size]) for start in range(0, len(text), size))
    return Sample(
        prompts=prompts,
        num_completed=tuple(min(NUM_COMPLETED, max_context - len(prompt)) for prompt in prompts),
        pieces=tuple(piece for piece in pieces if len(piece) > 1),
        tasks=None if tasks_hash is None else (tasks_hash, max_context),
    )


def read_text(path: str) -> str:
    """Return the beginning of the user's text. Raises InvalidRequest for a file that is none or holds too little."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_TEXT_BYTES)
        text = content[: _last_character(content)].decode("utf-8")
    except OSError as error:
        raise InvalidRequest(
            "quality.text_file", path, f"{error.strerror}; give the path of a text file on the worker's machine"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            "quality.text_file", path, f"it is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from error
    if len(text.split()) < 2:
        raise InvalidRequest("quality.text_file", path, "it holds no two words; give some pages of text")
    return text


def compare(scores: Sequence[TokenScores], reference: Sequence[TokenScores], num_completed: Sequence[int]) -> Quality:
    """Compare what two precisions made of the same prompts, whose completions are so many tokens long.

    KL divergence is None where a prompt has none, agreement where an engine names no likeliest tokens: it shows only
    logprobs of the text it is given. Raises NumericsError when a perplexity is beyond all numbers: a precision that
    thinks so is broken.
    """
    completions = [_completion(one, count) for one, count in zip(scores, num_completed, strict=True)]
    expected = [_completion(one, count) for one, count in zip(reference, num_completed, strict=True)]
    pairs = list(zip(_tops(scores), _tops(reference), strict=True))
    perplexity = _perplexity(completions)
    return Quality(
        num_tokens=sum(num_completed),
        perplexity=perplexity,
        perplexity_ratio=perplexity / _perplexity(expected),
        top1_agreement=sum(a == b for a, b in pairs) / len(pairs) if pairs else None,
        kl=_mean_divergence(scores),
        num_positions=sum(len(one.logprobs) for one in scores),
        num_prompts=len(scores),
    )


def with_text(quality: Quality, pieces: Sequence[TokenScores]) -> Quality:
    """Add the perplexity of the user's text, of which these pieces were scored. Raises NumericsError as `compare`."""
    return dataclasses.replace(
        quality,
        text_perplexity=_perplexity([one.logprobs for one in pieces]),
        num_text_tokens=sum(len(one.logprobs) for one in pieces),
    )


def with_tasks(quality: Quality, results: Sequence[TaskResult], reference: Sequence[TaskResult]) -> Quality:
    """Add what a precision and its reference score on the same tasks.

    Raises InvalidRequest for a task of which the reference gets nothing right: no share can be told.
    """
    scores = []
    for one, expected in zip(results, reference, strict=True):
        if not expected.score > 0:  # NaN, too
            remedy = (
                f"{quality.reference} itself has {one.metric} {expected.score:g} there, of which no share can be told"
            )
            raise InvalidRequest(FIELD, one.task, f"{remedy}; leave it out")
        scores.append(
            TaskScore(
                task=one.task,
                metric=one.metric,
                score=one.score,
                reference_score=expected.score,
                num_documents=one.num_documents,
                num_too_long=one.num_too_long,
            )
        )
    return dataclasses.replace(quality, tasks=tuple(scores))


def _completion(scores: TokenScores, count: int) -> tuple[float, ...]:
    """Return the logprobs of the last `count` tokens. Raises ValueError when so many were not scored."""
    if len(scores.logprobs) < count:
        raise ValueError(f"{len(scores.logprobs)} tokens were scored, but the completion has {count}")
    return scores.logprobs[-count:]


def _tops(scores: Sequence[TokenScores]) -> list[int]:
    return [token for one in scores for token in one.top_token_ids]


def _mean_divergence(scores: Sequence[TokenScores]) -> float | None:
    found = [one.divergences for one in scores if one.divergences is not None]
    if len(found) < len(scores):
        return None
    values = list(chain.from_iterable(found))
    return math.fsum(values) / len(values)


def _perplexity(logprobs: Sequence[Sequence[float]]) -> float:
    surprise = -math.fsum(chain.from_iterable(logprobs)) / sum(len(one) for one in logprobs)
    if not surprise < _MAX_SURPRISE:  # NaN, too
        raise NumericsError(f"the mean log probability of a token is {-surprise:.4g}; choose a wider precision")
    return math.exp(surprise)


def _last_character(content: bytes) -> int:
    """Return where the last whole character ends, if the text was cut off at the most that is read."""
    end = len(content)
    if end == _MAX_TEXT_BYTES:
        while end and content[end - 1] & 0xC0 == 0x80:  # a continuation byte
            end -= 1
        end -= 1
    return end
