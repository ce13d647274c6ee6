"""MLPerf's limits as presets, and LoadGen's tail rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betainc

from engine.request import FinishReason
from tests.tuner.factories import make_record
from tuner.errors import InvalidRequest
from tuner.mlperf import (
    TailState,
    filled,
    loadgen_percentile,
    min_queries,
    preset_of,
    presets,
    samples_ms,
    tail_verdict,
    worst_tail,
)
from tuner.request import Limit

SERVER = preset_of("mlperf:server:llama3.1-8b")
TPOT = Limit(metric="tpot_p99_ms", bound_ms=100.0)


class TestPresets:
    """What a preset fills, and what it refuses."""

    @pytest.mark.parametrize(
        ("name", "limits"),
        [
            ("mlperf:server:llama2-70b", {"ttft_p99_ms": 2000, "tpot_p99_ms": 200}),
            ("mlperf:interactive:llama3.1-8b", {"ttft_p99_ms": 500, "tpot_p99_ms": 30}),
            ("mlperf:interactive:gpt-oss-120b", {"ttft_p99_ms": 2000, "tpot_p99_ms": 15}),
            ("mlperf:server:qwen3-vl-235b-a22b", {"e2e_p99_ms": 12_000}),
            ("mlperf:offline:deepseek-r1", {}),
        ],
    )
    def test_limits_are_those_of_the_round(self, name: str, limits: dict[str, float]) -> None:
        """Each preset has the limits that the round gives its model."""
        assert limits == {limit.metric: limit.bound_ms for limit in preset_of(name).limits}

    def test_a_wrong_name_is_told_all_that_there_are(self) -> None:
        """A name that there is not is refused with every name that there is."""
        with pytest.raises(InvalidRequest) as refused:
            preset_of("mlperf:interactive:mixtral-8x7b")
        assert all(preset.name in str(refused.value) for preset in presets())

    def test_what_is_not_given_is_filled(self) -> None:
        """Workload, limits, axis, windows and name come from the preset; what else the job says stays."""
        job = filled(SERVER, {"model": "m", "workload": {"rate_per_s": 3.0}})
        assert job == {
            "model": "m",
            "workload": {"rate_per_s": 3.0, "scenario": "server"},
            "sla": {"ttft_p99_ms": 2000.0, "tpot_p99_ms": 100.0},
            "latency_metric": "tpot_p99_ms",
            "window": {"min_requests": 662, "max_window_s": 600.0},
            "name": "mlperf:server:llama3.1-8b",
            "preset": "mlperf:server:llama3.1-8b",
        }

    def test_one_stream_is_one_request_in_flight(self) -> None:
        """SingleStream is a closed load of one, told by the p90 of its end-to-end latency."""
        job = filled(preset_of("mlperf:singlestream:llama3.1-8b"), {})
        assert (job["workload"], job["latency_metric"]) == ({"scenario": "closed", "concurrency": 1}, "e2e_p90_ms")

    def test_the_same_value_and_further_limits_are_no_contradiction(self) -> None:
        """A limit given with the preset's own bound, one on another metric, and a name of the job's own are kept."""
        job = filled(SERVER, {"sla": {"ttft_p99_ms": 2000, "itl_p99_ms": 50}, "name": "mine"})
        assert job["sla"] == {"ttft_p99_ms": 2000.0, "tpot_p99_ms": 100.0, "itl_p99_ms": 50}
        assert job["name"] == "mine"

    @pytest.mark.parametrize(
        ("given", "field", "value"),
        [
            ({"sla": {"ttft_p99_ms": 1000}}, "sla.ttft_p99_ms", 1000),
            ({"workload": {"scenario": "closed"}}, "workload.scenario", "closed"),
            ({"latency_metric": "itl_p50_ms"}, "latency_metric", "itl_p50_ms"),
        ],
    )
    def test_a_contradiction_is_refused_by_name(self, given: dict[str, Any], field: str, value: Any) -> None:
        """A field that says otherwise than the preset is refused with both."""
        with pytest.raises(InvalidRequest, match="leave it out") as refused:
            filled(SERVER, given)
        assert (refused.value.field, refused.value.value) == (field, value)


class TestTail:
    """LoadGen's rule."""

    def test_published_counts(self) -> None:
        """459 clean queries show a p99, 662 with one over, and 64 a p90 with one over, as the rules' table says."""
        assert (min_queries(0, 0.99), min_queries(1, 0.99), min_queries(1, 0.90)) == (459, 662, 64)

    @settings(max_examples=60)
    @given(num_over=st.integers(0, 300), share=st.sampled_from([0.90, 0.95, 0.99]))
    def test_it_is_the_smallest_count(self, num_over: int, share: float) -> None:
        """The incomplete beta function is at most 1 - c there, and above it with one query less."""
        num_within = min_queries(num_over, share) - num_over
        assert betainc(num_within, num_over + 1, share) <= 0.01 + 1e-12
        assert num_within == 1 or betainc(num_within - 1, num_over + 1, share) > 0.01 - 1e-12

    @pytest.mark.parametrize(
        ("num", "num_over", "state", "words"),
        [
            (459, 0, TailState.HELD, "tpot_p99_ms held: 0 of 459 queries over 100 ms"),
            (458, 0, TailState.TOO_FEW, "tpot_p99_ms: not enough queries: 458 of 459"),
            (312, 1, TailState.TOO_FEW, "tpot_p99_ms: not enough queries: 312 of 662"),
            (662, 1, TailState.HELD, "tpot_p99_ms held: 1 of 662 queries over 100 ms"),
            (1000, 20, TailState.MISSED, "tpot_p99_ms missed: 20 of 1000 queries over 100 ms"),
            (0, 0, TailState.TOO_FEW, "tpot_p99_ms: not enough queries: 0 of 459"),
        ],
    )
    def test_verdicts(self, num: int, num_over: int, state: TailState, words: str) -> None:
        """Too few queries are told with the number that would do, never passed; a missed percentile is missed."""
        told = tail_verdict(TPOT, [50.0] * (num - num_over) + [150.0] * num_over)
        assert (told.state, told.words) == (state, words)

    def test_a_percentile_is_a_sample(self) -> None:
        """The p99 of 100 samples is the largest, as in LoadGen; of 662 it is number 655."""
        assert loadgen_percentile(list(range(100)), 0.99) == 99
        assert loadgen_percentile(list(range(662)), 0.99) == 655

    def test_only_what_ended_in_the_window_counts(self) -> None:
        """Requests that ended before it, after it, cancelled or failed give no sample."""
        times_s = ((0.5, 0.6), (1.0, 1.5), (1.2, 2.5))
        records = [make_record(*times) for times in times_s]
        records += [make_record(1.0, 1.5, finish_reason=one) for one in (FinishReason.CANCELLED, FinishReason.ERROR)]
        assert samples_ms(records, "ttft_p99_ms", 1.0, 2.0) == [1000.0]

    def test_a_missed_limit_comes_before_too_few_queries(self) -> None:
        """Of two limits the missed one is told, wherever it stands; a limit that holds is not told at all."""
        records = [make_record(0.1, 0.3)] * 500
        held, missed = Limit(metric="ttft_p99_ms", bound_ms=200.0), Limit(metric="tpot_p99_ms", bound_ms=100.0)
        told = worst_tail((held, missed), records, 0.0, 1.0)
        assert told is not None
        assert (told.limit, told.state) == (missed, TailState.MISSED)
        assert worst_tail((held,), records, 0.0, 1.0) is None
        few = worst_tail((held, missed), records[:100], 0.0, 1.0)
        assert few is not None
        assert few.limit is missed
