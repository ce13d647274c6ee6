"""Perplexity and agreement, of texts with known probabilities."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import NumericsError
from engine.serving import TokenScores
from tuner.quality import NUM_TOKENS, compare, score_text

logprobs = st.lists(st.floats(min_value=-600.0, max_value=0.0), min_size=1, max_size=20)


def make_scores(*values: float, top: tuple[int, ...] | None = None) -> TokenScores:
    return TokenScores(top_token_ids=top or (7,) * len(values), logprobs=values)


class Scorer:
    """Scores every token alike and remembers the pieces it was given."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, ...]] = []

    def __call__(self, token_ids: tuple[int, ...]) -> TokenScores:
        self.pieces.append(token_ids)
        return TokenScores(top_token_ids=token_ids[1:], logprobs=(-1.0,) * (len(token_ids) - 1))


def test_perplexity_is_the_inverse_of_the_mean_probability() -> None:
    """A model that gives every next token a quarter has a perplexity of 4, twice that of one that gives a half."""
    shown = compare(make_scores(*[math.log(0.25)] * 5), make_scores(*[math.log(0.5)] * 5))
    assert pytest.approx((5, 4.0, 2.0)) == (shown.num_tokens, shown.perplexity, shown.perplexity_ratio)


def test_agreement_is_the_share_of_equal_choices() -> None:
    """Of four positions at which three choices are the same, the agreement is three quarters."""
    values = (-1.0,) * 4
    shown = compare(make_scores(*values, top=(1, 2, 3, 4)), make_scores(*values, top=(1, 2, 9, 4)))
    assert shown.top1_agreement == 0.75


@settings(deadline=None)
@given(values=logprobs)
def test_a_precision_costs_nothing_against_itself(values: list[float]) -> None:
    """Compared with itself every precision has a ratio of 1 and full agreement."""
    shown = compare(make_scores(*values), make_scores(*values))
    assert (shown.perplexity_ratio, shown.top1_agreement) == (1.0, 1.0)


@settings(deadline=None)
@given(values=logprobs, loss=st.floats(min_value=0.0, max_value=2.0))
def test_a_ratio_is_the_loss_per_token(values: list[float], loss: float) -> None:
    """A precision that gives every token exp(-loss) times the probability has a ratio of exp(loss)."""
    worse = compare(make_scores(*(value - loss for value in values)), make_scores(*values))
    assert pytest.approx(math.exp(loss)) == worse.perplexity_ratio


def test_texts_of_different_length_are_not_compared() -> None:
    """Scores of different texts raise instead of giving a figure."""
    with pytest.raises(ValueError, match="zip"):
        compare(make_scores(-1.0, -1.0), make_scores(-1.0))


@pytest.mark.parametrize("broken", [-1e30, -math.inf, math.nan])
def test_a_perplexity_beyond_all_numbers_is_a_matter_of_numerics(broken: float) -> None:
    """BUG-13: a precision with absurd probabilities gives NumericsError, not an overflow, an infinity or a NaN."""
    with pytest.raises(NumericsError, match="choose a wider precision"):
        compare(make_scores(broken, -1.0), make_scores(-1.0, -1.0))


@pytest.mark.parametrize("max_context", [2, 3, 7, 100, 383, 384, 4096])
def test_a_text_is_scored_in_pieces_that_fit(max_context: int) -> None:
    """The pieces put together are the text's first tokens, none longer than the context, none too short to score."""
    scorer = Scorer()
    text = tuple(range(5000))
    scores = score_text(scorer, text, max_context=max_context)
    joined = tuple(token for piece in scorer.pieces for token in piece)
    assert joined == text[: len(joined)]
    assert NUM_TOKENS - 1 <= len(joined) <= NUM_TOKENS
    assert all(2 <= len(piece) <= max_context for piece in scorer.pieces)
    assert len(joined) - len(scorer.pieces) == len(scores.logprobs) == len(scores.top_token_ids)


def test_a_short_text_is_scored_whole() -> None:
    """A text shorter than what is asked for is scored as far as it goes."""
    scorer = Scorer()
    assert len(score_text(scorer, range(10), max_context=4096).logprobs) == 9
    assert [tuple(range(10))] == scorer.pieces
