"""When a count of late requests is certain enough to end a window."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import FinishReason
from tests.tuner.factories import make_record
from tuner.pareto import ObjectivePair
from tuner.request import Limit
from tuner.sequential import (
    ALPHA,
    MARGIN,
    Count,
    EarlyStop,
    LimitTest,
    RivalTest,
    ShareVerdict,
    chance_of_at_least,
    design_effect,
    is_testable,
    judge,
    latency_ms,
)

WINDOW_S = 32.0
P90 = Limit(metric="tpot_p90_ms", bound_ms=100.0)


def run_test(test: LimitTest, values_ms: list[float], *, per_s: int = 10) -> ShareVerdict:
    """Feed a test so many requests a second."""
    for i, value_ms in enumerate(values_ms):
        test.add(i / per_s, value_ms)
        test.look(i / per_s)
    return test.verdict


class TestTail:
    """The exact binomial tail."""

    @settings(max_examples=40)
    @given(num=st.integers(1, 60), data=st.data(), share=st.sampled_from([0.01, 0.05, 0.1, 0.5, 0.9]))
    def test_it_is_the_sum_of_its_terms(self, num: int, data: st.DataObject, share: float) -> None:
        """Above the mean it equals the sum of binomial probabilities, at or below it is 1."""
        num_over = data.draw(st.integers(0, num))
        terms = [math.comb(num, k) * share**k * (1 - share) ** (num - k) for k in range(num_over, num + 1)]
        expected = 1.0 if num_over <= num * share else math.fsum(terms)
        assert expected == pytest.approx(chance_of_at_least(num_over, num, share), rel=1e-9)

    def test_a_long_window_does_not_overflow(self) -> None:
        """Of 100,000 requests of which 1,100 are late where 1 % may be, the tail is that of the normal distribution."""
        z = 99.5 / math.sqrt(990)
        assert chance_of_at_least(1100, 100_000, 0.01) == pytest.approx(0.5 * math.erfc(z / math.sqrt(2)), rel=0.3)


class TestDesignEffect:
    """How much less a count says because requests are late together."""

    def test_slices_that_differ_no_more_than_chance_count_in_full(self) -> None:
        """Where every slice has the same share the effect is 1."""
        assert design_effect([Count(10, 1)] * 8) == 1.0

    def test_slices_that_are_late_as_one_count_as_one(self) -> None:
        """Ten requests a slice that are late all together are worth about a tenth of ten draws."""
        slices = [Count(10, 10), Count(10, 0), Count(10, 0), Count(10, 0)]
        assert design_effect(slices) == pytest.approx(10 * 4 / 3)

    def test_where_all_are_late_each_slice_is_a_draw(self) -> None:
        """There is no spread to estimate anything from, so that only the slices count."""
        assert design_effect([Count(10, 10), Count(30, 30)]) == 20.0

    @settings(max_examples=40)
    @given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 1)), min_size=1, max_size=40))
    def test_it_never_adds_to_what_was_counted(self, drawn: list[tuple[int, float]]) -> None:
        """Whatever the slices, the effect is 1 or more and finite."""
        effect = design_effect([Count(num, round(share * num)) for num, share in drawn])
        assert effect >= 1.0
        assert math.isfinite(effect)


class TestVerdict:
    """What is certain."""

    def test_a_stall_is_no_miss(self) -> None:
        """One slice in which all twenty requests were late says no more than one late request."""
        slices = [Count(20, 20), *[Count(20, 0)] * 9]
        assert ShareVerdict.OPEN is judge(slices, 0.1, ALPHA)

    def test_as_many_late_requests_all_over_the_window_are_one(self) -> None:
        """Three times as many as are allowed, in every slice, are no chance."""
        assert ShareVerdict.MISSED is judge([Count(20, 6)] * 10, 0.1, ALPHA)

    def test_a_limit_can_be_certainly_met(self) -> None:
        """No late request among 200 where a tenth may be late."""
        assert ShareVerdict.MET is judge([Count(20, 0)] * 10, 0.1, ALPHA)

    def test_nothing_is_certain_of_nothing(self) -> None:
        """Without requests all is open."""
        assert ShareVerdict.OPEN is judge([], 0.1, ALPHA)

    def test_wrong_verdicts_are_as_rare_as_promised(self) -> None:
        """Of 400 windows in which exactly the allowed share is late, looked at throughout, no more than 1 % are cut."""
        draw = random.Random(0)
        late_ms = P90.bound_ms * (1 + MARGIN) + 1
        wrong = 0
        for _ in range(400):
            values_ms = [late_ms if draw.random() < 0.1 else 1.0 for _ in range(200)]
            wrong += run_test(LimitTest(P90, window_s=WINDOW_S), values_ms) is ShareVerdict.MISSED
        assert wrong <= 4


class TestLimit:
    """One limit over one window."""

    def test_it_is_not_judged_before_the_first_slices_are_over(self) -> None:
        """However many were late by then, four slices of 32 must have passed."""
        test = LimitTest(P90, window_s=WINDOW_S)
        assert ShareVerdict.OPEN is run_test(test, [1000.0] * 40)
        test.add(4.0, 1000.0)
        assert ShareVerdict.MISSED is test.look(4.0)
        assert Count(41, 41) == test.count

    def test_a_few_requests_say_nothing(self) -> None:
        """Nine late requests of nine, one a second, are left open, and the tenth decides."""
        test = LimitTest(P90, window_s=WINDOW_S)
        assert ShareVerdict.OPEN is run_test(test, [1000.0] * 9, per_s=1)
        test.add(9.0, 1000.0)
        assert ShareVerdict.MISSED is test.look(9.0)

    def test_a_run_that_is_a_little_slower_is_no_miss(self) -> None:
        """A bound counts as exceeded from the margin on: one run of a point differs from the next by that much."""
        assert ShareVerdict.OPEN is run_test(LimitTest(P90, window_s=WINDOW_S), [101.9] * 10)
        assert ShareVerdict.MISSED is run_test(LimitTest(P90, window_s=WINDOW_S), [102.1] * 60)

    @pytest.mark.parametrize(
        ("metric", "testable"),
        [
            ("ttft_p99_ms", True),
            ("tpot_p50_ms", True),
            ("e2e_p95_ms", True),
            ("itl_p99_ms", False),
            ("ttft_mean_ms", False),
        ],
    )
    def test_only_percentiles_of_what_each_request_gives_are_tested(self, metric: str, testable: bool) -> None:
        """Gaps of one request depend on each other, and a mean is no share: those are for the whole window."""
        assert testable == is_testable(metric)
        stop = EarlyStop((Limit(metric=metric, bound_ms=1.0),), window_s=WINDOW_S, latency_metric="tpot_p99_ms")
        record = make_record(0.5, 1.0, 1.5)
        cuts = [stop.observe(0.0, float(second), (record,) * 50) for second in range(1, 32)]
        assert testable == any(cuts)


class TestSamples:
    """What a request adds."""

    def test_latencies_are_those_of_the_summary(self) -> None:
        """TTFT, TPOT and end to end in milliseconds."""
        record = make_record(2.0, 2.5, 3.0, arrival_s=1.0)
        shown = [latency_ms(record, f"{name}_p99_ms", 0.0) for name in ("ttft", "tpot", "e2e")]
        assert shown == [1000.0, 500.0, 2000.0]

    def test_a_first_token_before_the_window_is_not_its_ttft(self) -> None:
        """The request still gives its other latencies."""
        record = make_record(2.0, 2.5, arrival_s=1.0)
        assert (latency_ms(record, "ttft_p99_ms", 2.25), latency_ms(record, "tpot_p99_ms", 2.25)) == (None, 500.0)

    @pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.CANCELLED])
    def test_requests_that_did_not_end_well_do_not_count(self, reason: FinishReason) -> None:
        """A request that failed or was cancelled gives no latency."""
        assert latency_ms(make_record(2.0, 2.5, finish_reason=reason), "tpot_p99_ms", 0.0) is None


class TestRivals:
    """Whether somebody else is certainly better."""

    def behind(self, *rivals: ObjectivePair, power_w: float = 100.0, num_looks: int = 16) -> ObjectivePair | None:
        """Look halfway through a window of 1 tok/J whose requests all take 50 ms a token."""
        test = RivalTest("tpot_p99_ms", rivals, window_s=WINDOW_S)
        for i in range(160):
            test.add(i / 10, 50.0)
        for i in range(num_looks):
            test.add_power(100.0, power_w + (-1) ** i)
        test.look(8.0)
        return test.look(16.0)

    def test_the_fastest_of_the_more_frugal_counts(self) -> None:
        """A rival that is faster and more frugal is found among others that are only one of both."""
        better = ObjectivePair(1.5, 40.0)
        assert better == self.behind(ObjectivePair(0.9, 10.0), better, ObjectivePair(3.0, 45.0))

    @pytest.mark.parametrize("rival", [ObjectivePair(1.03, 40.0), ObjectivePair(1.5, 49.5)])
    def test_a_rival_that_is_hardly_better_ends_nothing(self, rival: ObjectivePair) -> None:
        """Within what looks at power or another run may be off by, nothing is certain."""
        assert self.behind(rival) is None

    def test_few_looks_at_power_say_nothing(self) -> None:
        """Seven looks are too few for five standard errors."""
        assert self.behind(ObjectivePair(9.0, 1.0), num_looks=7) is None

    def test_it_is_looked_at_three_times_only(self) -> None:
        """Between the quarters of a window nothing is judged: the chance to be wrong is spent on three looks."""
        test = RivalTest("tpot_p99_ms", (ObjectivePair(9.0, 10.0),), window_s=WINDOW_S)
        for _ in range(16):
            test.add_power(100.0, 100.0)
        assert [test.look(second) for second in (8.0, 16.0, 24.0)] == [None] * 3  # no request has ended yet
        for i in range(160):
            test.add(i / 10, 50.0)
        assert test.look(31.0) is None
