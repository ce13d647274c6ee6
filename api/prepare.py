"""A request checked against this machine before anything runs: device, control, knobs, model, context."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from api.errors import UsageError
from api.machine_names import lacking, resolved
from api.server_launch import ServerLaunch, server_launch
from api.settings import Settings
from db.workloads import WorkloadStore
from engine.embedded.config import load_config
from engine.embedded.gguf_file import Progress
from engine.embedded.models import ModelFiles, resolve
from engine.errors import UnknownModel
from probes.control.opening import blocked, offered
from probes.cpu.cpu_estimate import CpuPowerModel
from probes.detect import Host, find_device, list_devices
from probes.device import Device, DeviceKind, Method
from probes.errors import RestoreFailed, Uncontrolled, UnknownDevice
from probes.metering.group import member_uuids
from probes.settings import SM_CLOCK_CAP, Settable
from probes.simulated.names import is_simulated_name
from tuner.errors import InvalidRequest
from tuner.knobs import SERVERS
from tuner.request import TuneRequest
from tuner.simulation import Simulation, open_simulation
from tuner.space import SearchSpace, search_space
from tuner.workload import max_context

#: The bit of CAP_SYS_ADMIN, which NVML asks for (linux/capability.h).
_CAP_SYS_ADMIN = 21


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request checked against this machine: everything that can be refused was refused."""

    #: With this machine's own device, paths and files in place of names: what is opened and run.
    request: TuneRequest
    #: As it was asked and is stored, by which other jobs are compared with it.
    asked: TuneRequest
    device: Device
    space: SearchSpace
    #: The model's files; None where its shape is all that is needed.
    files: ModelFiles | None = None
    #: How the server is started that is the engine; None of engines of ours.
    server: ServerLaunch | None = None
    #: What stands in for device, engine and model on a simulated device.
    simulation: Simulation | None = None
    #: Where the device was found, for whoever sets it.
    host: Host
    #: The host's CPU, where its energy is measured and the device is another.
    host_cpu: Device | None = None

    @property
    def device_uuids(self) -> tuple[str, ...]:
        """The devices that the job uses."""
        return member_uuids(self.device.info.uuid)


def prepare(
    asked: TuneRequest, settings: Settings, progress: Progress, *, workloads: WorkloadStore | None = None
) -> Prepared:
    """Check a request against this machine and fetch its model; `workloads` has the traces that were uploaded.

    A simulated device is opened instead, and only the model's shape is read. Raises InvalidRequest, UnknownDevice,
    RestoreFailed, UnknownModel or CheckpointError, each naming what to correct.
    """
    request = resolved(asked, settings, workloads)
    if is_simulated_name(request.device):
        return _prepare_simulation(request, asked, settings)
    host = probe_host(settings)
    devices = list_devices(host)
    device = _find_device(request.device, devices, host, settings)
    _require_usable(request, device, settings)
    space = search_space(request, device, settables=_settables(request, device, settings))
    host_cpu = _measured_cpu(devices) if device.info.kind is DeviceKind.GPU else None
    usual = Prepared(request=request, asked=asked, device=device, space=space, host=host, host_cpu=host_cpu)
    if request.engine in SERVERS:
        launch = server_launch(request, settings, lambda model: _resolved(model, settings, progress))
        return replace(usual, server=launch)
    files = _model_files(request.model, settings, progress)
    _require_context(request, files)
    return replace(usual, files=files)


def _require_context(request: TuneRequest, files: ModelFiles) -> None:
    """Refuse requests that are longer than the model takes; a server says so itself."""
    limit, longest = load_config(files.folder).usable_context, max_context(request.workload)
    if longest > limit:
        raise InvalidRequest(
            "workload",
            f"{request.workload.prompt_tokens[1]} prompt + {request.workload.output_tokens[1]} output tokens",
            f"together {longest}, but {request.model} has a context of {limit} tokens; nothing is truncated",
        )


def _prepare_simulation(request: TuneRequest, asked: TuneRequest, settings: Settings) -> Prepared:
    """Prepare a job that needs nothing of this machine: no permission, no lock, no weights."""
    try:
        simulation = open_simulation(request)
    except UnknownModel as error:
        raise UnknownModel(lacking(str(error), "model", request.model, settings)) from error
    return Prepared(
        request=request,
        asked=asked,
        device=simulation.device,
        space=search_space(request, simulation.device),
        host=probe_host(settings),
        simulation=simulation,
    )


def _find_device(name: str, devices: tuple[Device, ...], host: Host, settings: Settings) -> Device:
    """Return the device of a name; where there is none, tell that the operator's file has no such name either."""
    try:
        return find_device(name, devices, clock=host.clock)
    except UnknownDevice as error:
        raise UnknownDevice(lacking(str(error), "device", name, settings)) from error


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


def here_uuids(host: Host) -> frozenset[str]:
    """Return the UUIDs of this machine's devices."""
    return frozenset(device.info.uuid for device in list_devices(host))


def _require_usable(request: TuneRequest, device: Device, settings: Settings) -> None:
    """Refuse a device that cannot be measured, is blocked, or may not be set though the job asks for it."""
    if device.power_source is None:
        raise InvalidRequest(
            "device", request.device, f"{device.info.name} gives no power reading; see wattfront doctor"
        )
    if len(member_uuids(device.info.uuid)) > 1 and request.engine not in SERVERS:
        raise InvalidRequest("device", request.device, "the embedded engine runs on one GPU; name one")
    if request.allow_device_control and not settings.allow_device_control:
        raise InvalidRequest(
            "allow_device_control",
            True,
            "this machine's operator has not set WATTFRONT_ALLOW_DEVICE_CONTROL=true, so its devices are only observed",
        )
    if request.allow_device_control and not may_set(settings):
        raise InvalidRequest(
            "allow_device_control",
            True,
            f"this process may not set devices, and there is no guard at {settings.guard_socket}; "
            "start `wattfront guard` as root",
        )
    failed = _blocked(request, settings)
    for uuid in member_uuids(device.info.uuid):
        if uuid in failed:
            raise RestoreFailed(
                f"device {uuid} is blocked: what was found there could not be put back ({failed[uuid]}); "
                "run `wattfront restore` as root"
            )


def may_set(settings: Settings) -> bool:
    """Tell whether somebody could set devices for us: the guard, or this process with root's right to do so."""
    try:
        if settings.guard_socket.exists():
            return True
        status = Path("/proc/self/status").read_text()
    except OSError:
        return os.geteuid() == 0
    effective = next((line for line in status.splitlines() if line.startswith("CapEff:")), "CapEff: 0").split()[1]
    return os.geteuid() == 0 or bool(int(effective, 16) >> _CAP_SYS_ADMIN & 1)


def _settables(request: TuneRequest, device: Device, settings: Settings) -> tuple[Settable, ...]:
    """Return the device's knobs with the values that may be set here: what the guard allows, else what we may.

    A clock cap that the operator declared is theirs: no higher one is offered. The guard has its own declaration.
    """
    if not request.allow_device_control:
        return ()
    allowed = offered(device.info.uuid, settings.guard_socket)
    if allowed is not None:
        return allowed
    prior_mhz = settings.prior_sm_clock_caps_mhz.get(device.info.uuid)
    return tuple(
        knob if prior_mhz is None or knob.name != SM_CLOCK_CAP else knob.up_to(prior_mhz) for knob in device.settables()
    )


def _blocked(request: TuneRequest, settings: Settings) -> Mapping[str, str]:
    """Return the blocked devices; a journal that cannot be read hinders only who wants to set something."""
    try:
        return blocked(settings.state_dir)
    except Uncontrolled:
        if request.allow_device_control:
            raise
        return {}


def _measured_cpu(devices: tuple[Device, ...]) -> Device | None:
    """Return the host's CPU if its energy is measured: an estimate beside a measurement would only confuse."""
    cpus = [device for device in devices if device.info.kind is DeviceKind.CPU]
    source = cpus[0].power_source if cpus else None
    return cpus[0] if source is not None and source.method is not Method.ESTIMATE else None


def _model_files(model: str, settings: Settings, progress: Progress) -> ModelFiles:
    """Fetch a model where it is not at hand, and check that its weights are all there."""
    files = _resolved(model, settings, progress)
    from engine.embedded.weights import Weights  # brings torch, a matter of seconds that a wrong name need not wait

    Weights(files.folder)
    return files


def _resolved(model: str, settings: Settings, progress: Progress) -> ModelFiles:
    try:
        return resolve(model, cache_dir=settings.cache_dir, progress=progress)
    except UnknownModel as error:
        raise UnknownModel(lacking(str(error), "model", model, settings)) from error
    except OSError as error:
        place = error.filename or settings.cache_dir
        raise UsageError(
            f"model is {model!r}: {place}: {error.strerror or error}; make room or give access there, or set "
            f"WATTFRONT_CACHE_DIR, which is {settings.cache_dir}"
        ) from error
