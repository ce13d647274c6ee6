"""Requests of a file: when each came, how long its prompt and output were, what its text was, what it shared.

The records that every reader of a format fills and every load is made from. Knows nothing of formats, nor of files.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

from tuner.request import MAX_TOKENS

#: Bytes of text that a token stands for where no tokenizer is at hand. OpenAI's rule of thumb for English: about four
#: characters a token.
BYTES_PER_TOKEN = 4
#: Tokens of a block of a prompt that a Mooncake trace names by a hash (FAST25-release/README.md of that project).
BLOCK_TOKENS = 512
#: Prompts of text that are kept of one file.
MAX_TEXTS = 20_000
#: More tokens of a text than a byte each, for those that a tokenizer puts before and behind it.
_MARKS = 8
_SHOWN = 80


class RowFault(Exception):
    """Correct or remove the row; column is empty where the row as a whole is wrong, value where there is none."""

    def __init__(self, column: str, value: object, expected: str, words: str, *, entry: int | None = None) -> None:
        super().__init__(words)
        self.column = column
        self.value = value
        self.expected = expected
        #: Of a JSON array, from 1 on, where lines say nothing.
        self.entry = entry


class FileFault(Exception):
    """Do what the message says: the file as a whole is no use as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A prompt as text; tokens are made of it by the model's own tokenizer."""

    prompt: str
    #: What was answered: where the file does not say how many tokens an output has, as many as this has.
    answer: str | None = None

    @property
    def most_tokens(self) -> int:
        """No tokenizer that goes down to bytes makes more tokens of the prompt."""
        return _most_tokens(self.prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipping:
    """What was cut off requests that were longer than asked for."""

    num_prompts: int = 0
    num_outputs: int = 0
    #: Tokens that were cut off in all; of text whose tokens were not counted yet, estimated.
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Which blocks of BLOCK_TOKENS tokens prompts begin with: equal ids stand for equal tokens."""

    ids: array[int]
    #: Where each request's ids end in `ids`; they begin where those of the request before it end.
    ends: array[int]

    def of(self, row: int) -> array[int]:
        """Return the ids of a request's blocks, first to last; none where it shares nothing."""
        return self.ids[self.ends[row - 1] if row else 0 : self.ends[row]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Requests in order of time, or of the file where it has no times; each is what it is by identity."""

    #: What the file was recognised as.
    form: str
    #: Seconds from the first request; empty where the file has no times.
    offsets_s: array[float]
    #: Of text, estimated at BYTES_PER_TOKEN.
    prompt_tokens: array[int]
    #: 0 where the file does not say.
    output_tokens: array[int]
    #: Of the file, so that a workload's fingerprint knows its content.
    sha256: str
    #: Largest prompt plus output of one request, of those whose output is known; of text, as many as there can be.
    longest_tokens: int
    #: Largest prompt of those whose output is not known; 0 without any.
    longest_untold_tokens: int = 0
    #: Prompts as text, or nothing.
    texts: tuple[Text, ...] = ()
    blocks: Blocks | None = None
    #: What became of rows that were not taken as they stand, in words.
    notes: tuple[str, ...] = ()
    clipping: Clipping = Clipping()

    @property
    def has_times(self) -> bool:
        """Whether it can be replayed."""
        return bool(self.offsets_s)

    @property
    def num_requests(self) -> int:
        """Return how many requests it has."""
        return len(self.prompt_tokens)

    @property
    def period_s(self) -> float:
        """Seconds after which it may begin anew: from the first request to the last, and one mean gap."""
        span_s = self.offsets_s[-1]
        return span_s + span_s / (len(self.offsets_s) - 1)


class RowReader(Protocol):
    """Reads the lines of one format."""

    def take(self, line: str) -> None:
        """Read one line; of CSV, one after the header. Raises RowFault."""

    def finish(self, sha256: str) -> Trace:
        """Return what was read. Raises RowFault for what only the end shows, FileFault."""

    @property
    def form(self) -> str:
        """What the file is."""

    @property
    def num_rows(self) -> int:
        """Return how many requests were read so far."""


class TraceBuilder:
    """Collects requests row by row in little room."""

    def __init__(self, form: str) -> None:
        self.form = form
        self._times_s = array("d")
        self._prompt_tokens = array("l")
        self._output_tokens = array("l")
        self._texts: list[Text] = []
        self._ids, self._ends = array("q"), array("q")
        self._notes: Counter[str] = Counter()
        self._num_seen = 0
        #: Always the same, so that a file gives the same sample however often it is read.
        self._draw = random.Random(form)

    @property
    def num_rows(self) -> int:
        """Return how many requests were taken in."""
        return len(self._prompt_tokens)

    @property
    def is_timed(self) -> bool:
        """Whether requests have times so far."""
        return bool(self._times_s)

    def note(self, words: str) -> None:
        """Count a row that was not taken as it stands; `words` go behind the number."""
        self._notes[words] += 1

    def add(self, time_s: float | None, prompt: int, output: int, *, block_ids: Sequence[int] = ()) -> None:
        """Take in a request by its lengths; all have a time or none has."""
        if time_s is not None:
            self._times_s.append(time_s)
        self._prompt_tokens.append(prompt)
        self._output_tokens.append(output)
        self._ids.extend(block_ids)
        self._ends.append(len(self._ids))

    def add_text(self, time_s: float | None, text: Text, output: int) -> None:
        """Take in a request by its text; without times, a sample of MAX_TEXTS is kept. Raises FileFault."""
        text = self._mended(text)
        prompt = estimated_tokens(text.prompt)
        self._num_seen += 1
        if len(self._texts) < MAX_TEXTS:
            self.add(time_s, prompt, output)
            self._texts.append(text)
            return
        if time_s is not None:
            raise FileFault(f"it has more than {MAX_TEXTS} requests of text with times; cut out the stretch you mean")
        place = self._draw.randrange(self._num_seen)
        if place < MAX_TEXTS:
            self._prompt_tokens[place], self._output_tokens[place], self._texts[place] = prompt, output, text

    def finish(self, sha256: str) -> Trace:
        """Return the trace. Raises FileFault where nothing, or nothing that lasts, was taken in."""
        if not self.num_rows:
            dropped = "; ".join(self._words())
            raise FileFault(f"it has no requests{f' ({dropped})' if dropped else ''}; give a file that has some")
        times_s, order = self._times_s, None
        if any(later < earlier for earlier, later in pairwise(times_s)):
            order = sorted(range(len(times_s)), key=times_s.__getitem__)  # stable: equal times stay as they stand
            self._notes["rows stood before earlier ones and were put in order of time"] = sum(
                later < earlier for earlier, later in pairwise(times_s)
            )
            times_s = array("d", (times_s[row] for row in order))
        if times_s and times_s[0] == times_s[-1]:
            raise FileFault("it needs two requests at different times at least")
        begun_s = times_s[0] if times_s else 0.0
        trace = Trace(
            form=self.form,
            offsets_s=array("d", (time_s - begun_s for time_s in times_s)),
            prompt_tokens=_ordered(self._prompt_tokens, order),
            output_tokens=_ordered(self._output_tokens, order),
            sha256=sha256,
            longest_tokens=0,
            texts=tuple(self._texts if order is None else (self._texts[row] for row in order if self._texts)),
            blocks=self._blocks(order),
            notes=tuple(self._words()),
        )
        return _with_longest(trace, None, None)

    def _mended(self, text: Text) -> Text:
        """Return the text without halves of characters, which JSON can hold and no tokenizer takes."""
        mended = Text(prompt=_mended(text.prompt), answer=None if text.answer is None else _mended(text.answer))
        if mended != text:
            self.note("requests had half a character in their text; a question mark stands in its place")
        return mended

    def _blocks(self, order: Sequence[int] | None) -> Blocks | None:
        if not self._ids:
            return None
        blocks = Blocks(ids=self._ids, ends=self._ends)
        if order is None:
            return blocks
        ids, ends = array("q"), array("q")
        for row in order:
            ids.extend(blocks.of(row))
            ends.append(len(ids))
        return Blocks(ids=ids, ends=ends)

    def _words(self) -> list[str]:
        words = [f"{count} {told}" for told, count in self._notes.items()]
        if self._num_seen > len(self._texts):
            words.append(f"{len(self._texts)} of {self._num_seen} prompts are kept, drawn at random, always the same")
        return words


@lru_cache(maxsize=8)
def clipped(trace: Trace, prompt_tokens: int | None, output_tokens: int | None) -> Trace:
    """Return the trace with no prompt and no output longer than asked for, and what that cut off."""
    if prompt_tokens is None and output_tokens is None:
        return trace
    num_prompts, cut_prompts, prompts = _cut(trace.prompt_tokens, prompt_tokens)
    num_outputs, cut_outputs, outputs = _cut(trace.output_tokens, output_tokens)
    cut = replace(
        trace,
        prompt_tokens=prompts,
        output_tokens=outputs,
        clipping=Clipping(
            num_prompts=num_prompts, num_outputs=num_outputs, prompt_tokens=cut_prompts, output_tokens=cut_outputs
        ),
    )
    return _with_longest(cut, prompt_tokens, output_tokens)


def estimated_tokens(text: str) -> int:
    """Return about how many tokens a text has: one for BYTES_PER_TOKEN bytes, one at least."""
    return max(1, -(-len(_mended(text).encode()) // BYTES_PER_TOKEN))


def require_tokens(column: str, kind: str, count: int) -> None:
    """Refuse a length of a prompt or an output that no request has. Raises RowFault."""
    if not 1 <= count <= MAX_TOKENS:
        words = f"its {kind} has {count} tokens; give 1 to {MAX_TOKENS}, or remove the row"
        raise RowFault(column, count, f"1 to {MAX_TOKENS}", words)


def wrong(column: str, value: object, expected: str) -> RowFault:
    """Return the fault of a value that is not what it should be."""
    return RowFault(column, value, expected, f"{column} is {str(value)[:_SHOWN]!r}; give {expected}")


def _ordered(values: array[int], order: Sequence[int] | None) -> array[int]:
    return values if order is None else array(values.typecode, (values[row] for row in order))


def _cut(lengths: array[int], most: int | None) -> tuple[int, int, array[int]]:
    """Return how many lengths were cut, by how much in all, and the lengths."""
    if most is None:
        return 0, 0, lengths
    over = [length - most for length in lengths if length > most]
    return len(over), sum(over), array(lengths.typecode, (min(length, most) for length in lengths))


def _with_longest(trace: Trace, prompt_tokens: int | None, output_tokens: int | None) -> Trace:
    """Return the trace with its longest requests told; of text that is clipped no more than what it is clipped to."""
    prompts: Sequence[int] = trace.prompt_tokens
    outputs: Sequence[int] = trace.output_tokens
    if trace.texts:
        prompts = [min(text.most_tokens, prompt_tokens or MAX_TOKENS) for text in trace.texts]
        answers = (0 if text.answer is None else _most_tokens(text.answer) for text in trace.texts)
        outputs = [
            output or min(answer, output_tokens or MAX_TOKENS)
            for output, answer in zip(trace.output_tokens, answers, strict=True)
        ]
    told = (prompt + output for prompt, output in zip(prompts, outputs, strict=True) if output)
    untold = (prompt for prompt, output in zip(prompts, outputs, strict=True) if not output)
    return replace(trace, longest_tokens=max(told, default=0), longest_untold_tokens=max(untold, default=0))


def _mended(text: str) -> str:
    return text if text.isascii() else text.encode(errors="replace").decode()


def _most_tokens(text: str) -> int:
    return len(text.encode()) + _MARKS
