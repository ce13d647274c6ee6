"""What a precision costs in output quality: perplexity and agreement with fp32 on the job's own text.

Perplexity is exp(-mean log p(next token)); top-1 agreement is the share of positions at which both find the same most
likely token. Measured once per model and precision. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from engine.errors import NumericsError
from engine.serving import TokenScores
from tuner.measurement import Quality

#: The precision that others are compared with.
REFERENCE_PRECISION = "fp32"
#: Tokens of text that are scored.
NUM_TOKENS = 384
#: exp of more than this is no finite number.
_MAX_SURPRISE = 700.0


def score_text(
    score: Callable[[tuple[int, ...]], TokenScores], token_ids: Sequence[int], *, max_context: int
) -> TokenScores:
    """Score the text's first NUM_TOKENS tokens in pieces that fit the engine's context."""
    size = min(NUM_TOKENS, max_context)
    text = token_ids[:NUM_TOKENS]
    pieces = [tuple(text[start : start + size]) for start in range(0, len(text), size)]
    scored = [score(piece) for piece in pieces if len(piece) > 1]
    return TokenScores(
        top_token_ids=tuple(token for one in scored for token in one.top_token_ids),
        logprobs=tuple(logprob for one in scored for logprob in one.logprobs),
    )


def compare(scores: TokenScores, reference: TokenScores) -> Quality:
    """Compare two precisions' scores of the same text.

    Raises NumericsError when a perplexity is beyond all numbers: a precision that thinks so is broken.
    """
    pairs = zip(scores.top_token_ids, reference.top_token_ids, strict=True)
    perplexity = _perplexity(scores)
    return Quality(
        num_tokens=len(scores.logprobs),
        perplexity=perplexity,
        perplexity_ratio=perplexity / _perplexity(reference),
        top1_agreement=sum(a == b for a, b in pairs) / len(scores.top_token_ids),
    )


def _perplexity(scores: TokenScores) -> float:
    surprise = -math.fsum(scores.logprobs) / len(scores.logprobs)
    if not surprise < _MAX_SURPRISE:  # NaN, too
        raise NumericsError(f"the mean log probability of a token is {-surprise:.4g}; choose a wider precision")
    return math.exp(surprise)
