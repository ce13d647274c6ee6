"""What callers may name, and who has it: devices with their workers and jobs, engines with their knobs, models.

Knows nothing of HTTP; of what the operator's names stand for it tells nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from api.device_schemas import (
    DevicesOut,
    EngineOut,
    EnginesOut,
    KnobOut,
    ModelOut,
    ModelsOut,
    NamedDeviceOut,
    SeenDeviceOut,
)
from api.operator_file import Operator
from api.records import device_out
from api.stores import Stores
from db.claims import SIMULATED_DEVICES
from db.device import SeenDevice
from db.job import Job, JobState
from db.workers import EVERYTHING, Worker
from engine.simulated import catalogue
from probes.metering.group import member_uuids
from probes.simulated.accelerators import ACCELERATORS
from probes.simulated.names import PREFIX, is_simulated_name
from tuner.knobs import ENGINES, SIMULATED, rules_of

#: A worker says that it is there every 10 s.
SILENT_AFTER_S = 45.0
#: More do not run at once on what a database of this kind is for.
_MAX_RUNNING = 500


def devices(stores: Stores, operator: Operator, now: datetime) -> DevicesOut:
    """Return every device that was seen or may be named, with who runs what on it."""
    running = stores.jobs.list(limit=_MAX_RUNNING, state=JobState.RUNNING)
    workers = live_workers(stores, now)
    simulated = [
        _named_device(f"{PREFIX}{key}", workers, (), title=accelerator.name)
        for key, accelerator in ACCELERATORS.items()
    ]
    named = [
        _named_device(name, workers, running, allow_device_control=entry.allow_device_control)
        for name, entry in sorted(operator.devices.items())
    ]
    seen = [_seen_device(device, running, workers) for device in stores.devices.list()]
    return DevicesOut(items=seen, named=[*named, *simulated])


def device(stores: Stores, uuid: str, now: datetime) -> SeenDeviceOut:
    """Return one device that was seen. Raises DeviceNotStored."""
    seen = stores.devices.get(uuid)
    return _seen_device(seen, stores.jobs.list(limit=_MAX_RUNNING, state=JobState.RUNNING), live_workers(stores, now))


def engines(stores: Stores, now: datetime) -> EnginesOut:
    """Return every engine of this version with its knobs, and the live workers that can start it."""
    workers = live_workers(stores, now)
    return EnginesOut(items=[_engine(name, workers) for name in ENGINES])


def models(operator: Operator) -> ModelsOut:
    """Return every model that a job over HTTP may name: the operator's, then the catalogue's."""
    own = [ModelOut(name=name, origin="operator", ids=[]) for name in sorted(operator.models)]
    shapes = [
        ModelOut(name=name, origin="catalogue", ids=list(catalogue.ids(name)))
        for name in catalogue.names()
        if name not in operator.models
    ]
    return ModelsOut(items=[*own, *shapes])


def live_workers(stores: Stores, now: datetime) -> list[Worker]:
    """Return the workers that said lately that they are there."""
    return [worker for worker in stores.workers.list() if not worker.is_silent(now, SILENT_AFTER_S)]


def _seen_device(device: SeenDevice, running: Sequence[Job], workers: Sequence[Worker]) -> SeenDeviceOut:
    members = set(member_uuids(device.info.uuid))
    job = next((job for job in running if not members.isdisjoint(member_uuids(job.device_uuid or ""))), None)
    hosts = {worker.owner: worker.host for worker in workers}
    return SeenDeviceOut(
        **device_out(device).model_dump(),
        running_job=None if job is None else job.id,
        worker_host=None if job is None or job.owner is None else hosts.get(job.owner),
    )


def _named_device(
    name: str,
    workers: Sequence[Worker],
    running: Sequence[Job],
    *,
    title: str | None = None,
    allow_device_control: bool = False,
) -> NamedDeviceOut:
    job = next((job for job in running if job.request.device == name), None)
    return NamedDeviceOut(
        name=name,
        title=title,
        is_simulated=title is not None,
        allow_device_control=allow_device_control,
        worker_hosts=_hosts(worker for worker in workers if _takes(worker, name)),
        running_job=None if job is None else job.id,
    )


def _takes(worker: Worker, name: str) -> bool:
    wanted = {EVERYTHING, name, *([SIMULATED_DEVICES] if is_simulated_name(name) else [])}
    return not wanted.isdisjoint(worker.devices)


def _engine(name: str, workers: Sequence[Worker]) -> EngineOut:
    knobs = [
        KnobOut(
            name=knob,
            needs_launch=rule.needs_launch,
            default=rule.default,
            tried=list(rule.tried),
            words=list(rule.words),
        )
        for knob, rule in rules_of(name).items()
    ]
    able = (worker for worker in workers if name in worker.engines)
    return EngineOut(name=name, is_simulated=name == SIMULATED, worker_hosts=_hosts(able), knobs=knobs)


def _hosts(workers: Iterable[Worker]) -> list[str]:
    return sorted({worker.host for worker in workers})
