"""What is served: an engine's settings by options, by a job's stored point, or by the recommendation inside limits.

Knows nothing of HTTP, and sets nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from api.errors import UsageError
from api.export.point import point_of
from api.operator_file import load_operator
from api.prepare import Prepared, prepare, probe_host
from api.recommend_schemas import RecommendationQuery
from api.recommender import Recommender
from api.settings import Settings
from api.stores import Stores, utc_now
from db.job import Job
from db.result import Result
from engine.embedded.gguf_file import Progress
from engine.embedded.models import ModelFiles, resolve
from engine.settings import EngineSettings
from probes.detect import Host, find_device, list_devices
from probes.device import Device
from probes.settings import DEVICE_KNOBS, DeviceSettings
from tuner.bench import engine_device
from tuner.knobs import EMBEDDED
from tuner.request import TuneRequest
from tuner.space import device_settings_of, settings_of

#: Settings that a point says nothing of, so that they may be given beside one.
_BESIDE_A_POINT = ("max_context", "block_size", "num_kv_blocks", "num_threads", "gpu_memory_fraction")
#: Fields of a recommendation's query that `--sla` may name.
_LIMITS = tuple(name for name in RecommendationQuery.model_fields if name.endswith(("_ms", "_w", "_tok_s", "_quality")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An engine to open and a device to set."""

    settings: EngineSettings
    files: ModelFiles
    device: Device
    host: Host
    #: What the point asks of the device; empty where nothing is to be set.
    device_settings: DeviceSettings = dataclasses.field(default_factory=DeviceSettings)
    #: Of the point: what it asks of the device and nobody is to set.
    left_out: DeviceSettings = dataclasses.field(default_factory=DeviceSettings)
    #: Where the settings come from, in words.
    origin: str
    #: What whoever reads the origin must know beside it.
    notes: tuple[str, ...] = ()


def by_options(model: str, device: str, options: Mapping[str, Any], settings: Settings, progress: Progress) -> Choice:
    """Return a choice by an engine's settings as they were given.

    Raises UnknownModel, CheckpointError, UnknownDevice or InvalidSettings.
    """
    operator = load_operator(settings.operator_file)
    host = probe_host(settings)
    entry = operator.devices.get(device)
    found = find_device(device if entry is None else entry.device, list_devices(host), clock=host.clock)
    chosen = EngineSettings(model=operator.models.get(model, model), device=engine_device(found), **_given(options))
    files = resolve(chosen.model, cache_dir=settings.cache_dir, progress=progress)
    return Choice(settings=chosen, files=files, device=found, host=host, origin="the settings that were given")


def by_point(
    stores: Stores,
    point: str,
    *,
    model: str,
    options: Mapping[str, Any],
    allow_device_control: bool,
    settings: Settings,
    progress: Progress,
) -> Choice:
    """Return the choice of a job's trial, `JOB:N`, or of its best point, `JOB`.

    Raises UsageError, StoreError, NotExportable or what `prepare` raises.
    """
    job_id, number = _job_and_number(point)
    job = stores.jobs.get(job_id)
    _require_served(job.request, model, point)
    return _of_result(
        stores, job, point_of(stores, job, number), options, settings, progress,
        allow_device_control=allow_device_control,
    )  # fmt: skip


def by_limits(
    stores: Stores,
    sla: str,
    *,
    model: str,
    device: str,
    options: Mapping[str, Any],
    allow_device_control: bool,
    settings: Settings,
    progress: Progress,
) -> Choice:
    """Return the choice of the stored point with the most tokens per joule inside limits, on this device.

    Raises UsageError where there is none, with what the nearest ones miss.
    """
    host = probe_host(settings)
    uuid = find_device(device, list_devices(host), clock=host.clock).info.uuid
    query = _query(model, uuid, sla)
    answer = Recommender(stores, utc_now).answer(query)
    if answer.recommended is None:
        raise UsageError(f"--sla is {sla!r}: {answer.why}")
    job = stores.jobs.get(answer.recommended.job)
    result = point_of(stores, job, answer.recommended.trial)
    return _of_result(stores, job, result, options, settings, progress, allow_device_control=allow_device_control)


def _of_result(
    stores: Stores,
    job: Job,
    result: Result,
    options: Mapping[str, Any],
    settings: Settings,
    progress: Progress,
    *,
    allow_device_control: bool,
) -> Choice:
    beside = _given(options)
    if tuned := [name for name in beside if name not in _BESIDE_A_POINT]:
        flag = "--" + tuned[0].replace("_", "-")
        raise UsageError(f"{flag} is {beside[tuned[0]]!r}, but the point has its own; leave it out")
    asked = device_settings_of(result.point)
    is_set = allow_device_control and not asked.is_empty
    prepared = prepare(_without_device_knobs(job.request, is_set), settings, progress, workloads=stores.workloads)
    assert prepared.files is not None  # the embedded engine's jobs have them
    chosen = settings_of(prepared.request, result.point)
    chosen = dataclasses.replace(chosen, device=engine_device(prepared.device), **beside)
    return Choice(
        settings=chosen,
        files=prepared.files,
        device=prepared.device,
        host=prepared.host,
        device_settings=asked if is_set else DeviceSettings(),
        left_out=DeviceSettings() if is_set else asked,
        origin=f"trial {result.number} of job {job.id[:8]}: {result.point}",
        notes=_notes(result, prepared),
    )


def _notes(result: Result, prepared: Prepared) -> tuple[str, ...]:
    """Return in what respect this is not what was measured."""
    assert prepared.files is not None
    notes = []
    if result.evidence.model_hash != prepared.files.model_hash:
        notes.append("the model's files are not those that were measured")
    if not set(prepared.device_uuids) <= set(result.evidence.device_uuids):
        measured = ", ".join(result.evidence.device_uuids)
        notes.append(f"it was measured on {measured}, and this is {prepared.device.info.uuid}")
    return tuple(notes)


def _without_device_knobs(request: TuneRequest, is_set: bool) -> TuneRequest:
    """Return a job that asks for control of the device only where it will be set."""
    knobs = request.knobs if is_set else tuple(knob for knob in request.knobs if knob.name not in DEVICE_KNOBS)
    return dataclasses.replace(request, allow_device_control=is_set, knobs=knobs)


def _require_served(request: TuneRequest, model: str, point: str) -> None:
    if request.engine != EMBEDDED:
        raise UsageError(
            f"--point is {point!r}, a job of the engine {request.engine}; serve-model runs the embedded engine: "
            "wattfront export prints how to run others"
        )
    if request.model != model:
        raise UsageError(f"--point is {point!r}, a job of {request.model}; serve that, or name a job of {model}")


def _job_and_number(point: str) -> tuple[str, int | None]:
    job_id, colon, number = point.partition(":")
    if not job_id or (colon and not number.isdecimal()):
        raise UsageError(f"--point is {point!r}; give JOB:N, a job's id and a trial's number, or JOB for its best")
    return job_id, int(number) if colon else None


def _query(model: str, uuid: str, sla: str) -> RecommendationQuery:
    """Read limits as in `ttft_p99_ms=500,power_w=80`."""
    limits = {}
    for part in sla.split(","):
        name, equals, value = part.replace("<=", "=").replace(">=", "=").partition("=")
        if not equals or name.strip() not in _LIMITS:
            raise UsageError(f"--sla has {part!r}; give NAME=NUMBER by comma, of {', '.join(_LIMITS)}")
        limits[name.strip()] = value.strip()
    try:
        return RecommendationQuery.model_validate({"model": model, "device": uuid, "engine": EMBEDDED, **limits})
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"--sla: {first['loc'][0]} is {first['input']!r}: {first['msg']}") from error


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
