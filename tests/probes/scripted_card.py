"""A card made of functions of time, watched and metered without a driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from probes.clock import Clock
from probes.device import UNSET, Method, PowerSource, Scope
from probes.metering.counting import Counter
from probes.metering.findings import Subject
from probes.metering.gpu_meter import GpuMeter
from probes.metering.gpu_watch import CardReads, GpuEye, GpuWatch, ProcessWatch
from probes.settings import DeviceSettings

UUID = "GPU-1"
COUNTER = PowerSource(scope=Scope.GPU, method=Method.COUNTER, detail="counter", resolution_s=0.1)
POWER = PowerSource(scope=Scope.GPU, method=Method.INTEGRATED, detail="power", resolution_s=0.1)
AVERAGED = replace(POWER, method=Method.INTEGRATED_AVERAGE, detail="averaged power")

Read = Callable[[float], float]


def steady_w(_now_s: float) -> float:
    return 300.0


def steady_mj(now_s: float) -> float:
    """300 W, in steps of 100 ms."""
    return round(now_s * 10) * 30_000


def make_reads(clock: Clock, power_w: Read | None = steady_w, **changes: object) -> CardReads:
    """A cool card at full clock; a change replaces a read, or takes it away with None."""
    reads = CardReads(
        power_w=None if power_w is None else (lambda: power_w(clock.monotonic_s())),
        clock_mhz=lambda: 1980,
        memory_clock_mhz=lambda: 2619,
        temperature_c=lambda: 45,
        event_bits=lambda: 0,
        enforced_limit_w=lambda: 700.0,
        set_limit_w=lambda: 700.0,
        is_persistent=lambda: True,
    )
    return replace(reads, **changes)  # type: ignore[arg-type] # whichever fields a test names


def make_watch(
    reads: CardReads,
    clock: Clock,
    *,
    settings: DeviceSettings = UNSET,
    settable_step: int | None = 15,
    processes: ProcessWatch | None = None,
) -> GpuWatch:
    return GpuWatch(
        GpuEye(reads, clock=clock),
        device_uuid=UUID,
        settings=settings,
        settable_step=settable_step,
        processes=processes,
    )


def make_gpu_meter(
    clock: Clock,
    count_mj: Read | None = steady_mj,
    power_w: Read | None = steady_w,
    *,
    source: PowerSource | None = None,
    settings: DeviceSettings = UNSET,
    reads: CardReads | None = None,
) -> GpuMeter:
    """A meter that counts, checked against power unless that is None; without a counter it integrates power."""
    shown = reads or make_reads(clock, power_w)
    counter = Counter(read=lambda: int(count_mj(clock.monotonic_s())), counts_per_joule=1000) if count_mj else None
    return GpuMeter(
        lambda: make_watch(shown, clock, settings=settings),
        Subject(source=source or (COUNTER if counter else POWER), device_uuids=(UUID,)),
        clock=clock,
        counter=counter,
        check=POWER if counter and power_w else None,
    )
