"""What a job measures with: its device held, its engine watched, its settings given back.

Knows nothing of what is measured, nor of what becomes of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from api.engine_opener import engine_opener
from api.prepare import Prepared
from api.settings import Settings
from api.stores import Stores
from api.watchdog import Watchdog
from api.watched_engine import WatchedEngine
from db.device import ControlState
from engine.serving import ServingEngine
from engine.settings import EngineSettings
from probes.control.opening import open_control
from probes.control.seam import DeviceControl
from probes.holder import hold
from probes.settings import DEVICE_KNOBS
from tuner.bench import Bench, OpenEngine
from tuner.rig import DeviceRig


def held(prepared: Prepared) -> AbstractContextManager[None]:
    """Keep the device to ourselves; a simulated one is everybody's own."""
    return hold(prepared.device.info.uuid) if prepared.simulation is None else nullcontext()


@contextlib.contextmanager
def open_bench(stores: Stores, prepared: Prepared, settings: Settings, watchdog: Watchdog) -> Iterator[Bench]:
    """Open a bench, with control of the device if the job searches a knob of it; give everything back after it."""
    if prepared.simulation is not None:
        open_engine, rig = _watched(prepared.simulation.open_engine, watchdog), prepared.simulation.open_rig()
        bench = Bench(prepared.request, prepared.simulation.device, open_engine, rig=rig)
        try:
            yield bench
        finally:
            watchdog.stand_down()
            bench.close()
        return
    control = _control(prepared, settings)
    rig = DeviceRig(prepared.device, control=control, host=prepared.host_cpu, clock=prepared.host.clock)
    uuid = prepared.device.info.uuid
    if control is not None:
        stores.devices.set_control(uuid, ControlState.CONTROLLED, control.description)
    open_engine = _watched(engine_opener(prepared), watchdog)
    bench = Bench(prepared.request, prepared.device, open_engine, rig=rig, qualities=stores.qualities)
    try:
        yield bench
    finally:
        watchdog.stand_down()
        try:
            rig.close()  # first: whatever hinders the engine's end must not keep the device set
        finally:
            bench.close()
        if rig.restore_error is not None:
            stores.devices.set_control(uuid, ControlState.RESTORE_FAILED, str(rig.restore_error))
        elif control is not None:
            stores.devices.set_control(uuid, ControlState.OBSERVED, None)


def _watched(open_engine: OpenEngine, watchdog: Watchdog) -> OpenEngine:
    """Return an opener of engines that are left as soon as the job is to end."""

    def open_watched(settings: EngineSettings) -> ServingEngine:
        watchdog.check()
        return WatchedEngine(open_engine(settings), watchdog.check)

    return open_watched


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
