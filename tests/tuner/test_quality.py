"""Perplexity, agreement and divergence, of texts with known probabilities; and what is scored of a job."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import NumericsError
from engine.serving import TokenScores
from tuner.errors import InvalidRequest
from tuner.quality import NUM_COMPLETED, NUM_PROMPTS, NUM_TEXT_TOKENS, compare, read_text, sample_of, with_text
from tuner.request import WorkloadSpec
from tuner.workload import requests

logprobs = st.lists(st.floats(min_value=-600.0, max_value=0.0), min_size=1, max_size=20)
CORPUS = tuple(range(5000))
SPEC = WorkloadSpec(prompt_tokens=(30, 60), output_tokens=(8, 16))


def make_scores(
    *values: float, top: tuple[int, ...] | None = None, divergences: tuple[float, ...] | None = None
) -> TokenScores:
    return TokenScores(top_token_ids=(7,) * len(values) if top is None else top, logprobs=values,
                       divergences=divergences)  # fmt: skip


def test_perplexity_is_the_inverse_of_the_mean_probability() -> None:
    """A model that gives every next token a quarter has a perplexity of 4, twice that of one that gives a half."""
    quarter, half = make_scores(*[math.log(0.25)] * 5), make_scores(*[math.log(0.5)] * 5)
    shown = compare([quarter] * 2, [half] * 2, [5, 5])
    assert pytest.approx((10, 4.0, 2.0)) == (shown.num_tokens, shown.perplexity, shown.perplexity_ratio)


def test_perplexity_is_of_the_completions_alone() -> None:
    """What comes before a completion is not the reference's own and counts for agreement and divergence only."""
    seen = make_scores(-9.0, -9.0, -1.0, -1.0, divergences=(0.5, 0.5, 0.0, 0.0))
    shown = compare([seen], [make_scores(-3.0, -3.0, -1.0, -1.0)], [2])
    assert (shown.num_tokens, shown.perplexity_ratio, shown.num_positions, shown.kl) == (2, 1.0, 4, 0.25)


def test_agreement_is_the_share_of_equal_choices() -> None:
    """Of four positions at which three choices are the same, the agreement is three quarters."""
    values = (-1.0,) * 4
    shown = compare([make_scores(*values, top=(1, 2, 3, 4))], [make_scores(*values, top=(1, 2, 9, 4))], [4])
    assert shown.top1_agreement == 0.75


def test_divergence_is_the_mean_over_all_positions() -> None:
    """Prompts of different length count by their positions, not each alike."""
    scores = [make_scores(-1.0, divergences=(0.8,)), make_scores(-1.0, -1.0, -1.0, divergences=(0.0, 0.0, 0.0))]
    reference = [make_scores(-1.0), make_scores(-1.0, -1.0, -1.0)]
    assert compare(scores, reference, [1, 1]).kl == pytest.approx(0.2)


def test_a_server_that_shows_only_logprobs_can_be_compared() -> None:
    """Without likeliest tokens and distributions the ratio is told, agreement and divergence are unknown."""
    silent = [make_scores(-1.5, -1.5, top=()), make_scores(-1.5, top=())]
    shown = compare(silent, [make_scores(-1.0, -1.0, top=()), make_scores(-1.0, top=())], [2, 1])
    assert pytest.approx(math.exp(0.5)) == shown.perplexity_ratio
    assert (shown.top1_agreement, shown.kl) == (None, None)


@settings(deadline=None)
@given(values=logprobs)
def test_a_precision_costs_nothing_against_itself(values: list[float]) -> None:
    """Compared with itself every precision has a ratio of 1 and full agreement."""
    shown = compare([make_scores(*values)], [make_scores(*values)], [len(values)])
    assert (shown.perplexity_ratio, shown.top1_agreement) == (1.0, 1.0)


@settings(deadline=None)
@given(values=logprobs, loss=st.floats(min_value=0.0, max_value=2.0))
def test_a_ratio_is_the_loss_per_token(values: list[float], loss: float) -> None:
    """A precision that gives every token exp(-loss) times the probability has a ratio of exp(loss)."""
    worse = compare([make_scores(*(value - loss for value in values))], [make_scores(*values)], [len(values)])
    assert pytest.approx(math.exp(loss)) == worse.perplexity_ratio


def test_texts_of_different_length_are_not_compared() -> None:
    """Scores of different texts raise instead of giving a figure, and so do fewer scores than a completion has."""
    with pytest.raises(ValueError, match="zip"):
        compare([make_scores(-1.0, -1.0)], [make_scores(-1.0)], [1])
    with pytest.raises(ValueError, match="1 tokens were scored, but the completion has 2"):
        compare([make_scores(-1.0)], [make_scores(-1.0)], [2])


@pytest.mark.parametrize("broken", [-1e30, -math.inf, math.nan])
def test_a_perplexity_beyond_all_numbers_is_a_matter_of_numerics(broken: float) -> None:
    """BUG-13: a precision with absurd probabilities gives NumericsError, not an overflow, an infinity or a NaN."""
    fine = compare([make_scores(-1.0, -1.0)], [make_scores(-1.0, -1.0)], [2])
    with pytest.raises(NumericsError, match="choose a wider precision"):
        compare([make_scores(broken, -1.0)], [make_scores(-1.0, -1.0)], [2])
    with pytest.raises(NumericsError, match="choose a wider precision"):
        with_text(fine, [make_scores(broken)])


def test_the_text_adds_a_perplexity_of_its_own() -> None:
    """The user's text, in whatever pieces, gives one perplexity over its tokens and changes nothing else."""
    plain = compare([make_scores(-1.0)], [make_scores(-1.0)], [1])
    shown = with_text(plain, [make_scores(-1.0, -1.0, -1.0), make_scores(-3.0)])
    assert shown.num_text_tokens == 4
    assert shown.text_perplexity == pytest.approx(math.exp(1.5))
    assert shown.perplexity == plain.perplexity
    assert (plain.num_text_tokens, plain.text_perplexity) == (0, None)


class TestSample:
    """What is scored of a job."""

    def test_prompts_are_of_the_jobs_lengths_and_none_of_its_own(self) -> None:
        """Prompts are drawn as the job's are, are the same every time, and are not those it is measured with."""
        sample = sample_of(SPEC, CORPUS, max_context=76)
        assert len(sample.prompts) == NUM_PROMPTS
        assert all(30 <= len(prompt) <= 60 for prompt in sample.prompts)
        assert sample == sample_of(SPEC, CORPUS, max_context=76)
        measured = requests(SPEC, CORPUS, stream="some point/")
        assert not {next(measured).prompt_token_ids for _ in range(20)} & set(sample.prompts)

    @pytest.mark.parametrize("max_context", [61, 76, 4096])
    def test_completions_fit_the_context(self, max_context: int) -> None:
        """A prompt with its completion never exceeds the context, and has at least one token of it."""
        sample = sample_of(SPEC, CORPUS, max_context=max_context)
        for request in sample.completion_requests():
            assert 1 <= request.max_tokens <= NUM_COMPLETED
            assert len(request.prompt_token_ids) + request.max_tokens <= max_context
            assert (request.temperature, request.ignore_eos) == (0.0, True)

    @pytest.mark.parametrize("max_context", [2, 7, 100, 4096])
    def test_a_text_is_cut_into_pieces_that_fit(self, max_context: int) -> None:
        """The pieces put together are the text's first tokens, none longer than the context, none too short."""
        spec = WorkloadSpec(prompt_tokens=(1, 1), output_tokens=(1, 1))
        pieces = sample_of(spec, CORPUS, CORPUS, max_context=max_context).pieces
        joined = tuple(token for piece in pieces for token in piece)
        assert joined == CORPUS[: len(joined)]
        assert NUM_TEXT_TOKENS - 1 <= len(joined) <= NUM_TEXT_TOKENS
        assert all(2 <= len(piece) <= max_context for piece in pieces)

    def test_its_hash_is_of_all_that_is_scored(self) -> None:
        """Other prompts, another text or another context is another sample; the same is the same."""
        hashes = {
            sample_of(SPEC, CORPUS, max_context=76).hash,
            sample_of(SPEC, CORPUS, max_context=76).hash,
            sample_of(SPEC, CORPUS, (1, 2, 3), max_context=76).hash,
            sample_of(SPEC, CORPUS, max_context=61).hash,
            sample_of(WorkloadSpec(prompt_tokens=(30, 60), seed=1), CORPUS, max_context=76).hash,
        }
        assert len(hashes) == 4


class TestTextFile:
    """A text of the user's own."""

    def test_a_long_file_is_read_as_far_as_needed(self, tmp_path: Path) -> None:
        """The first 64 KiB are read, and a letter that lies on the cut is left out, not mangled."""
        path = tmp_path / "text.txt"
        for start in ("", "a", "ab"):
            path.write_text(start + "€ " * 40_000, encoding="utf-8")
            text = read_text(str(path))
            assert 64 * 1024 - 4 <= len(text.encode()) <= 64 * 1024
            assert set(text) <= {"€", " ", "a", "b"}

    @pytest.mark.parametrize(
        ("content", "words"),
        [(None, "No such file"), (b"\xff\xfe00", "not UTF-8 text .byte 0.; save it"), (b" one \n", "no two words")],
        ids=["missing", "not text", "empty"],
    )
    def test_a_file_that_is_no_text_is_refused(self, tmp_path: Path, content: bytes | None, words: str) -> None:
        """A missing file, one of bytes and one without words are refused by the field's name, with what to do."""
        path = tmp_path / "text.txt"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InvalidRequest, match=rf"quality\.text_file is .*{words}"):
            read_text(str(path))
