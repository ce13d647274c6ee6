"""Take jobs from the queue, one after the other, and run each; keep this machine's devices told and given back.

Knows nothing of how a job is run.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Collection

import structlog

from api.errors import BAD_INPUT
from api.heartbeat import LEASE_S
from api.job_run import FOR_NOW, STORE_FOR_NOW, run_job
from api.owners import is_dead, owner_name
from api.prepare import here_uuids, probe_host
from api.presence import Presence
from api.settings import Settings
from api.stores import Stores
from api.tracing import NO_TRACES, Tracer
from db.device import ControlState
from probes.control.opening import blocked, recover
from probes.errors import ProbeError

POLL_S = 1.0
#: Before the next job is claimed after one was put aside: it may be the same one.
BACKOFF_S = 10.0
#: Between two looks at what is blocked while there is nothing to do.
TELL_INTERVAL_S = 10.0

log = structlog.get_logger()


def work(
    stores: Stores,
    settings: Settings,
    *,
    should_stop: threading.Event,
    takes: Collection[str] | None = None,
    poll_s: float = POLL_S,
    backoff_s: float = BACKOFF_S,
    tracer: Tracer = NO_TRACES,
) -> None:
    """Run jobs as they come until told to stop; a job that fails is recorded and the next one is taken.

    `takes` are names of devices, `simulated:*` for all simulated ones; None takes jobs of every device. What a worker
    that was killed left set on a device is put back first. While there is nothing to do the store is told now and then
    what is blocked: guard and `wattfront restore` put back without asking it.
    """
    give_back(stores, settings)
    told_s = time.monotonic()
    with Presence(stores, takes) as presence:
        while not should_stop.is_set():
            if time.monotonic() - told_s >= TELL_INTERVAL_S:
                told_s = time.monotonic()
                _tell_blocked(stores, settings)
            try:
                stores.jobs.expire(is_dead)
                claim = stores.jobs.claim_next(owner_name(), LEASE_S, takes=takes)
                presence.runs(None if claim is None else claim.job_id)
                if claim is not None:
                    run_job(stores, claim, settings, should_stop=should_stop.is_set, tracer=tracer)
                    continue
            except FOR_NOW as error:  # the job is back in the queue
                log.warning("job_put_aside", kind=error.kind, error=str(error))
                presence.runs(None)
                should_stop.wait(backoff_s)
                continue
            except STORE_FOR_NOW as error:  # a job goes back to the queue, or its lease runs out: none fails over it
                log.warning("store_not_available", error=str(error))
                presence.runs(None)
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
