"""One point measured on a scripted engine and device: what is launched, what is run, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import (
    CheckpointError,
    EngineDied,
    EngineError,
    InvalidSettings,
    NotEnoughMemory,
    NumericsError,
    UnknownModel,
)
from probes.device import Status
from probes.errors import (
    ControlLeaseLost,
    DeviceInUse,
    GuardUnavailable,
    InvalidSetting,
    ProbeError,
    RestoreFailed,
    Uncontrolled,
)
from probes.settings import CPU_CLOCK_CAP, DeviceSettings
from tests.probes.fake_clock import FakeClock
from tests.tuner.factories import make_request
from tests.tuner.scripted import Launcher, ScriptedControl, ScriptedDevice, ScriptedEngine
from tuner.bench import Bench, Outcome
from tuner.errors import InvalidRequest
from tuner.point import OperatingPoint
from tuner.request import Limit, QualityGate, WindowRule, WorkloadSpec
from tuner.rig import DeviceRig
from tuner.trial import TrialState

Change = Callable[[ScriptedEngine], ScriptedEngine]


def make_point(max_batch: int = 4, precision: str = "fp32", prefill_chunk: int = 256) -> OperatingPoint:
    return OperatingPoint.of({"max_batch": max_batch, "precision": precision, "prefill_chunk": prefill_chunk})


def with_(**changes: Any) -> Change:
    return lambda made: replace(made, **changes)


class Rig:
    """A bench on a scripted engine and device."""

    def __init__(
        self, device: ScriptedDevice | None = None, *, control: ScriptedControl | None = None, **changes: Any
    ) -> None:
        self.launcher = Launcher()
        self.device = device or ScriptedDevice()
        self.device.clock = self.launcher.clock
        rig = DeviceRig(self.device, control=control, clock=FakeClock())
        self.bench = Bench(make_request(**changes), self.device, self.launcher, rig=rig)

    def measure(self, **knobs: Any) -> Outcome:
        return self.bench.measure(make_point(**knobs))

    def measure_capped(self, cap_mhz: int = 990) -> Outcome:
        """Measure a point with a CPU clock cap, which a scripted device takes at its word."""
        return self.bench.measure(OperatingPoint.of({**make_point().as_dict(), CPU_CLOCK_CAP: cap_mhz}))

    @property
    def journal(self) -> list[str]:
        """What the engines did, without the many pieces of one score."""
        steps = self.launcher.journal
        return [step for i, step in enumerate(steps) if i == 0 or step != steps[i - 1]]


class TestLaunches:
    """When an engine is launched, reused, closed."""

    def test_the_first_point_launches_scores_and_runs(self) -> None:
        """One launch at the reference precision is enough: it is scored, then it serves as many as its batch."""
        rig = Rig()
        assert TrialState.COMPLETE is rig.measure().state
        assert rig.journal == ["open fp32 4", "score fp32", "run fp32 4"]

    def test_the_same_launch_knobs_reuse_the_engine(self) -> None:
        """A point measured again, or with another live knob, takes no launch and no score."""
        rig = Rig()
        for _ in range(2):
            rig.measure()
        assert rig.journal == ["open fp32 4", "score fp32", "run fp32 4"]
        assert len(rig.launcher.opened) == 1

    def test_the_prefill_chunk_is_set_on_the_running_engine(self) -> None:
        """The live knob is set before the run that it is meant for, and only when it changes."""
        rig = Rig()
        for chunk in (256, 64, 64, 32):
            rig.measure(prefill_chunk=chunk)
        assert rig.journal == [
            "open fp32 4", "score fp32", "run fp32 4", "chunk 64", "run fp32 4", "chunk 32", "run fp32 4",
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
            "open fp32 4", "score fp32", "close fp32", "open int8 4", "score int8", "run int8 4",
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

    def test_a_window_without_tokens_is_failed(self) -> None:
        """Power case 64: an engine that brings no token forth fails its trial at the limits, with a reason."""
        rig = Rig()
        rig.launcher.changes["fp32"] = with_(has_tokens=False)
        outcome = rig.measure()
        assert (outcome.state, outcome.reason) == (TrialState.FAILED, "no_tokens")
        assert outcome.measurement is not None
        assert (outcome.measurement.output_tokens, outcome.measurement.tok_per_j) == (0, None)


class TestFailures:
    """What fails a trial, what makes it infeasible, and what ends the job."""

    @pytest.mark.parametrize(
        "error",
        [EngineDied("SIGKILL, possibly for lack of memory"), NotEnoughMemory("needs 9 GB"), EngineError("other")],
        ids=lambda error: error.kind,
    )
    @pytest.mark.parametrize("when", ["launch", "score", "run"])
    def test_an_engine_error_fails_the_trial_and_not_the_next(self, error: EngineError, when: str) -> None:
        """Whenever the engine fails, the trial has its kind and message, the engine is closed, the next point works."""
        rig = Rig()
        if when == "launch":
            rig.launcher.errors = [error]
        else:
            rig.launcher.changes["fp32"] = with_(**{f"{when}_error": error})
        assert Outcome(state=TrialState.FAILED, reason=error.kind, detail=str(error)) == rig.measure()
        assert all(opened.is_closed for opened in rig.launcher.opened)
        assert all(meter.calls[-1] == "close" for meter in rig.device.meters)
        rig.launcher.changes.clear()
        assert TrialState.COMPLETE is rig.measure().state

    def test_out_of_memory_is_failed_by_name(self) -> None:
        """Settings that do not fit the machine fail their trial as out_of_memory."""
        rig = Rig()
        rig.measure()
        rig.launcher.errors = [NotEnoughMemory("64 sequences need 9 GB, 4 GB are free")]
        outcome = rig.measure(max_batch=64)
        assert (outcome.state, outcome.reason) == (TrialState.FAILED, "out_of_memory")
        assert outcome.measurement is None

    def test_a_dead_engine_is_not_used_again(self) -> None:
        """After an engine died the same point gets a new one, while its scores are kept."""
        rig = Rig()
        rig.launcher.changes["fp32"] = with_(run_error=EngineDied("gone"))
        rig.measure()
        rig.launcher.changes.clear()
        rig.measure()
        assert rig.journal == [
            "open fp32 4", "score fp32", "run fp32 4", "close fp32", "open fp32 4", "run fp32 4",
        ]  # fmt: skip

    def test_a_load_that_ends_before_the_window_is_a_dead_engine(self) -> None:
        """An engine that returns without having been told to stop fails its trial."""

        class Quitter(ScriptedEngine):
            def run(self, *_: Any) -> list[Any]:
                return []

        rig = Rig()
        rig.launcher.changes["fp32"] = lambda made: Quitter(made.settings, made.clock, made.journal)
        outcome = rig.measure()
        assert (outcome.state, outcome.reason) == (TrialState.FAILED, "engine_died")
        assert "before the window was over" in (outcome.detail or "")

    def test_logits_that_are_not_finite_are_infeasible(self) -> None:
        """A precision whose score overflows is infeasible, and the engines of others are not touched by it."""
        rig = Rig()
        rig.launcher.changes["fp16"] = with_(score_error=NumericsError("m in fp16: logits are not finite"))
        outcome = rig.measure(precision="fp16")
        assert Outcome(
            state=TrialState.INFEASIBLE, reason="numerics", detail="m in fp16: logits are not finite"
        ) == outcome  # fmt: skip
        assert TrialState.COMPLETE is rig.measure().state

    def test_absurd_probabilities_are_infeasible(self) -> None:
        """BUG-13: a precision whose perplexity is beyond all numbers is infeasible, and no infinity is stored."""
        rig = Rig()
        rig.launcher.changes["int8"] = with_(logprob=-1e4)
        outcome = rig.measure(precision="int8")
        assert (outcome.state, outcome.reason, outcome.measurement) == (TrialState.INFEASIBLE, "numerics", None)

    def test_requests_that_overflow_are_infeasible(self) -> None:
        """Where requests ended over their numerics the trial is infeasible, with their number and the measurement."""
        rig = Rig()
        rig.launcher.changes["fp32"] = with_(request_error="numerics: logits are not finite")
        outcome = rig.measure()
        assert (outcome.state, outcome.reason) == (TrialState.INFEASIBLE, "numerics")
        assert "requests: numerics: logits are not finite" in (outcome.detail or "")
        assert outcome.measurement is not None

    @pytest.mark.parametrize(
        "error",
        [CheckpointError("model.safetensors is cut short"), UnknownModel("no such model"), InvalidSettings("no")],
        ids=lambda error: error.kind,
    )
    def test_what_would_fail_every_trial_is_raised(self, error: EngineError) -> None:
        """A damaged checkpoint, an unknown model or refused settings end the job, not each of its trials in turn."""
        rig = Rig()
        rig.measure()
        rig.launcher.errors = [error]
        with pytest.raises(type(error), match=str(error)):
            rig.measure(max_batch=8)
        assert rig.launcher.opened[0].is_closed

    def test_a_prompt_longer_than_the_text_is_raised(self) -> None:
        """A workload that the prompt text cannot fill ends the job with the field's name, before the engine runs."""
        rig = Rig(workload=WorkloadSpec(prompt_tokens=(8, 1_000_000)))
        with pytest.raises(InvalidRequest, match=r"workload\.prompt_tokens is 1000000"):
            rig.measure()
        assert not any(step.startswith("run") for step in rig.journal)


def device_at(clock_mhz: float) -> ScriptedDevice:
    return ScriptedDevice(shows=lambda now_s: Status(time_s=now_s, clock_mhz=clock_mhz))


class TestDeviceSettings:
    """A point that sets something on the device."""

    def test_it_is_set_before_the_run_and_given_back_after_it(self) -> None:
        """The cap is in force while the load runs, the meter knows of it, and afterwards what was found is back."""
        control = ScriptedControl()
        rig = Rig(device_at(985.0), control=control)
        assert TrialState.COMPLETE is rig.measure_capped().state
        assert control.calls == ["apply {'cpu_clock_cap_mhz': 990}", "restore"]
        assert [DeviceSettings(cpu_clock_cap_mhz=990)] == rig.device.metered_settings

    def test_a_point_without_a_cap_touches_nothing(self) -> None:
        """Where the point sets nothing the control is not even asked."""
        control = ScriptedControl()
        assert TrialState.COMPLETE is Rig(control=control).measure().state
        assert control.calls == []

    @pytest.mark.parametrize("error", [Uncontrolled("not permitted"), InvalidSetting("no such clock")])
    def test_a_refused_setting_fails_the_trial_unmeasured(self, error: ProbeError) -> None:
        """POWER-23: what cannot be set is not measured at another clock under the requested one's name."""
        rig = Rig(control=ScriptedControl(apply_error=error))
        assert Outcome(state=TrialState.FAILED, reason=error.kind, detail=str(error)) == rig.measure_capped()
        assert not any(step.startswith("run") for step in rig.journal)
        assert rig.device.meters == []

    def test_without_a_control_nothing_is_measured_under_a_cap(self) -> None:
        """A bench that only observes refuses a point that sets something, and says so."""
        outcome = Rig().measure_capped()
        assert (outcome.state, outcome.reason) == (TrialState.FAILED, "uncontrolled")

    def test_a_cap_that_the_clock_ignores_is_invalid(self) -> None:
        """BUG-49: a cap that was accepted while the clock stays at 1980 makes the trial invalid, without a figure."""
        control = ScriptedControl()
        rig = Rig(device_at(1980.0), control=control)
        outcome = rig.measure_capped()
        assert (outcome.state, outcome.reason, outcome.measurement) == (TrialState.INVALID, "clock_not_attained", None)
        assert control.calls[-1] == "restore"
        assert rig.device.meters[0].calls == ["close"]

    def test_a_lost_lease_makes_the_window_invalid(self) -> None:
        """POWER-41: when the guard took the cap back the window ends, and its figures are not to be used."""
        rig = Rig(device_at(985.0), control=ScriptedControl(reasons=[(), ("control_lease_lost",)]))
        outcome = rig.measure_capped()
        assert (outcome.state, outcome.reason) == (TrialState.INVALID, "control_lease_lost")
        assert outcome.measurement is not None
        assert outcome.measurement.window_s < 5.0

    def test_an_error_in_the_run_gives_back_too(self) -> None:
        """POWER-33: an engine that dies under a cap leaves no cap behind."""
        control = ScriptedControl()
        rig = Rig(device_at(985.0), control=control)
        rig.launcher.changes["fp32"] = with_(run_error=EngineDied("killed"))
        assert rig.measure_capped().reason == "engine_died"
        assert control.calls[-1] == "restore"

    def test_a_failed_restore_keeps_the_trial_and_stops_the_job(self) -> None:
        """What was measured stays measured; the next point is not begun on a device that is not as it was found."""
        control = ScriptedControl(restore_error=RestoreFailed("power limit: not permitted"))
        rig = Rig(device_at(985.0), control=control)
        assert TrialState.COMPLETE is rig.measure_capped().state
        with pytest.raises(RestoreFailed, match="power limit"):
            rig.measure()

    @pytest.mark.parametrize(
        "error",
        [DeviceInUse("held by process 7"), ControlLeaseLost("the guard is gone"), GuardUnavailable("no answer")],
    )
    def test_what_may_be_otherwise_later_is_not_a_trial(self, error: ProbeError) -> None:
        """A device in use or a guard that is gone goes to whoever runs the job: it is not the point's fault."""
        with pytest.raises(type(error), match=str(error)):
            Rig(control=ScriptedControl(apply_error=error)).measure_capped()

    def test_what_is_lost_as_the_window_closes_counts(self) -> None:
        """Asked once a second, the last second may have lost the cap: it is asked once more when the window is over."""
        control = ScriptedControl(reasons=[(), (), (), (), ("control_lease_lost",)])
        rig = Rig(device_at(985.0), control=control)
        outcome = rig.measure_capped()
        assert (control.reasons, outcome.reason) == ([], "control_lease_lost")

    def test_a_rollback_that_failed_is_not_forgotten(self) -> None:
        """Where applying failed and undoing it too, nothing else is measured on the device."""
        rig = Rig(control=ScriptedControl(apply_error=RestoreFailed("clock: not permitted")))
        for measure in (rig.measure_capped, rig.measure):
            with pytest.raises(RestoreFailed, match="clock"):
                measure()
