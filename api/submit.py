"""A job that comes over HTTP: read, checked, then stored for a worker.

Nothing that a request says becomes a path, a URL or a command: devices are simulated or named in the operator's file,
models are of the catalogue or named there, and what a job may cost is bounded. Jobs on simulated devices are checked in
full; what a real one can do, its worker tells. Knows nothing of headers, nor of who runs the job.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import math
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field, StrictInt, StrictStr, ValidationError

from api.complaints import complaints_of, shown
from api.errors import BodyTooLarge, ForeignOrigin, KeyTaken, NotJson, NotJsonMedia, Refusal, TooManyJobs, WrongFields
from api.job_schemas import JobIn
from api.operator_file import Operator
from api.stores import Stores
from api.workload_cache import as_long, noted, uploaded_name, uploaded_trace
from db.errors import AmbiguousJob, JobNotFound
from db.job import Job, JobState
from db.workloads import UPLOADED, Workload, WorkloadStore
from engine.errors import UnknownModel
from engine.simulated import catalogue
from probes.simulated.names import is_simulated_name, parse_name
from probes.simulated.twin import SUFFIX
from tuner.drift import BASELINE_EVERY
from tuner.errors import InvalidRequest
from tuner.request import KnobValue, TuneRequest, WorkloadSpec

if TYPE_CHECKING:
    from probes.simulated.device import SimulatedDevice
    from tuner.space import SearchSpace

#: Queued and running ones together.
MAX_OPEN_JOBS = 100
#: Windows of the finals, which repeat the best points, count as trials do.
MAX_TRIALS = 1_000
#: A Gaussian process takes longer for every further point, by the cube of their number.
MAX_GP_TRIALS = 200
#: Of the space that is searched: near its end the search looks at every point that is left.
MAX_POINTS = 100_000
#: Of a window or a warm-up, in the device's own time.
MAX_SIMULATED_S = 3_600
#: Requests that may arrive in one trial, and those that may be in flight at once.
MAX_REQUESTS = 200_000
MAX_IN_FLIGHT = 100_000
MAX_KEY_CHARACTERS = 255
#: Jobs of higher priority are taken first.
MAX_PRIORITY = 100
#: Names that a message lists.
_MAX_NAMES = 10

_Posted = TypeVar("_Posted", bound=JobIn)

REFUSALS: tuple[type[Refusal], ...] = (
    Refusal, NotJson, ForeignOrigin, KeyTaken, BodyTooLarge, NotJsonMedia, TooManyJobs,
)  # fmt: skip


class PostedJob(JobIn):
    """A job as it is posted: the content of a job file, and its place in the queue."""

    priority: StrictInt = Field(default=0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    #: The job whose results it begins with: its id, or at least the first 4 characters.
    previous_job: StrictStr | None = Field(default=None, max_length=64)


def read_request(fields: Any) -> TuneRequest:
    """Return the request that a job's fields ask for, checked as far as the fields go.

    Raises Refusal or InvalidRequest, naming the field.
    """
    return _read(fields, JobIn).to_request()


def check(request: TuneRequest, operator: Operator, workloads: WorkloadStore) -> TuneRequest:
    """Check a request: what may not be asked for here, what costs too much, what cannot be simulated.

    Return it as it is to be stored: with the hash of the uploaded trace that it names. Raises InvalidRequest,
    UnknownDevice, CheckpointError or InvalidSettings, naming what to correct.
    """
    _refuse_files(request)
    require_names(request, operator)
    trace = uploaded_trace(request.workload, workloads)
    _refuse_costly(request, trace)
    num_points = _num_points(request, operator, trace)
    if num_points > MAX_POINTS:
        raise InvalidRequest("knobs", f"{num_points} points", f"over HTTP give values for at most {MAX_POINTS}")
    return dataclasses.replace(request, workload=noted(request.workload, trace))


class Submissions:
    """Where checked requests become jobs: one at a time, so that no crowd of them gets past the bound together."""

    def __init__(self, stores: Stores, operator: Operator) -> None:
        self._stores = stores
        self._operator = operator
        self._lock = threading.Lock()

    def checked(self, fields: Any) -> tuple[PostedJob, TuneRequest]:
        """Read a posted job; return it, and the request as it is to be stored. Raises what `check` does, Refusal."""
        posted = _read(fields, PostedJob)
        request = check(posted.to_request(), self._operator, self._stores.workloads)
        self._previous_id(posted.previous_job)
        return posted, request

    def submit(self, fields: Any, idempotency_key: str | None, *, actor: str) -> tuple[Job, bool]:
        """Check a posted job and store it; return the job, and whether it is new.

        The same key with the same job by the same actor gives the job that it made before. Raises what `check` does,
        Refusal, KeyTaken, TooManyJobs or StoreError; nothing is stored then.
        """
        posted, request = self.checked(fields)
        previous_id = self._previous_id(posted.previous_job)
        key = None if idempotency_key is None else _stored_key(idempotency_key, actor)
        with self._lock:
            known = None if key is None else self._stores.jobs.with_key(key)
            if known is None:
                self._require_room()
            job = known or self._stores.jobs.create(
                request,
                idempotency_key=key,
                priority=posted.priority,
                submitted_by=actor,
                previous_job_id=previous_id,
            )
        if (job.request, job.priority, job.previous_job_id) != (request, posted.priority, previous_id):
            raise KeyTaken(
                f"Idempotency-Key {shown(idempotency_key)} made job {job.id}, which asks for something else; use a new "
                "key for another job"
            )
        if known is None:
            detail = {"model": request.model, "device": request.device, "priority": posted.priority}
            self._stores.audit.add(actor=actor, action="job.create", subject=f"job/{job.id}", detail=detail)
        return job, known is None

    def _previous_id(self, job: str | None) -> str | None:
        try:
            return None if job is None else self._stores.jobs.get(job).id
        except (JobNotFound, AmbiguousJob) as error:
            raise InvalidRequest("previous_job", job, str(error)) from error

    def _require_room(self) -> None:
        states = (JobState.QUEUED, JobState.RUNNING)
        num_open = sum(len(self._stores.jobs.list(limit=MAX_OPEN_JOBS, state=state)) for state in states)
        if num_open >= MAX_OPEN_JOBS:
            raise TooManyJobs(
                f"{MAX_OPEN_JOBS} jobs wait or run, and more are not taken; wait until some have ended, or end some "
                "with `wattfront cancel JOB`; a worker must be running"
            )


def _read(fields: Any, model: type[_Posted]) -> _Posted:
    if not isinstance(fields, dict):
        raise Refusal('a job is an object, as in {"model": "llama-3.1-8b", "device": "simulated:h100-sxm"}')
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise WrongFields(complaints_of(error, model)) from error


def _refuse_files(request: TuneRequest) -> None:
    """Refuse whatever is read from files: those are for this machine's own people."""
    if request.quality.text_file is not None:
        remedy = "a job over HTTP reads no files; leave it out, or run it with wattfront tune"
        raise InvalidRequest("quality.text_file", request.quality.text_file, remedy)
    if request.quality.tasks:
        remedy = "a job over HTTP runs no tasks, which read files and bring code; leave them out, or use wattfront tune"
        raise InvalidRequest("quality.tasks", list(request.quality.tasks), remedy)
    if request.workload.trace_file is not None and uploaded_name(request.workload) is None:
        remedy = (
            "no file is read for a job over HTTP; use `wattfront tune`, or upload it (POST /v1/workloads) and name it "
            f"as {UPLOADED}NAME"
        )
        raise InvalidRequest("workload.trace_file", request.workload.trace_file, remedy)


def require_names(request: TuneRequest, operator: Operator) -> None:
    """Require device, model and server to be the operator's; the first two may be simulated instead."""
    is_simulated = is_simulated_name(request.device)
    if is_simulated and SUFFIX in request.device.lower():
        remedy = "no file is read for a job over HTTP; use `wattfront tune` for a twin, or choose simulated:h100-sxm"
        raise InvalidRequest("device", request.device, remedy)
    entry = operator.devices.get(request.device)
    if not is_simulated and entry is None:
        names = _names(operator.devices)
        remedy = f"over HTTP name a simulated device, as simulated:h100-sxm, or one of the operator's: {names}"
        raise InvalidRequest("device", request.device, remedy)
    if entry is not None and request.allow_device_control and not entry.allow_device_control:
        remedy = (
            f"the operator lets nobody set {request.device} over HTTP; leave it out, and the device is only observed"
        )
        raise InvalidRequest("allow_device_control", True, remedy)
    if request.model not in operator.models:
        _require_model(request.model, operator, is_simulated=is_simulated)
    # Workers read the file of their own machine: where this one names no servers, theirs may.
    if request.server and operator.servers and operator.server_of(request.server, request.engine) is None:
        remedy = f"over HTTP name one of the operator's: {_names(operator.servers)}"
        raise InvalidRequest("server", request.server, remedy)


def _require_model(model: str, operator: Operator, *, is_simulated: bool) -> None:
    """Require a model of the catalogue, which has shapes only."""
    if not is_simulated:
        remedy = f"over HTTP name one of the operator's models: {_names(operator.models)}"
        raise InvalidRequest("model", model, remedy)
    try:
        catalogue.find(model)
    except UnknownModel as error:
        names = catalogue.names()
        close = difflib.get_close_matches(model.lower(), names, n=3, cutoff=0.4) or names[:3]
        remedy = f"over HTTP name one of the catalogue, as {', '.join(close)}; use `wattfront tune` for a config.json"
        raise InvalidRequest("model", model, remedy) from error


def _names(named: Mapping[str, object]) -> str:
    """Return names for a sentence, not more than a few."""
    names = sorted(named)
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more if names else "WATTFRONT_OPERATOR_FILE names none"


def searched(
    request: TuneRequest, operator: Operator, trace: Workload | None
) -> tuple[SearchSpace, SimulatedDevice] | None:
    """Return what a job on a simulated device searches, and that device; None where only a worker can tell.

    All that the device would refuse is refused here. The requests of a trace count as long as its longest.
    """
    if not is_simulated_name(request.device) or request.model in operator.models:
        return None
    # Not with the module: a service starts sooner without the simulation, and few posts come in its first second.
    from tuner.simulation import open_simulation
    from tuner.space import search_space

    request = request if trace is None else as_long(request, trace)
    device = open_simulation(request).device
    return search_space(request, device), device


def _num_points(request: TuneRequest, operator: Operator, trace: Workload | None) -> int:
    """Return how many points are searched; on a real device, how many combinations the values that are given have."""
    found = searched(request, operator, trace)
    return math.prod(len(knob.values) for knob in request.knobs) if found is None else found[0].size


def _refuse_costly(request: TuneRequest, trace: Workload | None) -> None:
    """Refuse jobs that would keep a worker from everybody else's."""
    workload, points = request.workload, {knob.name: knob.values for knob in request.knobs}
    longest_s = request.window.max_warmup_s + request.window.max_window_s
    num_gpus = parse_name(request.device).num_gpus if is_simulated_name(request.device) else 1
    replicas = _most(points, "data_parallel", num_gpus)
    in_flight = max(_most(points, "max_batch", 1) * replicas, workload.concurrency or 0)
    bounds = (
        ("workload.rate_per_s", workload.rate_per_s or 0, MAX_REQUESTS / longest_s),
        ("workload.trace_file's requests a second", _peak_rate_per_s(workload, trace), MAX_REQUESTS / longest_s),
        ("knobs.max_batch", in_flight, MAX_IN_FLIGHT),
        ("budget.trials", request.budget.trials, MAX_TRIALS),
        ("window.max_warmup_s", request.window.max_warmup_s, MAX_SIMULATED_S),
        ("window.max_window_s", request.window.max_window_s, MAX_SIMULATED_S),
    )
    for field, value, most in bounds:
        if value > most:
            raise InvalidRequest(field, value, f"over HTTP give at most {most}")
    _refuse_many_windows(request)


def _peak_rate_per_s(workload: WorkloadSpec, trace: Workload | None) -> float:
    """Return how often requests arrive in a trace's busiest minute, as it is stretched."""
    return 0.0 if trace is None else float(trace.summary["peak_rate_per_s"]) / workload.time_scale


def _refuse_many_windows(request: TuneRequest) -> None:
    """Refuse repeats that make too many windows, and more points than a Gaussian process can be asked about."""
    trials, repeats = request.budget.trials, request.repeats
    if request.sampler == "gp" and trials > MAX_GP_TRIALS:
        raise InvalidRequest("budget.trials", trials, f"over HTTP give sampler gp at most {MAX_GP_TRIALS}")
    finalists = min(repeats.finalists, trials)
    windows = trials + most_repeats(repeats.windows - 1, finalists)
    if windows > MAX_TRIALS:
        raise InvalidRequest(
            "repeats.windows",
            repeats.windows,
            f"with {finalists} finalists and their baselines that makes {windows} windows in all; over HTTP "
            f"give at most {MAX_TRIALS}",
        )


def most_repeats(rounds: int, finalists: int) -> int:
    """Return how many windows the finals take at most: a baseline that ends a round begins the next.

    Every finalist may be tried once more after the last round, with one more baseline.
    """
    baselines = math.ceil(finalists / BASELINE_EVERY)
    return rounds * (finalists + baselines) + finalists + 2 if rounds else 0


def _most(knobs: Mapping[str, tuple[KnobValue, ...]], name: str, unnamed: float) -> float:
    """Return the largest value that a job tries for a knob, or what stands for it where it names none."""
    return max((value for value in knobs.get(name, ()) if not isinstance(value, str)), default=unnamed)


def _stored_key(key: str, actor: str) -> str:
    """Return a key as it is stored: of one length, and apart from those of other callers and of `wattfront up`."""
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS:
        raise Refusal(f"Idempotency-Key has {len(key)} characters; give 1 to {MAX_KEY_CHARACTERS}")
    return f"post:{hashlib.sha256(f'{actor}/{key}'.encode()).hexdigest()}"
