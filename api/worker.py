"""Claim a job, run its trials, keep what came out. One job at a time; the engine lives in a child process.

Each trial is stored as it ends. Whenever this process is killed, the next claim finds the finished trials, marks the
one that ran as interrupted and tries its point once more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import structlog

from api.errors import BAD_INPUT
from api.explanation_words import none_words
from api.heartbeat import LEASE_S, Heartbeat
from api.owners import is_dead, owner_name
from api.prepare import Prepared, here_uuids, prepare, probe_host
from api.recorder import Recorder
from api.records import nearest_misses
from api.reuse import EarlierResults
from api.settings import Settings
from api.stores import Stores, utc_now
from db.device import ControlState
from db.errors import LeaseLost, StoreError
from db.job import Claim, Job, JobState
from engine.embedded.gguf_file import Progress
from engine.host import EngineHost
from engine.serving import ServingEngine
from engine.settings import EngineSettings
from probes.control.opening import blocked, open_control, recover
from probes.control.seam import DeviceControl
from probes.errors import ControlLeaseLost, DeviceInUse, DeviceLost, GuardUnavailable, ProbeError
from probes.holder import hold
from probes.settings import DEVICE_KNOBS
from tuner.bench import Bench
from tuner.errors import InvalidRequest
from tuner.pareto import front_of
from tuner.point import OperatingPoint
from tuner.rig import DeviceRig
from tuner.search import Proposal, Search
from tuner.simulation import Simulation
from tuner.trial import Trial, TrialState
from tuner.versions import changes, ranges_of

#: What may be otherwise in a while: the job waits for it instead of failing.
FOR_NOW = (DeviceInUse, GuardUnavailable, ControlLeaseLost, DeviceLost)
POLL_S = 1.0
#: Before the next job is claimed after one was put aside: it may be the same one.
BACKOFF_S = 10.0
#: Between two looks at what is blocked while there is nothing to do.
TELL_INTERVAL_S = 10.0

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Listener:
    """What a caller wants to see of a running job; everything is optional."""

    on_prepared: Callable[[Job, Prepared, int], None] = field(default=lambda job, prepared, num_done: None)
    on_trial_started: Callable[[int, OperatingPoint], None] = field(default=lambda number, point: None)
    on_trial: Callable[[Trial], None] = field(default=lambda trial: None)


def run_job(
    stores: Stores,
    claim: Claim,
    settings: Settings,
    *,
    listener: Listener | None = None,
    progress: Progress = lambda what, share: None,
    should_stop: Callable[[], bool] = lambda: False,
    is_requeued: bool = True,
) -> Job:
    """Run a claimed job to its end, to `should_stop`, or to the loss of its lease; return it as it then is.

    A job that was stopped, or whose device or guard is not to be had for now, goes back to the queue, or, without
    `is_requeued`, waits to be resumed by hand. Bad input that only shows here (a damaged checkpoint) fails the job
    and is raised again.
    """
    job = stores.jobs.get(claim.job_id)
    logger = log.bind(job=job.id)
    logger.info("job_started", owner=claim.owner, resumed=job.resume_count)
    with Heartbeat(stores, claim) as heartbeat:
        try:
            prepared = prepare(job.request, settings, progress)
            with _held(prepared):
                search = _run_trials(
                    stores, claim, job, prepared, settings, listener or Listener(), heartbeat, should_stop
                )
            _conclude(stores, claim, job, search, is_requeued=is_requeued)
        except LeaseLost:
            logger.warning("lease_lost")
        except (KeyboardInterrupt, *FOR_NOW) as error:
            why = "stopped by hand" if isinstance(error, KeyboardInterrupt) else str(error)
            _put_aside(stores, claim, is_requeued=is_requeued, why=why)
            raise
        except BAD_INPUT as error:
            _fail(stores, claim, str(error))
            raise
        except Exception as error:
            _fail(stores, claim, f"{type(error).__name__}: {error}")
            raise
    ended = stores.jobs.get(job.id)
    logger.info("job_ended", state=ended.state.value, because=ended.ended_because)
    return ended


def work(
    stores: Stores,
    settings: Settings,
    *,
    should_stop: threading.Event,
    poll_s: float = POLL_S,
    backoff_s: float = BACKOFF_S,
) -> None:
    """Run jobs as they come until told to stop; a job that fails is recorded and the next one is taken.

    What a worker that was killed left set on a device is put back first. While there is nothing to do the store is
    told now and then what is blocked: guard and `wattfront restore` put back without asking it.
    """
    give_back(stores, settings)
    told_s = time.monotonic()
    while not should_stop.is_set():
        if time.monotonic() - told_s >= TELL_INTERVAL_S:
            told_s = time.monotonic()
            _tell_blocked(stores, settings)
        try:
            stores.jobs.expire(is_dead)
            claim = stores.jobs.claim_next(owner_name(), LEASE_S)
            if claim is not None:
                run_job(stores, claim, settings, should_stop=should_stop.is_set)
                continue
        except FOR_NOW as error:  # the job is back in the queue
            log.warning("job_put_aside", kind=error.kind, error=str(error))
            should_stop.wait(backoff_s)
            continue
        except Exception as error:
            log.error("job_failed", error=str(error), exc_info=not isinstance(error, BAD_INPUT))
        should_stop.wait(poll_s)


def give_back(stores: Stores, settings: Settings) -> None:
    """Put back what a process that is gone left set on this machine's devices, and tell the store how it went.

    A journal that cannot be read stops nobody who only observes; jobs that want to set something are refused over it.
    """
    try:
        done = recover(
            host=probe_host(settings),
            state_dir=settings.state_dir,
            guard_socket=settings.guard_socket,
            prior_caps_mhz=settings.prior_sm_clock_caps_mhz,
        )
    except ProbeError as error:
        log.error("journal_unreadable", error=str(error))
        return
    for one in done:
        log.warning("recovered", **dataclasses.asdict(one))
    _tell_blocked(stores, settings)


def _tell_blocked(stores: Stores, settings: Settings) -> None:
    """Tell the store which of this machine's devices are blocked, and which no longer are."""
    seen = stores.devices.list()
    if not seen:
        return
    try:
        here, failed = here_uuids(probe_host(settings)), blocked(settings.state_dir)
    except ProbeError as error:
        log.error("journal_unreadable", error=str(error))
        return
    for device in seen:
        uuid = device.info.uuid
        if uuid in failed:
            stores.devices.set_control(uuid, ControlState.RESTORE_FAILED, failed[uuid])
        elif uuid in here and device.control_state is not ControlState.OBSERVED:
            stores.devices.set_control(uuid, ControlState.OBSERVED, None)


def _held(prepared: Prepared) -> AbstractContextManager[None]:
    """Keep the device to ourselves; a simulated one is everybody's own."""
    return hold(prepared.device.info.uuid) if prepared.simulation is None else nullcontext()


def _run_trials(
    stores: Stores,
    claim: Claim,
    job: Job,
    prepared: Prepared,
    settings: Settings,
    listener: Listener,
    heartbeat: Heartbeat,
    should_stop: Callable[[], bool],
) -> Search:
    """Search, storing each trial as it ends."""
    stores.devices.seen(prepared.device.info, prepared.device.capabilities())
    stores.jobs.set_device(claim, prepared.device.info.uuid)
    _keep_to_space(stores, claim, job, prepared)
    history = stores.trials.history(job.id)
    listener.on_prepared(job, prepared, len(history))
    with _bench(stores, prepared, settings) as bench:
        earlier = EarlierResults(stores, prepared, job_id=job.id, previous_job_id=job.previous_job_id)
        recorder = Recorder(stores, claim, bench, earlier=earlier, on_started=listener.on_trial_started)
        search = Search(
            job.request,
            prepared.space,
            recorder.measure,
            history=history,
            retries=[Proposal(number=number, point=point) for number, point in stores.trials.to_retry(job.id)],
            first=earlier.first_points(),
            should_stop=lambda: _reason_to_stop(heartbeat, should_stop),
        )
        for trial in search:
            recorder.store(trial)
            listener.on_trial(trial)
            if trial.reason == DeviceLost.kind:
                raise DeviceLost(f"{prepared.device.info.uuid}: {trial.detail}; reset it before the job goes on")
    return search


def _keep_to_space(stores: Stores, claim: Claim, job: Job, prepared: Prepared) -> None:
    """Note which values the job searches, and refuse to go on with others than it began with.

    A device's clocks may differ from last night's, and what may be set here too. Raises InvalidRequest.
    """
    space = ranges_of(prepared.space)
    if job.space is None:
        stores.jobs.set_space(claim, space)
    elif changed := changes(job.space, space):
        raise InvalidRequest(
            "knobs",
            "; ".join(changed),
            f"job {job.id[:8]} began with other values, and what it searches does not change under way; its results "
            f"are kept, and `wattfront tune JOB.yaml --after {job.id[:8]}` begins a new version with them",
        )


def _reason_to_stop(heartbeat: Heartbeat, should_stop: Callable[[], bool]) -> str | None:
    if heartbeat.is_lost:
        raise LeaseLost(heartbeat.claim.job_id, owner=heartbeat.claim.owner)
    if heartbeat.claim.cancel_requested:
        return "cancelled"
    return "stopped" if should_stop() else None


def _conclude(stores: Stores, claim: Claim, job: Job, search: Search, *, is_requeued: bool) -> None:
    """Store the front and what ended the job."""
    front = front_of(search.trials, job.request.latency_metric, created_at=utc_now(), request=job.request)
    if search.trials:
        stores.fronts.save(job.id, front)
    if search.ended_because == "stopped":
        _put_aside(stores, claim, is_requeued=is_requeued)
    elif search.ended_because == "cancelled":
        stores.jobs.finish(claim, JobState.CANCELLED, "cancelled")
    elif front.trials:
        stores.jobs.finish(claim, JobState.FINISHED, search.ended_because or "trials")
    elif any(trial.state is TrialState.INFEASIBLE for trial in search.trials):
        stores.jobs.finish(claim, JobState.FINISHED, "no_feasible_point", _why_none(job, search.trials))
    else:
        stores.jobs.finish(claim, JobState.FAILED, "no_usable_trial", _why_none(job, search.trials))


def _put_aside(stores: Stores, claim: Claim, *, is_requeued: bool, why: str = "stopped by hand") -> None:
    """Leave a job with work left: to the next worker, or to whoever resumes it by hand."""
    if is_requeued:
        stores.jobs.release(claim)
    else:
        stores.jobs.finish(claim, JobState.CANCELLED, "stopped", f"{why}; --resume goes on with it")


def _why_none(job: Job, trials: list[Trial]) -> str:
    if misses := nearest_misses(job.request, trials):
        return none_words(misses)
    if refused := [trial.detail for trial in trials if (trial.reason or "").startswith("quality:") and trial.detail]:
        return f"no configuration passes the quality gate: {refused[0]}"
    reasons = sorted({trial.reason or trial.state.value for trial in trials})
    return f"no trial gave a usable measurement ({', '.join(reasons)})"


def _fail(stores: Stores, claim: Claim, message: str) -> None:
    with contextlib.suppress(StoreError):  # the error that brought us here is the one to tell
        stores.jobs.finish(claim, JobState.FAILED, "error", message)


@contextlib.contextmanager
def _bench(stores: Stores, prepared: Prepared, settings: Settings) -> Iterator[Bench]:
    """Open a bench, with control of the device if the job searches a knob of it; give everything back after it."""
    if prepared.simulation is not None:
        with _simulated_bench(prepared, prepared.simulation) as bench:
            yield bench
        return
    files = prepared.files
    assert files is not None  # a job that is not simulated has them

    def open_engine(settings: EngineSettings) -> ServingEngine:
        return EngineHost(settings, files.folder, model_hash=files.model_hash)

    control = _control(prepared, settings)
    rig = DeviceRig(prepared.device, control=control, host=prepared.host_cpu, clock=prepared.host.clock)
    uuid = prepared.device.info.uuid
    if control is not None:
        stores.devices.set_control(uuid, ControlState.CONTROLLED, control.description)
    bench = Bench(prepared.request, prepared.device, open_engine, rig=rig, qualities=stores.qualities)
    try:
        yield bench
    finally:
        try:
            rig.close()  # first: whatever hinders the engine's end must not keep the device set
        finally:
            bench.close()
        if rig.restore_error is not None:
            stores.devices.set_control(uuid, ControlState.RESTORE_FAILED, str(rig.restore_error))
        elif control is not None:
            stores.devices.set_control(uuid, ControlState.OBSERVED, None)


@contextlib.contextmanager
def _simulated_bench(prepared: Prepared, simulation: Simulation) -> Iterator[Bench]:
    """Open a bench whose engine runs in this process, on the device's own clock; there is nothing to give back."""
    bench = Bench(prepared.request, simulation.device, simulation.open_engine, rig=simulation.open_rig())
    try:
        yield bench
    finally:
        bench.close()


def _control(prepared: Prepared, settings: Settings) -> DeviceControl | None:
    if not any(knob.name in DEVICE_KNOBS for knob in prepared.space.knobs):
        return None
    return open_control(
        prepared.device_uuids,
        host=prepared.host,
        state_dir=settings.state_dir,
        guard_socket=settings.guard_socket,
        prior_caps_mhz=settings.prior_sm_clock_caps_mhz,
        label=f"job on {prepared.device.info.name}",
    )
