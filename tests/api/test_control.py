"""A job that sets clocks, from the request to the journal: driver and engine are scripted, all between them is real."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from api.job_run import run_job
from api.prepare import prepare
from api.settings import Settings
from api.stores import Stores
from api.worker import give_back
from db.device import ControlState
from db.job import Job, JobState
from engine.settings import EngineSettings
from probes.control.journal import Journal
from probes.cpu.paths import HostPaths
from probes.detect import Host
from probes.errors import DeviceLost, RestoreFailed, Uncontrolled
from probes.nvidia.nvml import Nvml
from tests.api.scripted import claimed, tiny_request
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_nvml import FIRST_UUID, FakeGpu, FakeNvml, install
from tests.tuner.scripted import ScriptedEngine, StepClock
from tuner.errors import InvalidRequest
from tuner.request import Budget, KnobRange, TuneRequest, WindowRule
from tuner.trial import TrialState

SET_CLOCKS = "nvmlDeviceSetGpuLockedClocks"
RESET_CLOCKS = "nvmlDeviceResetGpuLockedClocks"
SET_LIMIT = "nvmlDeviceSetPowerManagementLimit"
LONG_WINDOW = WindowRule(warmup_s=2.0, max_warmup_s=30.0, window_s=30.0, min_requests=4, max_window_s=40.0, idle_s=0.0)
NO_PERMISSION = pynvml.NVML_ERROR_NO_PERMISSION


class DrivenClock(StepClock):
    """The engine's steps move the clock that everything else lives by."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    @property
    def now_s(self) -> float:
        return self.clock.monotonic_s()

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        self.clock.advance(now_s - self.clock.monotonic_s())


class Machine:
    """One GPU under an administrator's limit of 500 W, an engine that only steps, and the worker between them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings, stores: Stores) -> None:
        self.clock = FakeClock()
        self.gpu = FakeGpu(clock=self.clock, limit_mw=500_000).with_instant_power()
        self.settings = settings.model_copy(update={"allow_device_control": True})
        self.stores = stores
        install(monkeypatch, FakeNvml(self.gpu))
        host = Host(nvml=Nvml(), clock=self.clock, environ={}, paths=HostPaths(powercap=tmp_path / "none"))
        monkeypatch.setattr("api.prepare.may_set", lambda _: True)
        # A control that could not put back tries once more at the interpreter's exit: too late for a fake driver.
        monkeypatch.setattr("probes.control.local.atexit.register", lambda *_: None)
        for module in ("api.prepare", "api.worker"):
            monkeypatch.setattr(f"{module}.probe_host", lambda _: host)
        monkeypatch.setattr("api.engine_opener.EngineHost", self._engine)

    def run(self, request: TuneRequest) -> Job:
        return run_job(self.stores, claimed(self.stores, request), self.settings)

    @property
    def journal(self) -> Journal:
        return Journal(self.settings.state_dir)

    def _engine(self, settings: EngineSettings, *_: object, **__: object) -> ScriptedEngine:
        return ScriptedEngine(settings, DrivenClock(self.clock), [])


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings, stores: Stores) -> Machine:
    return Machine(monkeypatch, tmp_path, settings, stores)


def capped_request(folder: Path, **changes: Any) -> TuneRequest:
    """Ask for one batch size under two clock caps, in windows of four seconds."""
    request = tiny_request(
        folder,
        device="gpu",
        allow_device_control=True,
        knobs=(
            KnobRange(name="precision", values=("fp32",)),
            KnobRange(name="max_batch", values=(4,)),
            KnobRange(name="sm_clock_cap_mhz", values=(1000, 1980)),
        ),
        window=WindowRule(warmup_s=2.0, max_warmup_s=30.0, window_s=4.0, min_requests=4, max_window_s=12.0, idle_s=2.0),
        budget=Budget(trials=2),
    )
    return replace(request, **changes)


def test_caps_are_set_for_their_trials_and_given_back(machine: Machine, tiny_folder: Path) -> None:
    """Each trial locks the clock to its snapped cap and undoes it; the limit is untouched, the journal empty."""
    job = machine.run(capped_request(tiny_folder))
    assert (job.state, job.ended_because) == (JobState.FINISHED, "trials")
    assert machine.gpu.writes == [
        (SET_CLOCKS, 210, 1980),
        (RESET_CLOCKS,),
        (SET_CLOCKS, 210, 990),
        (RESET_CLOCKS,),
    ]
    assert (machine.gpu.locked, machine.gpu.limit_mw) == (None, 500_000)
    assert machine.journal.entries() == ()
    assert ControlState.OBSERVED is machine.stores.devices.get(FIRST_UUID).control_state


def test_a_trial_keeps_the_clock_it_ran_at(machine: Machine, tiny_folder: Path) -> None:
    """The stored trial names the cap that was set, the clock that was run at, and the idle power beside it."""
    job = machine.run(capped_request(tiny_folder))
    capped = machine.stores.trials.list(job.id)[1]
    assert (capped.state, capped.point["sm_clock_cap_mhz"]) == (TrialState.COMPLETE, 990)
    assert capped.measurement is not None
    (conditions,) = capped.measurement.reading.conditions
    assert (conditions.device_uuid, conditions.mean_clock_mhz) == (FIRST_UUID, 990.0)
    assert pytest.approx(300.0, rel=0.01) == capped.measurement.idle_power_w


def test_a_refused_lock_is_no_measurement(machine: Machine, tiny_folder: Path) -> None:
    """POWER-23: without permission every capped trial is uncontrolled, nothing is measured, nothing is left behind."""
    machine.gpu.refusals[SET_CLOCKS] = NO_PERMISSION
    job = machine.run(capped_request(tiny_folder))
    trials = machine.stores.trials.list(job.id)
    assert [(trial.reason, trial.measurement) for trial in trials] == [("uncontrolled", None)] * 2
    assert (job.state, job.ended_because) == (JobState.FAILED, "no_usable_trial")
    assert machine.journal.entries() == ()


def test_a_cap_that_does_nothing_is_seen(machine: Machine, tiny_folder: Path) -> None:
    """BUG-49: a lock that the driver accepts and the clock ignores gives an invalid trial, not one at that cap."""
    machine.gpu.is_lock_effective = False
    machine.gpu.sm_clock_mhz = 1980
    job = machine.run(capped_request(tiny_folder))
    capped = machine.stores.trials.list(job.id)[1]
    assert (capped.state, capped.reason, capped.measurement) == (TrialState.INVALID, "clock_not_attained", None)


def test_a_failed_restore_stops_the_job_and_blocks_the_device(machine: Machine, tiny_folder: Path) -> None:
    """The job fails with the remedy, the store tells of the device, and the next job is refused before it begins."""
    machine.gpu.refusals[RESET_CLOCKS] = NO_PERMISSION
    with pytest.raises(RestoreFailed):
        machine.run(capped_request(tiny_folder))
    (entry,) = machine.journal.entries()
    assert entry.device_uuid == FIRST_UUID
    seen = machine.stores.devices.get(FIRST_UUID)
    assert ControlState.RESTORE_FAILED is seen.control_state
    with pytest.raises(RestoreFailed, match="wattfront restore"):
        prepare(capped_request(tiny_folder), machine.settings, lambda *_: None)
    machine.gpu.refusals.clear()
    give_back(machine.stores, machine.settings)
    assert (machine.gpu.locked, machine.journal.entries()) == (None, ())
    assert ControlState.OBSERVED is machine.stores.devices.get(FIRST_UUID).control_state
    assert JobState.FINISHED is machine.run(capped_request(tiny_folder)).state


def test_an_administrators_limit_is_not_exceeded(machine: Machine, tiny_folder: Path) -> None:
    """On a board that somebody limited to 500 W no point asks for more, the default point included."""
    knobs = (
        KnobRange(name="precision", values=("fp32",)),
        KnobRange(name="max_batch", values=(4,)),
        KnobRange(name="power_cap_w", values=(400, 700)),
    )
    prepared = prepare(capped_request(tiny_folder, knobs=knobs), machine.settings, lambda *_: None)
    assert [point["power_cap_w"] for point in prepared.space.points()] == [400, 500]
    assert prepared.space.default_point["power_cap_w"] == 500


def test_a_declared_clock_cap_is_not_exceeded(machine: Machine, tiny_folder: Path) -> None:
    """Where the operator declared a clock cap of 1500 MHz no point asks for more, the default point included."""
    declared = machine.settings.model_copy(update={"prior_sm_clock_caps_mhz": {FIRST_UUID: 1500}})
    prepared = prepare(capped_request(tiny_folder), declared, lambda *_: None)
    assert [point["sm_clock_cap_mhz"] for point in prepared.space.points()] == [990, 1500]


def test_what_the_guard_does_not_allow_is_refused(
    machine: Machine, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that asks for a knob which the guard does not offer is refused by the knob's name before it runs."""
    monkeypatch.setattr("api.prepare.offered", lambda *_: ())
    with pytest.raises(InvalidRequest, match=r"knobs\.sm_clock_cap_mhz is .* has no such knob"):
        prepare(capped_request(tiny_folder), machine.settings, lambda *_: None)


def test_without_permission_the_job_is_refused_before_it_runs(
    machine: Machine, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where neither a guard nor this process may set anything the job is refused, not each of its trials."""
    monkeypatch.setattr("api.prepare.may_set", lambda _: False)
    with pytest.raises(InvalidRequest, match="start `wattfront guard` as root"):
        prepare(capped_request(tiny_folder), machine.settings, lambda *_: None)


def test_a_lost_gpu_puts_the_job_aside(machine: Machine, tiny_folder: Path) -> None:
    """POWER-18: a GPU that falls off the bus ends its trial, and the job waits in the queue with what it has."""
    machine.gpu.lost_from_s = machine.clock.monotonic_s() + 25.0
    with pytest.raises(DeviceLost):
        machine.run(capped_request(tiny_folder, window=LONG_WINDOW))
    (job,) = machine.stores.jobs.list(limit=5)
    (trial,) = machine.stores.trials.list(job.id)
    assert (job.state, trial.state, trial.reason) == (JobState.QUEUED, TrialState.INVALID, "device_lost")


def test_an_unreadable_journal_stops_nobody_who_observes(machine: Machine, tiny_folder: Path) -> None:
    """With a journal that cannot be read an observing job runs, and one that would set something is refused."""
    machine.settings.state_dir.parent.mkdir(parents=True, exist_ok=True)
    machine.settings.state_dir.write_text("not a folder")
    give_back(machine.stores, machine.settings)
    with pytest.raises(Uncontrolled):
        prepare(capped_request(tiny_folder), machine.settings, lambda *_: None)
    observing = tiny_request(tiny_folder, device="gpu")
    assert prepare(observing, machine.settings, lambda *_: None).device.info.uuid == FIRST_UUID


def test_the_operator_has_to_allow_it_too(machine: Machine, tiny_folder: Path) -> None:
    """A job that asks for control is refused by name where the operator did not allow it."""
    observed = machine.settings.model_copy(update={"allow_device_control": False})
    with pytest.raises(InvalidRequest, match=r"allow_device_control is True: .*WATTFRONT_ALLOW_DEVICE_CONTROL"):
        prepare(capped_request(tiny_folder), observed, lambda *_: None)


def test_another_actor_is_noticed(machine: Machine, tiny_folder: Path) -> None:
    """POWER-28: a limit that somebody else changes while a trial holds a power cap makes that trial invalid."""
    change: Callable[[], None] = lambda: setattr(machine.gpu, "limit_mw", 650_000)  # noqa: E731 - one line, one use
    machine.gpu.at(machine.clock.monotonic_s() + 25.0, change)
    request = capped_request(
        tiny_folder,
        knobs=(
            KnobRange(name="precision", values=("fp32",)),
            KnobRange(name="max_batch", values=(4,)),
            KnobRange(name="power_cap_w", values=(400,)),
        ),
        window=LONG_WINDOW,
    )
    job = machine.run(request)
    (trial,) = machine.stores.trials.list(job.id)
    assert (trial.state, trial.reason) == (TrialState.INVALID, "external_change")
    assert machine.gpu.limit_mw == 500_000


def test_a_journal_is_plain_to_read(machine: Machine, tiny_folder: Path) -> None:
    """While a trial runs the file names the device and what was set, for whoever has to help by hand."""
    seen: list[dict[str, Any]] = []

    def look() -> int:
        seen.extend(json.loads(path.read_text()) for path in machine.settings.state_dir.glob("*.json"))
        return 0

    machine.gpu.refusals[SET_CLOCKS] = look
    machine.run(capped_request(tiny_folder))
    assert [document["device_uuid"] for document in seen] == [FIRST_UUID] * 2
    assert seen[1]["written"] == {"sm_clock_cap_mhz": 990}
