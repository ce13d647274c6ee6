"""Prompts as tokens: cut from a real text, made of a trace's shared blocks, or a file's own text; salted.

A salt replaces the first tokens of a prompt by others, drawn by salt, stream and request, so that no cache of prefixes
that a server kept from an earlier trial holds them: else every trial after the first would look better than it is, each
by another share. What hash ids share within a trace stays shared; prompts of text are salted each on its own, so that a
beginning that they have in common is not found. Knows nothing of how requests are served.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from tuner.errors import InvalidRequest
from tuner.request import WorkloadSpec
from tuner.traces import BLOCK_TOKENS, Clipping, Trace

#: Tokens of a prompt that a salt replaces: fewer than any server's block of cached tokens has.
SALT_TOKENS = 8
#: Tokens of shared blocks that are kept to be used again: 32 MiB.
_MAX_KEPT_TOKENS = 4 * 2**20

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPrompts:
    """The text of a file as tokens of one model."""

    prompts: tuple[Tokens, ...]
    #: 0 where neither file nor answer says how long an output is.
    output_tokens: tuple[int, ...]
    #: What was cut off, counted in tokens of this model.
    clipping: Clipping


def encode_texts(trace: Trace, spec: WorkloadSpec, encode: Callable[[str], Sequence[int]]) -> EncodedPrompts:
    """Return a trace's texts as a model's tokens, cut to what the workload asks for. Raises InvalidRequest."""
    most_in, most_out = spec.clip_prompt_tokens, spec.clip_output_tokens
    prompts, outputs = [], []
    cut_in, cut_out = [], []
    for row, (text, told) in enumerate(zip(trace.texts, trace.output_tokens, strict=True)):
        prompt = tuple(encode(text.prompt))
        if not prompt:
            remedy = f"the prompt of request {row + 1} has no tokens with this model's tokenizer; remove it"
            raise InvalidRequest("workload.trace_file", spec.trace_file, remedy)
        output = told or (0 if text.answer is None else max(1, len(encode(text.answer))))
        if most_in is not None and len(prompt) > most_in:
            cut_in.append(len(prompt) - most_in)
        if not told and most_out is not None and output > most_out:
            cut_out.append(output - most_out)
        prompts.append(prompt[:most_in])
        outputs.append(output if most_out is None else min(output, most_out))
    clipping = Clipping(
        num_prompts=len(cut_in),
        num_outputs=trace.clipping.num_outputs + len(cut_out),
        prompt_tokens=sum(cut_in),
        output_tokens=trace.clipping.output_tokens + sum(cut_out),
    )
    return EncodedPrompts(prompts=tuple(prompts), output_tokens=tuple(outputs), clipping=clipping)


def salted(prompt: Tokens, vocabulary: Sequence[int], key: str) -> Tokens:
    """Return a prompt of the same length that begins with tokens drawn by the key."""
    num_drawn = min(SALT_TOKENS, len(prompt))
    return _drawn(vocabulary, key, num_drawn) + prompt[num_drawn:]


def text_prompts(lengths: Iterator[int], corpus_ids: Sequence[int], *, stream: str, salt: str) -> Iterator[Tokens]:
    """Yield prompts of the given lengths, each a stretch of the text at a place of its own.

    The text goes on with its beginning where a prompt is longer than what is left of it.
    """
    draw = random.Random(f"{salt}/{stream}/places")
    corpus = tuple(corpus_ids)
    for number, length in enumerate(lengths):
        prompt = _stretch(corpus, draw.randrange(len(corpus)), length)
        yield salted(prompt, corpus, f"{salt}/{stream}/{number}") if salt else prompt


def trace_prompts(trace: Trace, corpus_ids: Sequence[int], *, stream: str, salt: str, repeat: bool) -> Iterator[Tokens]:
    """Yield the prompts of a trace's requests, in its order; equal block ids are equal tokens.

    A trace that begins anew has other tokens each time, as the trace itself says nothing of a second time. What no id
    stands for is each request's own.
    """
    blocks = trace.blocks
    if blocks is None:
        rows = (length for _ in _turns(repeat) for length in trace.prompt_tokens)
        yield from text_prompts(rows, corpus_ids, stream=stream, salt=salt)
        return
    corpus = tuple(corpus_ids)
    for turn in _turns(repeat):
        texts = _BlockTexts(corpus, f"{salt}/{stream}/{turn}")
        for row, length in enumerate(trace.prompt_tokens):
            prompt = tuple(token for block in blocks.of(row) for token in texts[block])
            missing = length - len(prompt)
            if missing > 0:
                key = f"{salt}/{stream}/{turn}/{row}/own"
                own = _stretch(corpus, random.Random(key).randrange(len(corpus)), missing)
                prompt += salted(own, corpus, key)
            yield prompt[:length]


def encoded_prompts(
    encoded: EncodedPrompts, corpus_ids: Sequence[int], *, stream: str, salt: str, repeat: bool
) -> Iterator[Tokens]:
    """Yield a file's prompts in its order."""
    corpus = tuple(corpus_ids)
    for turn in _turns(repeat):
        for row, prompt in enumerate(encoded.prompts):
            yield salted(prompt, corpus, f"{salt}/{stream}/{turn}/{row}") if salt else prompt


class _BlockTexts(dict[int, Tokens]):
    """Blocks of tokens by their id, kept while they are few; the same for the same key."""

    def __init__(self, corpus: Tokens, key: str) -> None:
        super().__init__()
        self._corpus = corpus
        self._key = key

    def __missing__(self, block: int) -> Tokens:
        if (len(self) + 1) * BLOCK_TOKENS > _MAX_KEPT_TOKENS:
            self.clear()
        key = f"{self._key}/{block}"
        stretch = _stretch(self._corpus, random.Random(key).randrange(len(self._corpus)), BLOCK_TOKENS)
        self[block] = tokens = salted(stretch, self._corpus, key)  # two stretches may begin at one place
        return tokens


def _turns(repeat: bool) -> Iterator[int]:
    return count() if repeat else iter(range(1))


def _drawn(vocabulary: Sequence[int], key: str, num_tokens: int) -> Tokens:
    draw = random.Random(f"{key}/salt").random
    size = len(vocabulary)
    return tuple(vocabulary[int(draw() * size)] for _ in range(num_tokens))


def _stretch(corpus: Tokens, start: int, length: int) -> Tokens:
    end = start + length
    if end <= len(corpus):
        return corpus[start:end]
    copies = -(-end // len(corpus))
    return (corpus * copies)[start:end]
