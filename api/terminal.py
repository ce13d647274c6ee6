"""A job in the terminal: run in this process, or followed while a worker runs it, with its front at the end."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from api.console import JobView, model_progress, print_front
from api.explanation import end_lines
from api.job_run import Listener, run_job
from api.jobfile import read_job
from api.prepare import Prepared, prepare
from api.records import front_of_job
from api.settings import Settings
from api.stores import Stores
from db.errors import LeaseLost
from db.job import Claim, Job, JobState
from probes.settings import DEVICE_KNOBS
from tuner.trial import OUTCOMES

#: Between two looks at a job that another process runs.
_FOLLOW_POLL_S = 0.5


def run_here(stores: Stores, settings: Settings, console: Console, claim: Claim) -> int:
    """Run a claimed job in this process with its progress shown; return the exit code."""
    job = stores.jobs.get(claim.job_id)
    stop = threading.Event()
    with JobView(console, job.request) as view, _first_interrupt_stops(stop, view.say):

        def on_prepared(_: Job, prepared: Prepared, num_done: int) -> None:
            _introduce(view.say, prepared, job, num_done)
            view.limit_total(prepared.space.size)
            for trial in stores.trials.history(job.id):
                view.ended(trial)

        listener = Listener(
            on_prepared=on_prepared,
            on_trial_started=lambda number, point: view.started(point),
            on_trial=view.ended,
        )
        try:
            ended = run_job(
                stores,
                claim,
                settings,
                listener=listener,
                progress=view.fetching,
                should_stop=stop.is_set,
                is_requeued=False,
            )
        except KeyboardInterrupt:
            view.say(f"stopped at once; go on with: wattfront tune --resume {job.id[:8]}")
            raise
    print_front(console, front_of_job(stores, job.id))
    if not ended.has_ended:
        raise LeaseLost(job.id, owner=claim.owner)
    if ended.ended_because == "stopped":
        console.print(f"stopped; go on with: wattfront tune --resume {job.id[:8]}", soft_wrap=True)
        return 130
    return _tell_end(stores, console, ended)


def follow(stores: Stores, console: Console, job: Job, watch: Callable[[], None], stop: threading.Event) -> int:
    """Show a job that a worker runs until it ends or `stop` is set; return the exit code."""
    seen: set[tuple[int, int]] = set()
    with JobView(console, job.request) as view:
        while not stop.is_set():
            for trial in stores.trials.list(job.id):
                if trial.state in OUTCOMES and (trial.number, trial.attempt) not in seen:
                    seen.add((trial.number, trial.attempt))
                    view.ended(trial)
                elif trial.state not in OUTCOMES:
                    view.started(trial.point)
            job = stores.jobs.get(job.id)
            if job.has_ended:
                break
            watch()
            time.sleep(_FOLLOW_POLL_S)
    if not job.has_ended:
        return 130
    print_front(console, front_of_job(stores, job.id))
    return _tell_end(stores, console, job)


def submit_once(stores: Stores, settings: Settings, console: Console, job_file: Path) -> Job:
    """Check a job file in full, fetch its model, and store the job unless the same file was stored before."""
    request = read_job(job_file, {})
    with fetching(console) as progress:
        prepared = prepare(request, settings, progress, workloads=stores.workloads)
    job = stores.jobs.create(request, idempotency_key=f"up:{hashlib.sha256(job_file.read_bytes()).hexdigest()}")
    _introduce(lambda text: console.print(Text(text), soft_wrap=True), prepared, job, 0)
    if job.has_ended:
        when = f"{job.created_at.astimezone():%Y-%m-%d %H:%M}"
        console.print(f"this job was run before, on {when}; here is what it found.", soft_wrap=True)
        console.print(f"To run it anew: wattfront tune {job_file}", soft_wrap=True)
    return job


def _introduce(say: Callable[[str], None], prepared: Prepared, job: Job, num_done: int) -> None:
    request, source = job.request, prepared.device.power_source
    say(f"job {job.id[:8]}: {request.model} on {prepared.device.info.name}, {prepared.space.size} points, "
        f"up to {request.budget.trials} trials")  # fmt: skip
    if source is not None:
        say(f"energy: scope {source.scope}, method {source.method} ({source.detail})")
    if request.allow_device_control and not any(knob.name in DEVICE_KNOBS for knob in prepared.space.knobs):
        say("no clock or power cap is searched: the device offers none, or the job names none; see wattfront doctor")
    if num_done:
        say(f"resumed: {num_done} trials are done and are not repeated")


def _tell_end(stores: Stores, console: Console, job: Job) -> int:
    for line in end_lines(stores, job):
        console.print(Text(line), soft_wrap=True)
    words = f"job {job.id[:8]} {job.state.value}: {job.ended_because}" + (f"; {job.message}" if job.message else "")
    console.print(Text(words), soft_wrap=True)
    return 1 if job.state is JobState.FAILED else 0


def print_total_time(console: Console) -> None:
    """Tell how long all of `make run` took; it notes its start in the environment."""
    started = os.environ.get("WATTFRONT_RUN_STARTED_AT")
    if started and started.isdigit():
        total_s = time.time() - int(started)
        console.print(f"total time of make run, installing included: {total_s:.0f} s", soft_wrap=True)


@contextmanager
def _first_interrupt_stops(stop: threading.Event, say: Callable[[str], None]) -> Iterator[None]:
    """Let the first Ctrl-C, SIGTERM or SIGHUP ask for the end after the running window, and the second end at once."""

    def handle(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        say("stopping after the running window; once more to stop at once")

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def fetching(console: Console) -> Iterator[Callable[[str, float], None]]:
    """Show a bar while a model is fetched and converted, and nothing when it is at hand."""
    bar = model_progress(console)
    task = None

    def progress(what: str, share: float) -> None:
        nonlocal task
        if task is None:
            if console.is_terminal:
                bar.start()
            else:
                console.print(f"fetching and converting the model ({what})", soft_wrap=True)
            task = bar.add_task(what, total=1.0)
        bar.update(task, description=what, completed=share)

    try:
        yield progress
    finally:
        if console.is_terminal and task is not None:
            bar.stop()
