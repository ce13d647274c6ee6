"""One point measured on a scripted engine and device: what is launched, what is run, and what is made of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.tuner.bench_stand import Rig, with_
from tests.tuner.scripted import MemoryStore, ScriptedDevice
from tuner.request import Limit, QualityGate, WindowRule, WorkloadSpec
from tuner.trial import TrialState


class TestLaunches:
    """When an engine is launched, reused, closed."""

    def test_the_first_point_launches_scores_and_runs(self) -> None:
        """One launch at the reference precision is enough: it is scored, then it serves as many as its batch."""
        rig = Rig()
        assert TrialState.COMPLETE is rig.measure().state
        assert rig.journal == ["open fp32 4", "complete fp32", "score fp32", "run fp32 4"]

    def test_the_same_launch_knobs_reuse_the_engine(self) -> None:
        """A point measured again, or with another live knob, takes no launch and no score."""
        rig = Rig()
        for _ in range(2):
            rig.measure()
        assert rig.journal == ["open fp32 4", "complete fp32", "score fp32", "run fp32 4"]
        assert len(rig.launcher.opened) == 1

    def test_the_prefill_chunk_is_set_on_the_running_engine(self) -> None:
        """The live knob is set before the run that it is meant for, and only when it changes."""
        rig = Rig()
        for chunk in (256, 64, 64, 32):
            rig.measure(prefill_chunk=chunk)
        assert rig.journal == [
            "open fp32 4", "complete fp32", "score fp32",
            "run fp32 4", "chunk 64", "run fp32 4", "chunk 32", "run fp32 4",
        ]  # fmt: skip
        assert rig.launcher.opened[0].settings.prefill_chunk == 32

    @pytest.mark.parametrize(
        ("knobs", "again"),
        [
            ({"max_batch": 8}, ["close fp32", "open fp32 8", "run fp32 8"]),
            ({"precision": "bf16"}, ["close fp32", "open bf16 4", "score bf16", "run bf16 4"]),
        ],
        ids=["max_batch", "precision"],
    )
    def test_a_launch_knob_launches_again(self, knobs: dict[str, Any], again: list[str]) -> None:
        """Another batch or precision closes the old engine before the new one opens, so both never share memory."""
        rig = Rig()
        rig.measure()
        before = len(rig.journal)
        rig.measure(**knobs)
        assert again == rig.journal[before:]

    def test_the_reference_is_scored_before_other_precisions(self) -> None:
        """A job that begins with int8 launches and scores fp32 first, so that no point is judged without it."""
        rig = Rig()
        outcome = rig.measure(precision="int8")
        assert rig.journal == [
            "open fp32 4", "complete fp32", "score fp32", "close fp32", "open int8 4", "score int8", "run int8 4",
        ]  # fmt: skip
        assert outcome.measurement is not None
        assert outcome.measurement.quality is not None
        assert outcome.measurement.engine.precision == "int8"

    def test_each_precision_is_scored_once(self) -> None:
        """However often precisions alternate, the text is scored once with each."""
        rig = Rig()
        for precision in ("int8", "fp32", "bf16", "int8", "bf16"):
            rig.measure(precision=precision)
        assert [s for s in rig.journal if s.startswith("score")] == ["score fp32", "score int8", "score bf16"]

    def test_closing_closes_the_engine_once(self) -> None:
        """A bench closes what it opened; closing it again, or before anything was opened, does nothing."""
        rig = Rig()
        rig.bench.close()
        rig.measure()
        rig.bench.close()
        rig.bench.close()
        assert rig.journal.count("close fp32") == 1
        assert rig.launcher.opened[0].is_closed


class TestMeasurement:
    """What a window on the bench shows."""

    def test_its_figures_are_those_of_the_scripted_run(self) -> None:
        """Four requests with a token per step of 125 ms are 32 tokens a second, 0.64 tokens per joule of 50 W."""
        shown = Rig().measure().measurement
        assert shown is not None
        assert shown.tok_per_j is not None
        assert shown.tpot.mean is not None
        assert shown.mean_power_w is not None
        assert (
            shown.output_tok_s.value,
            shown.tok_per_j.value,
            shown.mean_power_w,
        ) == (32.0, 0.64, 50.0)
        assert (
            shown.tpot.mean.value,
            shown.mean_running,
            shown.window_s,
            shown.warmup_s,
        ) == (125.0, 4.0, 4.0, 1.0)
        assert shown.prompt_tokens > 0
        assert (shown.quality and shown.quality.perplexity_ratio) == 1.0

    def test_the_meter_watches_the_engines_processes_and_is_closed(self) -> None:
        """The meter is opened for the engine's processes, started and stopped once, and closed."""
        rig = Rig()
        rig.measure()
        assert rig.device.metered_pids == [(11, 12)]
        assert [meter.calls for meter in rig.device.meters] == [["start", "stop", "close"]]

    def test_a_given_concurrency_is_offered(self) -> None:
        """The workload's own concurrency goes before the batch size."""
        rig = Rig(workload=WorkloadSpec(prompt_tokens=(8, 16), output_tokens=(2, 6), concurrency=3))
        assert "run fp32 3" in (rig.measure(), rig.journal)[1]

    def test_points_get_prompts_of_their_own(self) -> None:
        """Another point of the job gets other prompts, the same point the same ones."""
        rig = Rig()
        shown = [rig.measure(prefill_chunk=chunk).measurement for chunk in (256, 64, 256)]
        prompts = [one and one.prompt_tokens for one in shown]
        assert prompts[0] == prompts[2] != prompts[1]

    def test_an_unsteady_warm_up_is_invalid(self) -> None:
        """A point that is not steady by the limit is measured, kept with its figures, and invalid."""
        rig = Rig(
            window=WindowRule(
                warmup_s=0.5, max_warmup_s=0.5, window_s=2.0, min_requests=0, max_window_s=2.0, idle_s=0.0
            )
        )
        rig.launcher.changes["fp32"] = lambda made: replace(made, settings=replace(made.settings, max_batch=1))
        outcome = rig.measure(max_batch=8)  # one at a time, so that eight first tokens take their time
        assert (outcome.state, outcome.reason) == (TrialState.INVALID, "no_steady_state")
        assert outcome.measurement is not None

    def test_an_invalid_reading_is_an_invalid_trial(self) -> None:
        """Reasons against the reading are the trial's, and its energy figures are None."""
        outcome = Rig(ScriptedDevice(reasons=("suspended",))).measure()
        assert (outcome.state, outcome.reason) == (TrialState.INVALID, "suspended")
        assert outcome.measurement is not None
        assert (outcome.measurement.tok_per_j, outcome.measurement.mean_power_w) == (None, None)

    def test_a_missed_limit_keeps_the_measurement(self) -> None:
        """An infeasible point keeps what was measured, so that the nearest miss can be told."""
        outcome = Rig(sla=(Limit(metric="tpot_p50_ms", bound_ms=99.0),)).measure()
        assert (outcome.state, outcome.reason) == (TrialState.INFEASIBLE, "sla:tpot_p50_ms")
        assert outcome.measurement is not None

    def test_a_precision_that_costs_too_much_is_infeasible(self) -> None:
        """A precision with a perplexity ratio of exp(0.5) misses a gate of 1.5, and fp32 itself does not."""
        rig = Rig(quality=QualityGate(max_perplexity_ratio=1.5))
        rig.launcher.changes["int8"] = with_(logprob=-2.5)
        outcome = rig.measure(precision="int8")
        assert (outcome.state, outcome.reason) == (TrialState.INFEASIBLE, "quality:perplexity_ratio")
        assert TrialState.COMPLETE is rig.measure().state

    def test_no_window_is_run_for_a_precision_that_fails_the_gate(self) -> None:
        """Device time is for points that may be used: nothing of the precision is served, now or for a later point."""
        rig = Rig(quality=QualityGate(max_kl=0.1))
        first, again = rig.measure(precision="int8"), rig.measure(precision="int8", max_batch=8)
        assert first == again
        assert (first.state, first.reason, first.measurement) == (TrialState.INFEASIBLE, "quality:kl", None)
        assert "KL divergence from fp32 is 0.25, the gate is 0.1 (measured in this job" in (first.detail or "")
        assert rig.journal == ["open fp32 4", "complete fp32", "score fp32", "close fp32", "open int8 4", "score int8"]

    def test_a_stored_failure_takes_no_launch(self) -> None:
        """What an earlier job found out about a precision rules it out before it is launched, and says when."""
        store = MemoryStore()
        Rig(qualities=store).measure(precision="int8")
        rig = Rig(qualities=store, quality=QualityGate(max_kl=0.1))
        assert TrialState.COMPLETE is rig.measure().state
        outcome = rig.measure(precision="int8")
        assert (outcome.state, outcome.reason) == (TrialState.INFEASIBLE, "quality:kl")
        assert "known from a job on 20" in (outcome.detail or "")
        assert not any("int8" in step for step in rig.journal)

    def test_a_window_without_tokens_is_failed(self) -> None:
        """Power case 64: an engine that brings no token forth fails its trial at the limits, with a reason."""
        rig = Rig()
        rig.launcher.changes["fp32"] = with_(has_tokens=False)
        outcome = rig.measure()
        assert (outcome.state, outcome.reason) == (TrialState.FAILED, "no_tokens")
        assert outcome.measurement is not None
        assert (outcome.measurement.output_tokens, outcome.measurement.tok_per_j) == (0, None)
