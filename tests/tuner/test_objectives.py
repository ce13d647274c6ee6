"""A measurement's violations and the verdict on its trial."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.db.factories import make_measurement
from tests.tuner.factories import make_request, measured
from tuner.measurement import Distribution, Estimate, Quality, TaskScore
from tuner.objectives import Verdict, quality_verdict, verdict, violations
from tuner.request import Limit, QualityGate
from tuner.trial import TrialState

TTFT = Limit(metric="ttft_p99_ms", bound_ms=100.0)
TPOT = Limit(metric="tpot_p50_ms", bound_ms=50.0)


def quality(ratio: float) -> Quality:
    return Quality(num_tokens=383, perplexity=10.0 * ratio, perplexity_ratio=ratio, top1_agreement=0.9)


def latencies(ttft_ms: float | None, tpot_ms: float | None = 10.0, **changes: Any) -> Any:
    """A measurement with these two latencies and perfect quality."""

    def one(value: float | None) -> Distribution:
        return Distribution(count=0) if value is None else replace(
            Distribution(count=9), p50=Estimate(value), p99=Estimate(value)
        )  # fmt: skip

    return make_measurement(ttft=one(ttft_ms), tpot=one(tpot_ms), **({"quality": quality(1.0)} | changes))


class TestViolations:
    """By which share of its bound each limit is missed."""

    def test_a_limit_is_missed_by_a_share_of_its_bound(self) -> None:
        """150 ms against 100 ms is half the bound too much, 25 ms against 50 ms half the bound inside."""
        shares = violations(make_request(sla=(TTFT, TPOT)), latencies(150.0, 25.0))
        assert {name: share for name, share in shares.items() if name.startswith("sla:")} == {
            "sla:ttft_p99_ms": 0.5,
            "sla:tpot_p50_ms": -0.5,
        }

    @settings(deadline=None)
    @given(figure=st.floats(0.001, 1e6), bound=st.floats(0.001, 1e6))
    def test_a_share_is_above_0_exactly_when_the_limit_is_missed(self, figure: float, bound: float) -> None:
        """The bound itself is inside, and whatever is above it is outside."""
        request = make_request(sla=(Limit(metric="ttft_p99_ms", bound_ms=bound),))
        share = violations(request, latencies(figure))["sla:ttft_p99_ms"]
        assert (share > 0) == (figure > bound) or pytest.approx(bound) == figure

    def test_a_latency_without_samples_misses_its_limit(self) -> None:
        """BUG-09: where no request has a TPOT nothing shows that its limit holds, so all of its bound is missed."""
        assert violations(make_request(sla=(TPOT,)), latencies(10.0, None))["sla:tpot_p50_ms"] == 1.0

    def test_every_limit_of_the_gate_counts(self) -> None:
        """Divergence, agreement and the text's perplexity are missed by shares of their bounds, where there are any."""
        gate = QualityGate(max_kl=0.01, min_top1_agreement=0.8, text_file="t", max_perplexity=20.0)
        shown = replace(quality(1.05), kl=0.02, top1_agreement=0.6, text_perplexity=10.0)
        assert {
            "quality:perplexity_ratio": pytest.approx(0.0),
            "quality:kl": pytest.approx(1.0),
            "quality:top1_agreement": pytest.approx(0.25),
            "quality:perplexity": pytest.approx(-0.5),
        } == violations(make_request(quality=gate), latencies(10.0, quality=shown))

    def test_an_unknown_figure_misses_its_limit(self) -> None:
        """A server that shows no distributions cannot meet a limit on divergence: nothing shows that it holds."""
        gate = QualityGate(max_kl=0.01, min_top1_agreement=0.8, text_file="t", max_perplexity=20.0)
        shares = violations(
            make_request(quality=gate), latencies(10.0, quality=replace(quality(1.0), top1_agreement=None))
        )
        assert {1.0} == {shares[f"quality:{name}"] for name in ("kl", "top1_agreement", "perplexity")}

    def test_the_quality_gate_is_a_limit(self) -> None:
        """A perplexity ratio of 1.1 misses a gate of 1.0 by a tenth."""
        request = make_request(quality=QualityGate(max_perplexity_ratio=1.0))
        shares = violations(request, latencies(10.0, quality=quality(1.1)))
        assert {"quality:perplexity_ratio": pytest.approx(0.1)} == shares

    def test_what_was_not_checked_is_not_missed(self) -> None:
        """Without a quality figure and without limits there is nothing to miss."""
        assert violations(make_request(), latencies(10.0, quality=None)) == {}


def test_a_gate_that_holds_says_nothing() -> None:
    """A precision inside every limit has no verdict of its own: its window decides."""
    assert quality_verdict(QualityGate(min_top1_agreement=0.9), quality(1.05)) is None


def test_a_gate_that_fails_names_every_miss() -> None:
    """The reason is the worst miss, the detail has each figure with its bound and where it is known from."""
    gate = QualityGate(max_kl=0.01, min_top1_agreement=0.99, text_file="t", max_perplexity=20.0)
    when = datetime(2026, 11, 30, tzinfo=UTC)
    shown = replace(quality(1.2), kl=0.03, text_perplexity=21.0, reference="bf16", is_reused=True, measured_at=when)
    judged = quality_verdict(gate, shown)
    assert judged is not None
    assert (judged.state, judged.reason) == (TrialState.INFEASIBLE, "quality:kl")
    assert judged.detail == (
        "perplexity is 1.200 of bf16's, the gate is 1.05; KL divergence from bf16 is 0.03, the gate is 0.01; "
        "perplexity on the text file is 21, the gate is 20; top-1 agreement with bf16 is 0.9, the gate is 0.99 "
        "(known from a job on 2026-11-30; no window was run)"
    )


class TestVerdict:
    """The state that a trial ends in."""

    @pytest.mark.parametrize("ttft_ms", [1.0, 100.0])
    def test_inside_every_limit_is_complete(self, ttft_ms: float) -> None:
        """A valid measurement inside its limits, the bounds included, completes its trial without a reason."""
        assert Verdict(TrialState.COMPLETE) == verdict(make_request(sla=(TTFT, TPOT)), latencies(ttft_ms, 50.0))

    def test_a_missed_limit_is_infeasible_with_the_figure(self) -> None:
        """A missed limit is the reason, and the detail has the figure and the bound."""
        judged = verdict(make_request(sla=(TTFT,)), latencies(612.0))
        assert Verdict(TrialState.INFEASIBLE, "sla:ttft_p99_ms", "ttft_p99_ms is 612, the limit is 100") == judged

    def test_of_several_the_worst_is_the_reason(self) -> None:
        """The reason is the limit missed by the largest share of its bound; the detail has all that are missed."""
        judged = verdict(make_request(sla=(TTFT, TPOT)), latencies(120.0, 500.0))
        assert (judged.state, judged.reason) == (TrialState.INFEASIBLE, "sla:tpot_p50_ms")
        assert judged.detail == "ttft_p99_ms is 120, the limit is 100; tpot_p50_ms is 500, the limit is 50"

    def test_a_missed_gate_is_infeasible_with_the_ratio(self) -> None:
        """A precision that costs too much quality is infeasible, and the detail has ratio and gate."""
        judged = verdict(make_request(), latencies(10.0, quality=quality(1.2)))
        assert (judged.state, judged.reason) == (TrialState.INFEASIBLE, "quality:perplexity_ratio")
        assert judged.detail == "perplexity is 1.200 of fp32's, the gate is 1.05"

    def test_a_limit_on_a_latency_without_samples_is_infeasible(self) -> None:
        """BUG-09: a TPOT limit does not pass because no request had a TPOT."""
        judged = verdict(make_request(sla=(TPOT,), latency_metric="ttft_p99_ms"), latencies(10.0, None))
        assert Verdict(TrialState.INFEASIBLE, "sla:tpot_p50_ms", "tpot_p50_ms is unknown, the limit is 50") == judged

    def test_a_window_without_tokens_is_failed(self) -> None:
        """Power case 64 and BUG-13: no token in the window fails the trial with a reason, whatever else is wrong."""
        judged = verdict(make_request(), make_measurement(output_tokens=0, tok_per_j=None, reasons=("suspended",)))
        assert Verdict(TrialState.FAILED, "no_tokens", "no output token came out in the window") == judged

    def test_a_reason_against_the_window_is_invalid(self) -> None:
        """A window with reasons is invalid by the first of them, even where a limit is missed too."""
        measurement = latencies(612.0, reasons=("sampling_gap", "no_steady_state"))
        judged = verdict(make_request(sla=(TTFT,)), measurement)
        assert Verdict(TrialState.INVALID, "sampling_gap", "sampling_gap; no_steady_state") == judged

    def test_no_energy_is_invalid(self) -> None:
        """A reading without energy that nothing speaks against does not complete a trial."""
        judged = verdict(make_request(), measured(None, 10.0))
        assert (judged.state, judged.reason) == (TrialState.INVALID, "no_energy")

    def test_no_sample_on_the_axis_is_invalid(self) -> None:
        """A window that says nothing on the front's latency axis is invalid and says what to do."""
        judged = verdict(make_request(latency_metric="tpot_p99_ms"), latencies(10.0, None))
        assert (judged.state, judged.reason) == (TrialState.INVALID, "no_latency_samples")
        assert "tpot_p99_ms; lengthen the window" in (judged.detail or "")


class TestTasks:
    """Every task must keep its share of the reference's score."""

    def scored(self, *scores: float) -> Quality:
        tasks = tuple(
            TaskScore(task=f"t{place}", metric="acc", score=score, reference_score=0.5, num_documents=20)
            for place, score in enumerate(scores)
        )
        return replace(quality(1.0), tasks=tasks)

    def test_the_worst_task_decides(self) -> None:
        """A share below the limit on one task fails the gate, whatever the others gain; the detail names that task."""
        failed = quality_verdict(QualityGate(tasks=("a", "b")), self.scored(0.6, 0.45))
        assert failed is not None
        assert (failed.state, failed.reason) == (TrialState.INFEASIBLE, "quality:task_share")
        told = "t1 acc is 0.45, 0.9000 of the 0.5 of fp32; the gate is 0.99 (measured in this job; no window was run)"
        assert told == failed.detail

    def test_the_limit_itself_is_inside(self) -> None:
        """A share of exactly the limit passes, as does more than the reference has."""
        assert quality_verdict(QualityGate(tasks=("a",), min_task_share=0.5), self.scored(0.25)) is None
        assert quality_verdict(QualityGate(tasks=("a",)), self.scored(0.75)) is None

    def test_unknown_scores_miss_the_limit(self) -> None:
        """Where tasks are asked for and none was scored, nothing shows that the limit holds."""
        failed = quality_verdict(QualityGate(tasks=("a",)), self.scored())
        assert failed is not None
        assert "scores on tasks are unknown" in (failed.detail or "")

    def test_without_tasks_there_is_no_such_limit(self) -> None:
        """What an earlier job scored does not judge a job that asks for no tasks."""
        assert quality_verdict(QualityGate(), self.scored(0.1)) is None
