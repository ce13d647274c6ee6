"""A running job that is cancelled, hangs or is over its time: it ends, gives its device back, keeps its trials."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from api.job_run import Listener, run_job
from api.settings import Settings
from api.stores import Stores
from api.watchdog import Watchdog
from api.worker import work
from db.errors import DatabaseBusy, DatabaseUnreachable
from db.job import Job, JobState
from db.trials import StartedTrial
from engine.embedded.gguf_file import Progress
from engine.load import Load, Observer
from engine.request import RequestRecord
from engine.serving import TokenScores
from engine.settings import EngineSettings
from tests.api.commands import wait_until
from tests.api.scripted import claimed
from tests.api.test_control import SET_CLOCKS, DrivenClock, Machine, capped_request
from tests.tuner.scripted import ScriptedEngine
from tests.tuner.simulated import WINDOW, make_simulated
from tuner.point import OperatingPoint
from tuner.request import Budget, KnobRange, RepeatRule, TuneRequest, WindowRule
from tuner.trial import TrialRole, TrialState

#: A day of virtual time, in which nobody waits for its end.
ENDLESS = WindowRule(warmup_s=1.0, window_s=86_400.0, max_window_s=86_400.0, idle_s=0.0)
ENDLESS_WARMUP = WindowRule(warmup_s=86_400.0, max_warmup_s=86_400.0)


@pytest.fixture(autouse=True)
def _quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.heartbeat._HEARTBEAT_S", 0.01)


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt a job that does not hear at the first look."""
    monkeypatch.setattr("api.job_run.Watchdog", partial(Watchdog, grace_s=0.0))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings, stores: Stores) -> Machine:
    return Machine(monkeypatch, tmp_path, settings, stores)


def simulated(**changes: object) -> TuneRequest:
    """Ask for four points on a simulated device, and two windows of the best two."""
    usual: dict[str, object] = {
        "knobs": (KnobRange(name="max_batch", values=(4, 8, 16, 32)),),
        "budget": Budget(trials=4),
        "repeats": RepeatRule(windows=2, finalists=2),
    }
    return make_simulated(**(usual | changes))


def cancel(stores: Stores, job_id: str) -> None:
    """Ask for the end of a job, and return when its worker has heard of it."""
    stores.jobs.request_cancel(job_id)
    for _ in range(2):  # the second beat after the request has surely seen it
        wait_for_a_beat(stores, job_id)


def wait_for_a_beat(stores: Stores, job_id: str) -> None:
    before = stores.jobs.get(job_id).lease_expires_at
    assert before is not None
    wait_until(lambda: (stores.jobs.get(job_id).lease_expires_at or before) > before, what="a heartbeat")


def cancelled_at(stores: Stores, settings: Settings, request: TuneRequest, number: int) -> Job:
    """Run a job that is cancelled as one of its trials begins."""
    claim = claimed(stores, request)

    def on_started(begun: int, _: OperatingPoint) -> None:
        if begun == number:
            cancel(stores, claim.job_id)

    return run_job(stores, claim, settings, listener=Listener(on_trial_started=on_started))


def require_cancelled(stores: Stores, job: Job, *, num_kept: int) -> None:
    """Require that a job was cancelled, nothing of it runs, and what ended before is kept, with its front."""
    assert (job.state, job.ended_because, job.lease_expires_at) == (JobState.CANCELLED, "cancelled", None)
    assert len(stores.trials.history(job.id)) == num_kept
    assert TrialState.RUNNING not in job.num_trials
    front = stores.fronts.latest(job.id)
    assert (front is not None and len(front.trials) > 0) == (num_kept > 0)


def use_engine(monkeypatch: pytest.MonkeyPatch, machine: Machine, kind: type[ScriptedEngine]) -> None:
    """Let jobs on the machine have engines of this kind."""

    def open_engine(settings: EngineSettings, *_: object, **__: object) -> ScriptedEngine:
        return kind(settings, DrivenClock(machine.clock), [])

    monkeypatch.setattr("api.engine_opener.EngineHost", open_engine)


@pytest.mark.parametrize("error", [DatabaseBusy("locked for 10 s"), DatabaseUnreachable("no server")])
def test_a_store_that_is_away_for_a_moment_fails_no_job(
    stores: Stores, settings: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The job waits for the next worker with what it measured, which then runs it to its end."""
    claim, start, begun = claimed(stores, simulated()), stores.trials.start, []

    def start_but_once(_: object, *arguments: Any, **named: Any) -> StartedTrial:
        begun.append(1)
        if len(begun) == 2:
            raise error
        return start(*arguments, **named)

    monkeypatch.setattr(type(stores.trials), "start", start_but_once)
    with pytest.raises(type(error)):
        run_job(stores, claim, settings)
    job = stores.jobs.get(claim.job_id)
    assert (job.state, job.num_trials, job.num_lost) == (JobState.QUEUED, {TrialState.COMPLETE: 1}, 0)
    again = stores.jobs.claim_next("host:2:2", 60.0)
    assert again is not None
    assert run_job(stores, again, settings).state is JobState.FINISHED


# Cancelled at every stage


def test_a_job_cancelled_before_it_begins(stores: Stores, settings: Settings) -> None:
    """A job whose end was asked for under an earlier worker is not even prepared by the next."""
    job = stores.jobs.create(simulated())
    stores.jobs.claim(job.id, "host:1:1", 60)
    stores.jobs.request_cancel(job.id)
    stores.jobs.expire(lambda owner: True)
    claim = stores.jobs.claim(job.id, "host:2:2", 60)
    prepared: list[Job] = []
    ended = run_job(stores, claim, settings, listener=Listener(on_prepared=lambda job, *_: prepared.append(job)))
    require_cancelled(stores, ended, num_kept=0)
    assert prepared == []


def test_a_job_cancelled_while_its_model_is_fetched(
    stores: Stores, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download of hours ends with the job that it is for."""
    claim = claimed(stores, simulated())

    def prepare(_: TuneRequest, __: Settings, progress: Progress, **___: object) -> None:
        cancel(stores, claim.job_id)
        progress("model.safetensors", 0.01)
        raise AssertionError("the download goes on")

    monkeypatch.setattr("api.job_run.prepare", prepare)
    require_cancelled(stores, run_job(stores, claim, settings), num_kept=0)


def test_a_job_cancelled_while_its_engine_loads(
    machine: Machine, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, no_grace: None
) -> None:
    """An engine that takes for ever to open is left after a while; no clock was set, none is left set."""
    claim = claimed(machine.stores, capped_request(tiny_folder))

    def open_engine(*_: object, **__: object) -> None:
        cancel(machine.stores, claim.job_id)
        threading.Event().wait(60)
        raise AssertionError("nobody interrupted the launch")

    monkeypatch.setattr("api.engine_opener.EngineHost", open_engine)
    require_cancelled(machine.stores, run_job(machine.stores, claim, machine.settings), num_kept=0)
    assert (machine.gpu.locked, machine.journal.entries()) == (None, ())


def test_a_job_cancelled_during_its_quality_check(
    machine: Machine, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of quality, which may have thousands of texts, ends before the next one."""
    claim = claimed(machine.stores, capped_request(tiny_folder))
    num_scored: list[int] = []

    class Engine(ScriptedEngine):
        def score(self, token_ids: tuple[int, ...], **how: object) -> TokenScores:
            num_scored.append(1)
            cancel(machine.stores, claim.job_id)
            return ScriptedEngine.score(self, token_ids, num_last=8)

    use_engine(monkeypatch, machine, Engine)
    require_cancelled(machine.stores, run_job(machine.stores, claim, machine.settings), num_kept=0)
    assert len(num_scored) == 1


@pytest.mark.parametrize("window", [ENDLESS, ENDLESS_WARMUP], ids=["window", "warm-up"])
def test_a_job_cancelled_in_its_window(stores: Stores, settings: Settings, window: WindowRule) -> None:
    """A window that would take minutes ends within a step; its trial counts as cut short, and not as lost."""
    job = cancelled_at(stores, settings, simulated(window=window), 0)
    require_cancelled(stores, job, num_kept=0)
    (trial,) = stores.trials.list(job.id)
    assert (trial.state, trial.reason) == (TrialState.INTERRUPTED, "job_ended")


@pytest.mark.parametrize("number", [2, 5], ids=["screening", "finals"])
def test_a_job_cancelled_on_its_way(stores: Stores, settings: Settings, number: int) -> None:
    """Cancelled in the midst of its points or of its finals, a job keeps what ended before, and a front of it."""
    job = cancelled_at(stores, settings, simulated(), number)
    require_cancelled(stores, job, num_kept=number)
    last = stores.trials.list(job.id)[-1]
    assert (last.number, last.state) == (number, TrialState.INTERRUPTED)
    assert (last.role is TrialRole.SCREENING) == (number < 4)


def test_a_cancelled_job_gives_its_device_back(
    machine: Machine, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job cancelled while a clock cap is set leaves the clock as it was found, and an empty journal."""
    claim = claimed(machine.stores, capped_request(tiny_folder))

    class Engine(ScriptedEngine):
        def run(self, load: Load, observer: Observer) -> list[RequestRecord]:
            if machine.gpu.locked is not None:
                cancel(machine.stores, claim.job_id)
            return ScriptedEngine.run(self, load, observer)

    use_engine(monkeypatch, machine, Engine)
    require_cancelled(machine.stores, run_job(machine.stores, claim, machine.settings), num_kept=0)
    assert machine.gpu.writes[0][0] == SET_CLOCKS
    assert (machine.gpu.locked, machine.gpu.limit_mw, machine.journal.entries()) == (None, 500_000, ())


# Hung, and over its time


def test_a_hung_job_is_stopped_and_the_next_one_runs(
    machine: Machine, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BUG-26: an engine that never answers costs its job, not the night: clocks are put back, the next job runs."""
    skipped_s: list[float] = []
    monkeypatch.setattr("api.job_run.Watchdog", partial(Watchdog, now=lambda: time.monotonic() + sum(skipped_s)))
    stores = machine.stores
    hung, after = stores.jobs.create(capped_request(tiny_folder)), stores.jobs.create(simulated())

    class Engine(ScriptedEngine):
        def run(self, load: Load, observer: Observer) -> list[RequestRecord]:
            if machine.gpu.locked is not None:
                skipped_s.append(1000.0)
                threading.Event().wait(60)
                raise AssertionError("nobody interrupted the run")
            return ScriptedEngine.run(self, load, observer)

    use_engine(monkeypatch, machine, Engine)
    stop = threading.Event()

    def stop_in_time() -> None:
        wait_until(lambda: stores.jobs.get(after.id).has_ended, what="the job after the hung one")
        stop.set()

    watcher = threading.Thread(target=stop_in_time)
    watcher.start()
    work(stores, machine.settings, should_stop=stop, poll_s=0.01)
    watcher.join()
    job = stores.jobs.get(hung.id)
    assert (job.state, job.ended_because) == (JobState.FAILED, "hung")
    assert job.message is not None
    assert "no sign of life" in job.message
    assert (machine.gpu.locked, machine.journal.entries()) == (None, ())
    assert JobState.FINISHED is stores.jobs.get(after.id).state


def test_a_job_over_its_wall_time_is_stopped_amid_a_trial(
    stores: Stores, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BUG-26: a trial that never ends is cut short when the job's minutes are over; the job ends with what it found."""
    monkeypatch.setattr("api.job_run._OVERTIME_S", 0.0)
    request = simulated(budget=Budget(trials=4, minutes=1e-3), window=ENDLESS)
    job = run_job(stores, claimed(stores, request), settings)
    assert (job.state, job.ended_because) == (JobState.FAILED, "no_usable_trial")
    (trial,) = stores.trials.list(job.id)
    assert (trial.state, trial.reason) == (TrialState.INTERRUPTED, "job_ended")


# Stopped in order


def test_a_job_that_is_put_aside_amid_a_trial_has_a_front(stores: Stores, settings: Settings) -> None:
    """A second SIGTERM ends the running window; the front of the trials before it is there for everybody to see."""
    claim = claimed(stores, simulated(window=WINDOW))

    def on_started(begun: int, _: OperatingPoint) -> None:
        if begun == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(stores, claim, settings, listener=Listener(on_trial_started=on_started))
    front = stores.fronts.latest(claim.job_id)
    assert front is not None
    assert front.trials
    assert JobState.QUEUED is stores.jobs.get(claim.job_id).state
