"""A job that comes over HTTP: read, checked in full, then stored for a worker.

This version has no API keys. So nothing that a request says reaches a real device, a file or another host: devices are
simulated, models are names of the catalogue, and what a job may cost is bounded. Knows nothing of headers, nor of who
runs the job.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import threading
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from api.complaints import complaint_of, shown
from api.errors import UsageError
from api.job_schemas import JobIn
from api.stores import Stores
from db.job import Job, JobState
from engine.errors import UnknownModel
from engine.simulated import catalogue
from probes.simulated.names import is_simulated_name, parse_name
from probes.simulated.twin import SUFFIX
from tuner.drift import BASELINE_EVERY
from tuner.errors import InvalidRequest
from tuner.request import KnobValue, TuneRequest
from tuner.simulation import open_simulation
from tuner.space import search_space

MAX_BODY_BYTES = 1_000_000
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
#: Of a whole number: more do not fit into 64 bits, and no field has a use for them.
_MAX_DIGITS = 18


class Refusal(UsageError):
    """Correct what the message names; nothing was stored."""

    status = 422
    title = "job refused"


class NotJson(Refusal):
    """Send one JSON object in UTF-8."""

    status = 400
    title = "not JSON"


class ForeignOrigin(Refusal):
    """Post from a program, or from a page of this service."""

    status = 403
    title = "foreign origin"


class KeyTaken(Refusal):
    """Use a new idempotency key for another job."""

    status = 409
    title = "idempotency key in use"


class BodyTooLarge(Refusal):
    """Send a smaller job: real ones have some hundred bytes."""

    status = 413
    title = "body too large"


class NotJsonMedia(Refusal):
    """Say `Content-Type: application/json`."""

    status = 415
    title = "wrong media type"


class TooManyJobs(Refusal):
    """Wait until some jobs have ended, or cancel some."""

    status = 429
    title = "too many open jobs"


REFUSALS: tuple[type[Refusal], ...] = (
    Refusal, NotJson, ForeignOrigin, KeyTaken, BodyTooLarge, NotJsonMedia, TooManyJobs,
)  # fmt: skip


def read_request(body: bytes) -> TuneRequest:
    """Return the request that a JSON body asks for, checked as far as its fields go.

    Raises NotJson, Refusal or InvalidRequest, naming the field.
    """
    fields = _parse(body)
    if not isinstance(fields, dict):
        raise Refusal('a job is an object, as in {"model": "llama-3.1-8b", "device": "simulated:h100-sxm"}')
    for text in _texts(fields):
        if any(unicodedata.category(character) in ("Cc", "Cs") for character in text):
            raise Refusal(f"{shown(text)} holds a control character or half of a surrogate pair; remove it")
    try:
        return JobIn.model_validate(fields).to_request()
    except ValidationError as error:
        raise Refusal(complaint_of(error)[1]) from error


def check(request: TuneRequest) -> None:
    """Check a request in full: what may not be asked for here, what costs too much, what cannot be simulated.

    Raises InvalidRequest, UnknownDevice, CheckpointError or InvalidSettings, naming what to correct.
    """
    _refuse_forbidden(request)
    _refuse_costly(request)
    space = search_space(request, open_simulation(request).device)
    if space.size > MAX_POINTS:
        raise InvalidRequest("knobs", f"{space.size} points", f"over HTTP give values for at most {MAX_POINTS}")


class Submissions:
    """Where checked requests become jobs: one at a time, so that no crowd of them gets past the bound together."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._lock = threading.Lock()

    def submit(self, body: bytes, idempotency_key: str | None) -> tuple[Job, bool]:
        """Check a body and store its job; return the job, and whether it is new.

        The same key with the same job gives the job that it made before. Raises what `read_request` and `check` do,
        KeyTaken, TooManyJobs or StoreError; nothing is stored then.
        """
        request = read_request(body)
        check(request)
        key = None if idempotency_key is None else _stored_key(idempotency_key)
        with self._lock:
            known = None if key is None else self._stores.jobs.with_key(key)
            if known is None:
                self._require_room()
            job = known or self._stores.jobs.create(request, idempotency_key=key)
        if job.request != request:
            raise KeyTaken(
                f"Idempotency-Key {shown(idempotency_key)} made job {job.id}, which asks for something else; use a new "
                "key for another job"
            )
        return job, known is None

    def _require_room(self) -> None:
        states = (JobState.QUEUED, JobState.RUNNING)
        num_open = sum(len(self._stores.jobs.list(limit=MAX_OPEN_JOBS, state=state)) for state in states)
        if num_open >= MAX_OPEN_JOBS:
            raise TooManyJobs(
                f"{MAX_OPEN_JOBS} jobs wait or run, and more are not taken; wait until some have ended, or end some "
                "with `wattfront cancel JOB`; a worker must be running"
            )


def _refuse_forbidden(request: TuneRequest) -> None:
    """Refuse what is for this machine's own people: real devices, and whatever is read from files."""
    if not is_simulated_name(request.device):
        remedy = "over HTTP only simulated devices are tuned, as simulated:h100-sxm; use `wattfront tune` for real ones"
        raise InvalidRequest("device", request.device, remedy)
    if SUFFIX in request.device.lower():
        remedy = "no file is read for a job over HTTP; use `wattfront tune` for a twin, or choose simulated:h100-sxm"
        raise InvalidRequest("device", request.device, remedy)
    if request.quality.text_file is not None:
        remedy = "a job over HTTP reads no files; leave it out, or run it with wattfront tune"
        raise InvalidRequest("quality.text_file", request.quality.text_file, remedy)
    if request.workload.trace_file is not None:
        remedy = "no file is read for a job over HTTP; use `wattfront tune`, or the scenario server"
        raise InvalidRequest("workload.trace_file", request.workload.trace_file, remedy)
    try:
        catalogue.find(request.model)
    except UnknownModel as error:
        names = catalogue.names()
        close = difflib.get_close_matches(request.model.lower(), names, n=3, cutoff=0.4) or names[:3]
        remedy = f"over HTTP name one of the catalogue, as {', '.join(close)}; use `wattfront tune` for a config.json"
        raise InvalidRequest("model", request.model, remedy) from error


def _refuse_costly(request: TuneRequest) -> None:
    """Refuse jobs that would keep a worker from everybody else's."""
    workload, points = request.workload, {knob.name: knob.values for knob in request.knobs}
    longest_s = request.window.max_warmup_s + request.window.max_window_s
    replicas = _most(points, "data_parallel", parse_name(request.device).num_gpus)
    in_flight = max(_most(points, "max_batch", 1) * replicas, workload.concurrency or 0)
    bounds = (
        ("workload.rate_per_s", workload.rate_per_s or 0, MAX_REQUESTS / longest_s),
        ("knobs.max_batch", in_flight, MAX_IN_FLIGHT),
        ("budget.trials", request.budget.trials, MAX_TRIALS),
        ("window.max_warmup_s", request.window.max_warmup_s, MAX_SIMULATED_S),
        ("window.max_window_s", request.window.max_window_s, MAX_SIMULATED_S),
    )
    for field, value, most in bounds:
        if value > most:
            raise InvalidRequest(field, value, f"over HTTP give at most {most}")
    _refuse_many_windows(request)


def _refuse_many_windows(request: TuneRequest) -> None:
    """Refuse repeats that make too many windows, and more points than a Gaussian process can be asked about."""
    trials, repeats = request.budget.trials, request.repeats
    if request.sampler == "gp" and trials > MAX_GP_TRIALS:
        raise InvalidRequest("budget.trials", trials, f"over HTTP give sampler gp at most {MAX_GP_TRIALS}")
    finalists = min(repeats.finalists, trials)
    windows = trials + _most_repeats(repeats.windows - 1, finalists)
    if windows > MAX_TRIALS:
        raise InvalidRequest(
            "repeats.windows",
            repeats.windows,
            f"with {finalists} finalists and their baselines that makes {windows} windows in all; over HTTP "
            f"give at most {MAX_TRIALS}",
        )


def _most_repeats(rounds: int, finalists: int) -> int:
    """Return how many windows the finals take at most: a baseline that ends a round begins the next.

    Every finalist may be tried once more after the last round, with one more baseline.
    """
    baselines = math.ceil(finalists / BASELINE_EVERY)
    return rounds * (finalists + baselines) + finalists + 2 if rounds else 0


def _most(knobs: Mapping[str, tuple[KnobValue, ...]], name: str, unnamed: float) -> float:
    """Return the largest value that a job tries for a knob, or what stands for it where it names none."""
    return max((value for value in knobs.get(name, ()) if not isinstance(value, str)), default=unnamed)


def _parse(body: bytes) -> Any:
    """Return what a body says in JSON; numbers that are none and fields given twice are refused."""
    try:
        return json.loads(
            body.decode("utf-8"), object_pairs_hook=_unrepeated, parse_int=_whole, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError as error:
        raise NotJson(f"the body is not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise NotJson(f"the body is not JSON: {error.msg}, line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise NotJson("the body is nested too deeply; a job is three levels deep") from error


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise Refusal(f"{shown(name)} is given twice; keep one")
        fields[name] = value
    return fields


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > _MAX_DIGITS:
        raise Refusal(f"{digits[:_MAX_DIGITS]}... has more than {_MAX_DIGITS} digits; give a smaller number")
    return int(digits)


def _refuse_constant(name: str) -> None:
    raise NotJson(f"{name} is not JSON; give a number")


def _texts(value: object) -> Iterator[str]:
    """Yield every text in plain data of any depth, names of fields included."""
    left = [value]
    while left:
        match left.pop():
            case str() as text:
                yield text
            case dict() as fields:
                left += [*fields.keys(), *fields.values()]
            case list() as items:
                left += items


def _stored_key(key: str) -> str:
    """Return a key as it is stored: of one length, and apart from those of `wattfront up`."""
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS:
        raise Refusal(f"Idempotency-Key has {len(key)} characters; give 1 to {MAX_KEY_CHARACTERS}")
    return f"post:{hashlib.sha256(key.encode()).hexdigest()}"
