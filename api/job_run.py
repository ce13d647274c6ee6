"""Run one claimed job: prepare it, measure its trials, keep what came out. The engine lives in a child process.

Each trial is stored as it ends. Whenever this process is killed, the next claim finds the finished trials, marks the
one that ran as interrupted and tries its point once more. A job whose end is asked for ends in the midst of a window;
one that is to go on later ends after it. Knows nothing of the queue.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from api.errors import BAD_INPUT
from api.explanation_words import none_words
from api.heartbeat import Heartbeat
from api.job_bench import held, open_bench
from api.prepare import Prepared, prepare
from api.recorder import Recorder
from api.records import front_document, nearest_misses
from api.reuse import EarlierResults
from api.settings import Settings
from api.stores import Stores, utc_now
from api.tracing import NO_TRACES, Tracer
from api.watchdog import LONGEST_SILENCE_S, JobCut, Watchdog
from db.errors import DatabaseBusy, DatabaseUnreachable, LeaseLost, StoreError
from db.job import Claim, Job, JobState
from engine.embedded.gguf_file import Progress
from probes.errors import ControlLeaseLost, DeviceInUse, DeviceLost, GuardUnavailable
from tuner.budget import spent
from tuner.errors import InvalidRequest
from tuner.knobs import SIMULATED
from tuner.pareto import front_of
from tuner.point import OperatingPoint
from tuner.request import TuneRequest
from tuner.search import Proposal, Search
from tuner.trial import Trial, TrialState
from tuner.versions import changes, ranges_of

#: What may be otherwise in a while: the job waits for it instead of failing.
FOR_NOW = (DeviceInUse, GuardUnavailable, ControlLeaseLost, DeviceLost)
#: The same of the store: a job is not to fail because the database was busy or away for a moment.
STORE_FOR_NOW = (DatabaseBusy, DatabaseUnreachable)
#: A trial that is under way when the job's wall time is over may take this much more than its warm-up and window.
_OVERTIME_S = 120.0

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
    tracer: Tracer = NO_TRACES,
) -> Job:
    """Run a claimed job to its end, to `should_stop`, or to the loss of its lease; return it as it then is.

    A job that was stopped, or whose device, guard or store is not to be had for now, goes back to the queue, or,
    without `is_requeued`, waits to be resumed by hand. Bad input that only shows here (a damaged checkpoint) fails the
    job and is raised again.
    """
    job = stores.jobs.get(claim.job_id)
    told = {"wattfront.job": job.id, "wattfront.model": job.request.model, "wattfront.device": job.request.device}
    with structlog.contextvars.bound_contextvars(job=job.id), tracer.span("wattfront.job", told) as span:
        log.info("job_started", owner=claim.owner, resumed=job.resume_count)
        run = _Run(
            stores, claim, job, settings, listener=listener or Listener(), should_stop=should_stop, tracer=tracer
        )
        _carry_out(run, stores, claim, progress, is_requeued=is_requeued)
        ended = stores.jobs.get(job.id)
        span.note("wattfront.state", ended.state.value)
        span.note("wattfront.ended_because", ended.ended_because)
        log.info("job_ended", state=ended.state.value, because=ended.ended_because)
    return ended


def _carry_out(run: _Run, stores: Stores, claim: Claim, progress: Progress, *, is_requeued: bool) -> None:
    """Measure and conclude, and leave the job in order whatever comes in between."""
    with Heartbeat(stores, claim) as heartbeat:
        try:
            run.conclude(run.measure(heartbeat, progress), is_requeued=is_requeued)
        except LeaseLost:
            log.warning("lease_lost")
        except (KeyboardInterrupt, *FOR_NOW, *STORE_FOR_NOW) as error:
            why = "stopped by hand" if isinstance(error, KeyboardInterrupt) else str(error)
            run.put_aside(is_requeued=is_requeued, why=why)
            raise
        except BAD_INPUT as error:
            run.fail("error", str(error))
            raise
        except Exception as error:
            run.fail("error", f"{type(error).__name__}: {error}")
            raise


class _Run:
    """One claim's work on a job."""

    def __init__(
        self,
        stores: Stores,
        claim: Claim,
        job: Job,
        settings: Settings,
        *,
        listener: Listener,
        should_stop: Callable[[], bool],
        tracer: Tracer,
    ) -> None:
        self._tracer = tracer
        self._stores = stores
        self._claim = claim
        self._job = job
        self._settings = settings
        self._listener = listener
        self._should_stop = should_stop

    def measure(self, heartbeat: Heartbeat, progress: Progress) -> JobCut:
        """Prepare the job and measure its trials; return what ended it."""
        request = self._job.request
        watchdog = Watchdog(heartbeat, longest_silence_s=LONGEST_SILENCE_S + request.window.idle_s)

        def watched_progress(what: str, share: float) -> None:
            watchdog.check()
            progress(what, share)

        try:
            with watchdog.watching():
                watchdog.check()
                prepared = prepare(request, self._settings, watched_progress, workloads=self._stores.workloads)
                with held(prepared):
                    return JobCut(self._run_trials(prepared, watchdog))
        except JobCut as cut:
            return cut

    def conclude(self, cut: JobCut, *, is_requeued: bool) -> None:
        """Store the front and what ended the job."""
        stores, claim, job = self._stores, self._claim, self._job
        trials = stores.trials.history(job.id)
        front = front_of(trials, job.request.latency_metric, created_at=utc_now(), request=job.request)
        if trials:
            stores.fronts.save(job.id, front, front_document(job, front, trials), claim=claim)
        if cut.because == "stopped":
            self._leave(is_requeued=is_requeued)
        elif cut.because == "cancelled":
            stores.jobs.finish(claim, JobState.CANCELLED, "cancelled")
        elif cut.because == "hung":
            stores.jobs.finish(claim, JobState.FAILED, "hung", cut.message)
        elif front.trials:
            stores.results.save(job.id, trials, front)  # before the end: a job that is over has its results
            stores.jobs.finish(claim, JobState.FINISHED, cut.because, cut.message)
        elif any(trial.state is TrialState.INFEASIBLE for trial in trials):
            stores.jobs.finish(claim, JobState.FINISHED, "no_feasible_point", _why_none(job, trials))
        else:
            stores.jobs.finish(claim, JobState.FAILED, "no_usable_trial", _why_none(job, trials))

    def put_aside(self, *, is_requeued: bool, why: str) -> None:
        """Leave a job with work left, in the midst of a trial, with the front of those that ended."""
        job = self._job
        with contextlib.suppress(StoreError):  # the error that brought us here is the one to tell
            if trials := self._stores.trials.history(job.id):
                front = front_of(trials, job.request.latency_metric, created_at=utc_now(), request=job.request)
                document = front_document(job, front, trials)
                self._stores.fronts.save(job.id, front, document, claim=self._claim)
            self._leave(is_requeued=is_requeued, why=why)

    def fail(self, because: str, message: str) -> None:
        """End a job that could not go on."""
        with contextlib.suppress(StoreError):  # the error that brought us here is the one to tell
            self._stores.jobs.finish(self._claim, JobState.FAILED, because, message)

    def _leave(self, *, is_requeued: bool, why: str = "stopped by hand") -> None:
        """Leave the job to the next worker, or to whoever resumes it by hand."""
        if is_requeued:
            self._stores.jobs.release(self._claim)
        else:
            self._stores.jobs.finish(self._claim, JobState.CANCELLED, "stopped", f"{why}; --resume goes on with it")

    def _run_trials(self, prepared: Prepared, watchdog: Watchdog) -> str:
        """Search, storing each trial as it ends; return what ended the search."""
        stores, claim, job = self._stores, self._claim, self._job
        stores.devices.seen(prepared.device.info, prepared.device.capabilities())
        stores.jobs.set_device(claim, prepared.device.info.uuid)
        _keep_to_space(stores, claim, job, prepared)
        attempts = stores.trials.list(job.id)
        history = stores.trials.history(job.id)
        watchdog.deadline_s = _deadline_s(job.request, attempts)
        self._listener.on_prepared(job, prepared, len(history))
        with open_bench(stores, prepared, self._settings, watchdog) as bench:
            earlier = EarlierResults(stores, prepared, job_id=job.id, previous_job_id=job.previous_job_id)
            recorder = Recorder(
                stores,
                claim,
                bench,
                earlier=earlier,
                on_started=self._listener.on_trial_started,
                tracer=self._tracer,
            )
            search = Search(
                prepared.request,
                prepared.space,
                recorder.measure,
                history=history,
                retries=[Proposal(number=number, point=point) for number, point in stores.trials.to_retry(job.id)],
                interrupted=[trial for trial in attempts if trial.state is TrialState.INTERRUPTED],
                first=earlier.first_points(),
                should_stop=lambda: self._reason_to_stop(watchdog),
            )
            for trial in search:
                recorder.store(trial)
                self._listener.on_trial(trial)
                if trial.reason == DeviceLost.kind:
                    raise DeviceLost(f"{prepared.device.info.uuid}: {trial.detail}; reset it before the job goes on")
        return search.ended_because or "trials"

    def _reason_to_stop(self, watchdog: Watchdog) -> str | None:
        watchdog.check()
        return "stopped" if self._should_stop() else None


def _deadline_s(request: TuneRequest, attempts: list[Trial]) -> float | None:
    """Return when, on the monotonic clock, a trial is cut short because the job's wall time is over.

    Between trials the search minds that limit itself (`tuner.budget`), so that a trial which began in time has room to
    end by itself. A simulated one takes virtual time: how long its window is says nothing.
    """
    if request.budget.minutes is None:
        return None
    left_s = max(0.0, 60 * request.budget.minutes - spent(attempts).wall_s)
    rule = request.window
    window_s = 0.0 if request.engine == SIMULATED else rule.max_warmup_s + rule.max_window_s + rule.idle_s
    return time.monotonic() + left_s + window_s + _OVERTIME_S


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


def _why_none(job: Job, trials: list[Trial]) -> str:
    if misses := nearest_misses(job.request, trials):
        return none_words(misses)
    if refused := [trial.detail for trial in trials if (trial.reason or "").startswith("quality:") and trial.detail]:
        return f"no configuration passes the quality gate: {refused[0]}"
    reasons = sorted({trial.reason or trial.state.value for trial in trials})
    return f"no trial gave a usable measurement ({', '.join(reasons)})"
