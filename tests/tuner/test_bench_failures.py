"""What may go wrong on a bench: in the engine, and where a point sets something on the device."""

from __future__ import annotations

import pytest

from engine.errors import (
    CheckpointError,
    EngineDied,
    EngineError,
    InvalidSettings,
    NotEnoughMemory,
    NotNative,
    NumericsError,
    UnknownModel,
)
from engine.load import ClosedLoad, Load, Observer
from engine.request import RequestRecord
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
from probes.settings import DeviceSettings
from tests.tuner.bench_stand import Rig, told, with_
from tests.tuner.scripted import ScriptedControl, ScriptedDevice, ScriptedEngine
from tuner.errors import InvalidRequest
from tuner.request import WorkloadSpec
from tuner.trial import TrialState


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
        assert (TrialState.FAILED, error.kind, str(error), None) == told(rig.measure())
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
            "open fp32 4", "complete fp32", "score fp32", "run fp32 4", "close fp32", "open fp32 4", "run fp32 4",
        ]  # fmt: skip

    def test_a_load_that_ends_before_the_window_is_a_dead_engine(self) -> None:
        """An engine that returns without having been told to stop fails its trial."""

        class Quitter(ScriptedEngine):
            def run(self, load: Load, observer: Observer) -> list[RequestRecord]:
                assert isinstance(load, ClosedLoad)
                first = next(load.requests)
                completing = first.request_id.startswith("quality/")
                return self._complete([first, *load.requests]) if completing else []

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
        assert told(outcome) == (TrialState.INFEASIBLE, "numerics", "m in fp16: logits are not finite", None)
        assert TrialState.COMPLETE is rig.measure().state

    def test_an_emulated_engine_runs_no_window(self) -> None:
        """What is emulated is scored, but its speed and energy are never measured: the trial is invalid, by name."""
        rig = Rig()
        rig.launcher.changes["bf16"] = with_(is_emulated=True)
        outcome = rig.measure(precision="bf16")
        assert (outcome.state, outcome.reason) == (TrialState.INVALID, "emulated")
        assert (outcome.measurement, outcome.session, outcome.device_j) == (None, None, None)
        assert [step for step in rig.journal if "bf16" in step] == ["open bf16 4", "score bf16"]

    def test_a_precision_that_the_device_lacks_fails_alone(self) -> None:
        """A launch that is refused for want of hardware is a failed trial with its reason, and the job goes on."""
        rig = Rig()
        rig.measure()
        rig.launcher.errors = [NotNative("precision is 'fp8', which needs a newer GPU")]
        outcome = rig.measure(precision="fp8")
        assert told(outcome) == (TrialState.FAILED, "not_native", "precision is 'fp8', which needs a newer GPU", None)
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
        assert (TrialState.FAILED, error.kind, str(error), None) == told(rig.measure_capped())
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
