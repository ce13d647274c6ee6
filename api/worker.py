"""Claim a job, run its trials, keep what came out. One job at a time; the engine lives in a child process.

Each trial is stored as it ends. Whenever this process is killed, the next claim finds the finished trials, marks the
one that ran as interrupted and tries its point once more.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import structlog

from api.errors import BAD_INPUT, UsageError
from api.records import nearest_misses
from api.settings import Settings
from api.stores import Stores, utc_now
from db.errors import LeaseLost, StoreError
from db.job import Claim, Job, JobState
from db.trials import StartedTrial
from engine.embedded.config import load_config
from engine.embedded.gguf_file import Progress
from engine.embedded.models import ModelFiles, resolve
from engine.host import EngineHost
from engine.serving import ServingEngine
from engine.settings import EngineSettings
from probes.cpu_estimate import CpuPowerModel
from probes.detect import Host, find_device, list_devices
from probes.device import Device
from probes.errors import DeviceInUse
from probes.holder import hold
from probes.identity import start_of
from tuner.bench import Bench
from tuner.errors import InvalidRequest
from tuner.pareto import front_of
from tuner.point import OperatingPoint
from tuner.request import TuneRequest
from tuner.search import Search
from tuner.space import SearchSpace, search_space
from tuner.trial import Trial, TrialState
from tuner.workload import max_context

log = structlog.get_logger()

LEASE_S = 60.0
_HEARTBEAT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request checked against this machine: everything that can be refused was refused."""

    request: TuneRequest
    device: Device
    files: ModelFiles
    space: SearchSpace


@dataclass(slots=True, kw_only=True)
class Listener:
    """What a caller wants to see of a running job; everything is optional."""

    on_prepared: Callable[[Job, Prepared, int], None] = field(default=lambda job, prepared, num_done: None)
    on_trial_started: Callable[[int, OperatingPoint], None] = field(default=lambda number, point: None)
    on_trial: Callable[[Trial], None] = field(default=lambda trial: None)


def prepare(request: TuneRequest, settings: Settings, progress: Progress) -> Prepared:
    """Check a request against this machine and fetch its model.

    Raises InvalidRequest, UnknownDevice, UnknownModel or CheckpointError, each naming what to correct.
    """
    device = find_device(request.device, list_devices(probe_host(settings)))
    if device.power_source is None:
        raise InvalidRequest(
            "device", request.device, f"{device.info.name} gives no power reading; see wattfront doctor"
        )
    space = search_space(request, device)
    files = _model_files(request.model, settings, progress)
    limit, longest = load_config(files.folder).usable_context, max_context(request.workload)
    if longest > limit:
        raise InvalidRequest(
            "workload",
            f"{request.workload.prompt_tokens[1]} prompt + {request.workload.output_tokens[1]} output tokens",
            f"together {longest}, but {request.model} has a context of {limit} tokens; nothing is truncated",
        )
    return Prepared(request=request, device=device, files=files, space=space)


def _model_files(model: str, settings: Settings, progress: Progress) -> ModelFiles:
    """Fetch a model where it is not at hand, and check that its weights are all there."""
    try:
        files = resolve(model, cache_dir=settings.cache_dir, progress=progress)
        from engine.embedded.weights import Weights  # brings torch, a matter of seconds that a wrong name need not wait

        Weights(files.folder)
    except OSError as error:
        place = error.filename or settings.cache_dir
        raise UsageError(
            f"model is {model!r}: {place}: {error.strerror or error}; make room or give access there, or set "
            f"WATTFRONT_CACHE_DIR, which is {settings.cache_dir}"
        ) from error
    return files


def probe_host(settings: Settings) -> Host:
    """Return what the probes ask of this machine, with the operator's wattages where they are set."""
    if settings.cpu_core_idle_w is None or settings.cpu_core_max_w is None:
        return Host()
    model = CpuPowerModel(
        idle_w=settings.cpu_core_idle_w,
        max_w=settings.cpu_core_max_w,
        origin="WATTFRONT_CPU_CORE_IDLE_W and WATTFRONT_CPU_CORE_MAX_W",
    )
    return Host(cpu_power=model)


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

    A job that was stopped, or whose device another process measures, goes back to the queue, or, without
    `is_requeued`, waits to be resumed by hand. Bad input that only shows here (a damaged checkpoint) fails the job
    and is raised again.
    """
    job = stores.jobs.get(claim.job_id)
    logger = log.bind(job=job.id)
    logger.info("job_started", owner=claim.owner, resumed=job.resume_count)
    with _Heartbeat(stores, claim) as heartbeat:
        try:
            prepared = prepare(job.request, settings, progress)
            with hold(prepared.device.info.uuid):
                search = _run_trials(stores, claim, job, prepared, listener or Listener(), heartbeat, should_stop)
            _conclude(stores, claim, job, search, is_requeued=is_requeued)
        except LeaseLost:
            logger.warning("lease_lost")
        except (KeyboardInterrupt, DeviceInUse):
            _put_aside(stores, claim, is_requeued=is_requeued)
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


def work(stores: Stores, settings: Settings, *, should_stop: threading.Event, poll_s: float = 1.0) -> None:
    """Run jobs as they come until told to stop; a job that fails is recorded and the next one is taken."""
    while not should_stop.is_set():
        try:
            stores.jobs.expire(is_dead)
            claim = stores.jobs.claim_next(owner_name(), LEASE_S)
            if claim is not None:
                run_job(stores, claim, settings, should_stop=should_stop.is_set)
                continue
        except DeviceInUse as error:  # the job is back in the queue
            log.info("device_in_use", error=str(error))
        except Exception as error:
            log.error("job_failed", error=str(error), exc_info=not isinstance(error, BAD_INPUT))
        should_stop.wait(poll_s)


def owner_name() -> str:
    """Name this process: host, process id, and its start, since process ids are used again."""
    return f"{socket.gethostname()}:{os.getpid()}:{start_of(os.getpid())}"


def is_dead(owner: str) -> bool:
    """Tell whether an owner was a process of this machine that is gone; others are given their lease."""
    host, _, rest = owner.rpartition(":")[0].rpartition(":")
    started = owner.rpartition(":")[2]
    return host == socket.gethostname() and rest.isdigit() and start_of(int(rest)) != started


def _run_trials(
    stores: Stores,
    claim: Claim,
    job: Job,
    prepared: Prepared,
    listener: Listener,
    heartbeat: _Heartbeat,
    should_stop: Callable[[], bool],
) -> Search:
    """Search, storing each trial as it ends."""
    stores.devices.seen(prepared.device.info, prepared.device.capabilities())
    stores.jobs.set_device(claim, prepared.device.info.uuid)
    history = stores.trials.history(job.id)
    listener.on_prepared(job, prepared, len(history))
    with _bench(prepared) as bench:
        recorder = _Recorder(stores, claim, bench, listener)
        search = Search(
            job.request,
            prepared.space,
            recorder.measure,
            history=history,
            retries=stores.trials.to_retry(job.id),
            should_stop=lambda: _reason_to_stop(heartbeat, should_stop),
        )
        for trial in search:
            recorder.store(trial)
            listener.on_trial(trial)
    return search


def _reason_to_stop(heartbeat: _Heartbeat, should_stop: Callable[[], bool]) -> str | None:
    if heartbeat.is_lost:
        raise LeaseLost(heartbeat.claim.job_id, owner=heartbeat.claim.owner)
    if heartbeat.claim.cancel_requested:
        return "cancelled"
    return "stopped" if should_stop() else None


def _conclude(stores: Stores, claim: Claim, job: Job, search: Search, *, is_requeued: bool) -> None:
    """Store the front and what ended the job."""
    front = front_of(search.trials, job.request.latency_metric, created_at=utc_now())
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


def _put_aside(stores: Stores, claim: Claim, *, is_requeued: bool) -> None:
    """Leave a job with work left: to the next worker, or to whoever resumes it by hand."""
    if is_requeued:
        stores.jobs.release(claim)
    else:
        stores.jobs.finish(claim, JobState.CANCELLED, "stopped", "stopped by hand; --resume goes on with it")


def _why_none(job: Job, trials: list[Trial]) -> str:
    misses = nearest_misses(job.request, trials)
    if misses:
        nearest = misses[0]
        knobs = " ".join(f"{name}={value}" for name, value in nearest.knobs.items())
        return f"no configuration meets the limits; nearest is {knobs}: {nearest.detail}"
    reasons = sorted({trial.reason or trial.state.value for trial in trials})
    return f"no trial gave a usable measurement ({', '.join(reasons)})"


def _fail(stores: Stores, claim: Claim, message: str) -> None:
    with contextlib.suppress(StoreError):  # the error that brought us here is the one to tell
        stores.jobs.finish(claim, JobState.FAILED, "error", message)


@contextlib.contextmanager
def _bench(prepared: Prepared) -> Iterator[Bench]:
    def open_engine(settings: EngineSettings) -> ServingEngine:
        return EngineHost(settings, prepared.files.folder, model_hash=prepared.files.model_hash)

    bench = Bench(prepared.request, prepared.device, open_engine)
    try:
        yield bench
    finally:
        bench.close()


class _Recorder:
    """Brackets each measurement with its two rows: begun, ended."""

    def __init__(self, stores: Stores, claim: Claim, bench: Bench, listener: Listener) -> None:
        self._stores = stores
        self._claim = claim
        self._bench = bench
        self._listener = listener
        self._started: StartedTrial | None = None

    def measure(self, number: int, point: OperatingPoint) -> Trial:
        """Store that the trial begins, then measure it."""
        self._started = self._stores.trials.start(self._claim, number, point)
        self._listener.on_trial_started(number, point)
        outcome = self._bench.measure(point)
        return Trial(
            number=number,
            attempt=self._started.attempt,
            point=point,
            state=outcome.state,
            reason=outcome.reason,
            detail=outcome.detail,
            measurement=outcome.measurement,
            started_at=self._started.started_at,
            finished_at=utc_now(),
        )

    def store(self, trial: Trial) -> None:
        """Store a trial's outcome; raise LeaseLost when another worker took the job meanwhile."""
        assert self._started is not None
        if not self._stores.trials.finish(self._started, trial):
            raise LeaseLost(self._claim.job_id, owner=self._claim.owner)
        log.info("trial_finished", job=self._claim.job_id, number=trial.number, state=trial.state.value,
                 reason=trial.reason, point=str(trial.point))  # fmt: skip


class _Heartbeat:
    """Keeps a claim alive in the background while the job runs, and learns whether its end was asked for."""

    def __init__(self, stores: Stores, claim: Claim) -> None:
        self.claim = claim
        self.is_lost = False
        self._stores = stores
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> _Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._ended.wait(_HEARTBEAT_S):
            try:
                self.claim = self._stores.jobs.heartbeat(self.claim, LEASE_S)
            except LeaseLost:
                self.is_lost = True
                return
            except StoreError as error:  # a busy database: the lease outlives several missed beats
                log.warning("heartbeat_failed", error=str(error))
