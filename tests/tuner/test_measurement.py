"""What a window showed: samples by the rules of the docstring, intervals against independent computations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import FinishReason, RequestRecord
from probes.device import Reading
from tests.db.factories import make_engine_info, make_measurement, make_reading
from tests.tuner.factories import make_record
from tuner.measurement import (
    CONFIDENCE,
    NUM_SLICES,
    Distribution,
    Estimate,
    Measurement,
    distribution,
    mean_estimate,
    percentile_estimate,
    slice_rates,
    summarise,
)
from tuner.request import LATENCY_METRICS

SHARES = {0.50: Fraction(1, 2), 0.90: Fraction(9, 10), 0.95: Fraction(19, 20), 0.99: Fraction(99, 100)}
#: The window of `make_reading`.
START_S, END_S = 10.0, 40.0

moments = st.floats(min_value=0.0, max_value=50.0)
streams = st.lists(st.lists(moments, max_size=8).map(sorted), max_size=8)


def summarised(*records: RequestRecord, reading: Reading | None = None, is_emulated: bool = False) -> Measurement:
    return summarise(
        records,
        reading or make_reading(),
        engine=make_engine_info(is_emulated=is_emulated),
        warmup_s=10.0,
        mean_running=4.0,
        prompt_tokens=64,
    )


def binomial_below(rank: int, count: int, share: Fraction) -> Fraction:
    """P(X < rank) for X ~ Binomial(count, share), exactly: in whole numbers over share's denominator."""
    hit, miss = share.numerator, share.denominator - share.numerator
    ways = sum(math.comb(count, k) * hit**k * miss ** (count - k) for k in range(rank))
    return Fraction(ways, share.denominator**count)


def probability_within(t: float, degrees: int) -> float:
    """P(-t < T < t) for Student's T, by the midpoint rule over its density."""
    width = 2 * t / 20_000
    middles = np.arange(-t + width / 2, t, width)
    scale = math.gamma((degrees + 1) / 2) / (math.sqrt(degrees * math.pi) * math.gamma(degrees / 2))
    return float(scale * np.sum((1 + middles**2 / degrees) ** (-(degrees + 1) / 2)) * width)


def ranks(count: int, share: float) -> tuple[int | None, int | None]:
    """The ranks between which the interval of a percentile runs: those of the samples 1, 2, ... count."""
    estimate = percentile_estimate(np.arange(1.0, count + 1), share)
    return (
        None if estimate.low is None else round(estimate.low),
        None if estimate.high is None else round(estimate.high),
    )


def ranks_by_every_term(count: int, share: float) -> tuple[int | None, int | None]:
    """The same ranks from P(X = k) for every k of 0 to count, each by its factorials."""
    terms = (
        math.exp(
            math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
            + k * math.log(share) + (count - k) * math.log1p(-share)
        )
        for k in range(count + 1)
    )  # fmt: skip
    below = list(itertools.accumulate(terms))  # P(X <= k), with which rank k + 1 is safe or not
    low = sum(chance <= (1 - CONFIDENCE) / 2 for chance in below)
    high = next((k + 1 for k, chance in enumerate(below) if chance >= (1 + CONFIDENCE) / 2), count + 1)
    return low or None, (high if high <= count else None)


def plainly_sampled(records: Sequence[RequestRecord], start_s: float, end_s: float) -> dict[str, list[float]]:
    """What the docstring of `summarise` says, token by token: times in seconds, latencies in milliseconds."""
    sampled: dict[str, list[float]] = {"tokens": [], "ttft": [], "tpot": [], "itl": [], "e2e": []}
    for record in records:
        times_s = record.token_times_s
        inside = [start_s <= time_s < end_s for time_s in times_s]
        sampled["tokens"] += [time_s for time_s, is_inside in zip(times_s, inside, strict=True) if is_inside]
        if not times_s or record.finish_reason is FinishReason.ERROR:
            continue
        gaps_s = [later - earlier for earlier, later in itertools.pairwise(times_s)]
        sampled["itl"] += [1e3 * gap_s for gap_s, is_inside in zip(gaps_s, inside[1:], strict=True) if is_inside]
        if inside[0]:
            sampled["ttft"].append(1e3 * (times_s[0] - record.arrival_s))
        if inside[-1] and record.finish_reason is not FinishReason.CANCELLED:
            sampled["e2e"].append(1e3 * (times_s[-1] - record.arrival_s))
            if gaps_s:
                sampled["tpot"].append(1e3 * ((times_s[-1] - times_s[0]) / len(gaps_s)))
    return sampled


class TestPercentiles:
    """Order statistics and their intervals."""

    @settings(max_examples=60, deadline=None)
    @given(count=st.integers(2, 400), share=st.sampled_from(sorted(SHARES)))
    def test_an_interval_covers_with_95_percent_and_no_rank_more(self, count: int, share: float) -> None:
        """Either side errs with at most 2.5 %, and the next rank inwards would err with more."""
        tail, exact = (1 - Fraction(95, 100)) / 2, SHARES[share]
        low, high = ranks(count, share)
        if low is None:
            assert binomial_below(1, count, exact) > tail
        else:
            assert binomial_below(low, count, exact) <= tail < binomial_below(low + 1, count, exact)
        if high is None:
            assert 1 - binomial_below(count, count, exact) > tail
        else:
            assert 1 - binomial_below(high, count, exact) <= tail < 1 - binomial_below(high - 1, count, exact)

    @pytest.mark.parametrize("share", SHARES)
    def test_large_samples_are_as_the_normal_distribution_has_them(self, share: float) -> None:
        """For 100 000 samples the ranks are within 2 of 1.96 standard deviations around the percentile's own."""
        count = 100_000
        half = 1.96 * math.sqrt(count * share * (1 - share))
        expected = [count * share - half, count * share + half + 1]
        assert list(ranks(count, share)) == pytest.approx(expected, abs=2)

    @pytest.mark.parametrize(
        ("share", "low_from", "high_from"), [(0.50, 6, 6), (0.90, 2, 36), (0.95, 2, 72), (0.99, 2, 368)]
    )
    def test_a_side_that_the_sample_cannot_bound_is_none(self, share: float, low_from: int, high_from: int) -> None:
        """A bound appears with exactly the sample size at which it can hold, and is None below."""
        assert (ranks(low_from - 1, share)[0] is None, ranks(low_from, share)[0] is None) == (True, False)
        assert (None, high_from) == (ranks(high_from - 1, share)[1], ranks(high_from, share)[1])

    @pytest.mark.parametrize("share", SHARES)
    def test_terms_left_out_change_no_rank(self, share: float) -> None:
        """Up to 3,000 samples the ranks are those of the whole distribution, added up term by term."""
        for count in [*range(2, 150), 400, 1000, 2999, 3000]:
            assert ranks_by_every_term(count, share) == ranks(count, share)

    @settings(max_examples=60, deadline=None)
    @given(
        samples=st.lists(st.floats(min_value=0.0, max_value=1e6), min_size=1, max_size=80),
        share=st.sampled_from(sorted(SHARES)),
    )
    def test_percentiles_are_those_of_numpy(self, samples: list[float], share: float) -> None:
        """To the last bit, a percentile is what numpy.quantile makes of the samples."""
        assert float(np.quantile(samples, share)) == percentile_estimate(np.sort(samples), share).value

    def test_percentiles_interpolate_between_order_statistics(self) -> None:
        """Percentiles are Hyndman and Fan's type 7: of 10, 20, 30, 40 the median is 25 and p90 is 37."""
        shown = distribution([40.0, 10.0, 30.0, 20.0])
        assert shown.p50 is not None
        assert shown.p90 is not None
        assert (shown.p50.value, shown.p90.value) == pytest.approx((25.0, 37.0))

    @settings(max_examples=60, deadline=None)
    @given(samples=st.lists(st.floats(min_value=0.0, max_value=1e6), min_size=1, max_size=80))
    def test_figures_lie_inside_their_intervals(self, samples: list[float]) -> None:
        """Whatever the samples, every percentile lies in its interval, in the sample's range, and in order."""
        shown = distribution(samples)
        percentiles = [shown.p50, shown.p90, shown.p95, shown.p99]
        values = [one.value for one in percentiles if one is not None]
        assert values == sorted(values)
        assert min(samples) <= values[0]
        assert values[-1] <= max(samples)
        for one in percentiles:
            assert one is not None
            assert one.low is None or one.low <= one.value
            assert one.high is None or one.value <= one.high

    def test_a_sample_of_one_has_no_interval(self) -> None:
        """Power case 59: with n = 1 every interval is None, not 0 wide."""
        only = Estimate(20.0, None, None)
        assert Distribution(count=1, mean=only, p50=only, p90=only, p95=only, p99=only) == distribution([20.0])

    def test_no_sample_gives_no_figure(self) -> None:
        """BUG-09: without samples the count is 0 and every figure is None, not 0."""
        assert Distribution(count=0, mean=None, p50=None, p90=None, p95=None, p99=None) == distribution([])


class TestMeans:
    """Student's t."""

    @pytest.mark.parametrize("count", range(2, 32))
    def test_an_interval_holds_the_mean_with_95_percent(self, count: int) -> None:
        """For up to 31 samples the interval is as many standard errors wide as Student's t asks for."""
        samples = [float((7 * i) % count) for i in range(count)] if count % 7 else [float(i) for i in range(count)]
        estimate = mean_estimate(samples)
        assert estimate.low is not None
        assert estimate.high is not None
        error = float(np.std(samples, ddof=1)) / math.sqrt(count)
        assert estimate.value == pytest.approx(float(np.mean(samples)))
        assert estimate.value - estimate.low == pytest.approx(estimate.high - estimate.value)
        covered = probability_within((estimate.high - estimate.value) / error, count - 1)
        assert covered == pytest.approx(CONFIDENCE, abs=1e-4)

    @settings(deadline=None)
    @given(samples=st.lists(st.floats(min_value=0.0, max_value=1e6), min_size=1, max_size=80))
    def test_a_mean_is_as_exact_as_its_figures(self, samples: list[float]) -> None:
        """A mean is the exact sum over the count but for the last bit or two."""
        assert pytest.approx(math.fsum(samples) / len(samples), rel=5e-16, abs=1e-300) == mean_estimate(samples).value

    def test_equal_samples_leave_no_doubt(self) -> None:
        """An interval of equal samples has no width, which is not the same as having none."""
        assert Estimate(3.0, 3.0, 3.0) == mean_estimate([3.0] * 5)


class TestTokens:
    """Which tokens a window counts, and its rates."""

    @pytest.mark.parametrize(
        ("time_s", "counted"),
        [(START_S - 1e-9, 0), (START_S, 1), (25.0, 1), (END_S - 1e-9, 1), (END_S, 0), (END_S + 1, 0)],
    )
    def test_a_token_counts_from_the_start_to_just_before_the_end(self, time_s: float, counted: int) -> None:
        """A window holds its first instant and not its last, so that neighbours share no token."""
        assert counted == summarised(make_record(time_s)).output_tokens

    @settings(deadline=None)
    @given(streams=streams, edges=st.lists(st.integers(0, 50), min_size=2, max_size=6, unique=True).map(sorted))
    def test_neighbouring_windows_count_every_token_once(self, streams: list[list[float]], edges: list[int]) -> None:
        """Cut a run into windows anywhere and their tokens add up to those of the whole."""
        records = [make_record(*times_s) for times_s in streams]
        counts = [
            summarised(*records, reading=make_reading(start_s=start_s, end_s=end_s)).output_tokens
            for start_s, end_s in itertools.pairwise(edges)
        ]
        whole = summarised(*records, reading=make_reading(start_s=edges[0], end_s=edges[-1]))
        assert whole.output_tokens == sum(counts)

    @settings(deadline=None)
    @given(times_s=st.lists(st.floats(START_S, END_S, exclude_max=True) | st.integers(10, 39), max_size=30))
    def test_slices_are_those_of_a_histogram(self, times_s: list[float]) -> None:
        """Each slice holds its first instant and not its last, as numpy.histogram has it."""
        counts, _ = np.histogram(np.asarray(times_s, dtype=float), bins=NUM_SLICES, range=(START_S, END_S))
        assert [float(count) * NUM_SLICES / (END_S - START_S) for count in counts] == slice_rates(
            times_s, START_S, END_S
        )

    @settings(deadline=None)
    @given(streams=streams)
    def test_rate_times_window_is_the_number_of_tokens(self, streams: list[list[float]]) -> None:
        """The rate over the window's length, and the slices' rates over theirs, give the tokens back."""
        shown = summarised(*(make_record(*times_s) for times_s in streams))
        inside = [t for times_s in streams for t in times_s if START_S <= t < END_S]
        by_slice = sum(slice_rates(inside, START_S, END_S)) * shown.window_s / NUM_SLICES
        assert pytest.approx(shown.output_tokens) == shown.output_tok_s.value * shown.window_s
        assert pytest.approx(shown.output_tokens) == by_slice

    def test_a_steady_rate_has_a_narrow_interval(self) -> None:
        """Equal slices leave no doubt about the rate, unequal ones do."""
        even = summarised(make_record(*(START_S + 0.5 + i for i in range(30))))
        bursts = summarised(make_record(*(START_S + 0.5 + i / 2 for i in range(30))))
        assert Estimate(1.0, 1.0, 1.0) == even.output_tok_s
        assert (bursts.output_tok_s.value, (bursts.output_tok_s.high or 0.0) > 1.2) == (1.0, True)

    def test_energy_per_token_comes_from_the_reading(self) -> None:
        """60 tokens of 300 J are 0.2 tokens per joule and 5 joules per token, at 10 W over 30 s."""
        shown = summarised(make_record(*(START_S + i / 2 for i in range(60))))
        assert shown.tok_per_j is not None
        assert shown.j_per_tok is not None
        figures = (shown.tok_per_j.value, shown.j_per_tok.value, shown.mean_power_w)
        assert figures == pytest.approx((0.2, 5.0, 10.0))

    @settings(deadline=None)
    @given(streams=streams)
    def test_energy_intervals_are_those_of_the_rate(self, streams: list[list[float]]) -> None:
        """Tokens per joule and its inverse keep their values inside intervals that never go below 0."""
        shown = summarised(*(make_record(*times_s) for times_s in streams))
        for estimate in (shown.tok_per_j, shown.j_per_tok):
            if estimate is not None:
                assert 0.0 <= (estimate.low or 0.0) <= estimate.value
                assert estimate.high is None or estimate.value <= estimate.high


class TestEnergyThatCannotBeUsed:
    """Never 0 in its place."""

    @pytest.mark.parametrize(
        "changes",
        [
            {"reasons": ("sampling_gap",)},
            {"energy_j": None},
            {"energy_j": None, "reasons": ("device_lost",)},
            {"energy_j": 0.0},
            {"energy_j": -1.0},
            {"energy_j": math.nan},
            {"energy_j": math.inf},
        ],
        ids=str,
    )
    def test_energy_figures_are_none(self, changes: dict[str, Any]) -> None:
        """BUG-13: with no usable energy every figure of it is None, never 0, NaN or infinite; the rate stays."""
        shown = summarised(make_record(20.0, 21.0), reading=make_reading(**changes))
        assert (shown.tok_per_j, shown.j_per_tok, shown.mean_power_w) == (None, None, None)
        assert (shown.output_tokens, shown.output_tok_s.value) == pytest.approx((2, 2 / 30))

    def test_the_reasons_of_the_reading_are_those_of_the_window(self) -> None:
        """A window is valid as long as nothing speaks against its reading."""
        reading = make_reading(reasons=("sampling_gap", "suspended"))
        assert (
            (shown := summarised(make_record(20.0), reading=reading)).reasons,
            shown.is_valid,
        ) == (("sampling_gap", "suspended"), False)
        assert summarised(make_record(20.0)).is_valid

    def test_an_emulated_engine_is_never_a_measurement(self) -> None:
        """A window of an engine that imitates its precision is invalid, however it came to be run."""
        shown = summarised(make_record(20.0), is_emulated=True)
        assert (shown.reasons, shown.is_valid) == (("emulated",), False)

    @pytest.mark.parametrize("records", [(), (make_record(5.0),), (make_record(),)], ids=["none", "before", "empty"])
    def test_a_window_without_tokens_divides_nothing(self, records: Sequence[RequestRecord]) -> None:
        """Power case 64: no token in the window gives a rate of 0 and no energy per token, without an error."""
        shown = summarised(*records)
        assert (
            shown.output_tokens,
            shown.output_tok_s.value,
            shown.tok_per_j,
            shown.j_per_tok,
        ) == (0, 0.0, None, None)
        assert shown.mean_power_w == 10.0


class TestLatencies:
    """Which request gives which sample."""

    def test_each_latency_is_what_it_is_called(self) -> None:
        """A request that arrived at 19, with tokens at 20, 21 and 24, waited 1 s, then 2 s per token, 5 s in all."""
        shown = summarised(make_record(20.0, 21.0, 24.0, arrival_s=19.0))
        values = {name: shown.latency(f"{name}_mean_ms") for name in ("ttft", "tpot", "itl", "e2e")}
        assert {name: figure and figure.value for name, figure in values.items()} == {
            "ttft": 1000.0,
            "tpot": 2000.0,
            "itl": 2000.0,
            "e2e": 5000.0,
        }
        assert (shown.ttft.count, shown.tpot.count, shown.itl.count, shown.e2e.count) == (1, 1, 2, 1)

    @pytest.mark.parametrize(
        ("times_s", "ttft", "tpot", "itl", "e2e"),
        [
            ((8.0, 9.0), 0, 0, 0, 0),  # over before the window
            ((8.0, 12.0), 0, 1, 1, 1),  # ended in it
            ((38.0, 40.0), 1, 0, 0, 0),  # ended at its end, which is outside
            ((38.0, 39.0, 41.0), 1, 0, 1, 0),
            ((10.0, 39.9), 1, 1, 1, 1),
            ((8.0, 45.0), 0, 0, 0, 0),  # around it
            ((20.0,), 1, 0, 0, 1),  # one token has no gap
        ],
    )
    def test_a_sample_belongs_to_the_window_that_saw_it_end(
        self, times_s: tuple[float, ...], ttft: int, tpot: int, itl: int, e2e: int
    ) -> None:
        """TTFT counts where the first token is, TPOT and end-to-end where the last, a gap where its later token is."""
        shown = summarised(make_record(*times_s))
        assert (ttft, tpot, itl, e2e) == (shown.ttft.count, shown.tpot.count, shown.itl.count, shown.e2e.count)

    @settings(max_examples=200, deadline=None)
    @given(
        records=st.lists(
            st.builds(
                lambda times_s, arrival_s, reason: make_record(*times_s, arrival_s=arrival_s, finish_reason=reason),
                st.lists(moments, max_size=8).map(sorted),
                moments,
                st.sampled_from(FinishReason),
            ),
            max_size=8,
        )
    )
    def test_samples_are_those_of_a_loop_over_tokens(self, records: list[RequestRecord]) -> None:
        """Whatever the records, tokens, slices and every latency are those that a plain loop over tokens finds."""
        shown, plain = summarised(*records), plainly_sampled(records, START_S, END_S)
        assert len(plain["tokens"]) == shown.output_tokens
        assert mean_estimate(slice_rates(plain["tokens"], START_S, END_S)).high == shown.output_tok_s.high
        assert {name: distribution(plain[name]) for name in ("ttft", "tpot", "itl", "e2e")} == {
            "ttft": shown.ttft,
            "tpot": shown.tpot,
            "itl": shown.itl,
            "e2e": shown.e2e,
        }

    def test_zero_and_one_token_answers_give_no_tpot(self) -> None:
        """BUG-09: of 0, 1, 1 and 21 tokens three requests have a TTFT and one a TPOT of 20 ms; the others have none."""
        fast = make_record(*(10.1 + 0.02 * i for i in range(21)), arrival_s=10.0)
        one = make_record(10.1, arrival_s=10.0)
        shown = summarised(make_record(arrival_s=10.0, finish_reason=FinishReason.STOP), one, one, fast)
        assert (shown.ttft.count, shown.tpot.count, shown.output_tokens) == (3, 1, 23)
        assert shown.tpot.mean is not None
        assert shown.tpot.mean.value == pytest.approx(20.0)
        only_ones = summarised(one, one)
        assert (only_ones.tpot.count, only_ones.latency("tpot_p50_ms"), only_ones.tpot.mean) == (0, None, None)

    def test_a_run_in_which_all_failed_gives_nothing(self) -> None:
        """BUG-09: when every request failed the rate is 0 and every other figure None."""
        failed = make_record(finish_reason=FinishReason.ERROR, error="numerics: logits are not finite")
        shown = summarised(*[failed] * 4)
        assert (
            shown.num_failed,
            shown.num_finished,
            shown.output_tok_s.value,
            shown.tok_per_j,
        ) == (4, 0, 0.0, None)
        assert all(shown.latency(metric) is None for metric in LATENCY_METRICS)

    def test_a_cancelled_request_gives_tokens_but_no_tpot(self) -> None:
        """What was in flight at the end counts with its tokens, first token and gaps, and not as a finished request."""
        shown = summarised(make_record(20.0, 21.0, 22.0, finish_reason=FinishReason.CANCELLED))
        assert (shown.output_tokens, shown.num_finished, shown.ttft.count, shown.itl.count) == (3, 0, 1, 2)
        assert (shown.tpot.count, shown.e2e.count) == (0, 0)

    def test_a_failed_request_gives_no_latency(self) -> None:
        """A request that ended in error counts as failed and gives no sample of any latency."""
        shown = summarised(make_record(20.0, 21.0, 22.0, finish_reason=FinishReason.ERROR, error="numerics: NaN"))
        assert (shown.num_failed, shown.num_finished) == (1, 0)
        assert (shown.ttft.count, shown.tpot.count, shown.itl.count, shown.e2e.count) == (0, 0, 0, 0)

    def test_preemptions_are_those_of_requests_that_ended_in_the_window(self) -> None:
        """A preemption counts with the request that suffered it, where that ended."""
        records = [make_record(20.0, num_preemptions=2), make_record(5.0, num_preemptions=4)]
        assert summarised(*records).num_preemptions == 2

    @pytest.mark.parametrize("metric", LATENCY_METRICS)
    def test_every_metric_of_a_request_can_be_read(self, metric: str) -> None:
        """Every name that a limit may have leads to the figure of that latency and statistic."""
        latency, statistic, _ = metric.split("_")
        figures: Any = {statistic: Estimate(1.5)}
        marked = replace(Distribution(count=1), **figures)
        assert Estimate(1.5) == make_measurement(**{latency: marked}).latency(metric)

    @pytest.mark.parametrize("metric", ["ttft_p42_ms", "speed_p99_ms", "ttft_count_ms"])
    def test_other_names_are_errors(self, metric: str) -> None:
        """A name that no limit may have raises KeyError instead of looking like a missing sample."""
        with pytest.raises(KeyError, match=metric):
            make_measurement().latency(metric)
