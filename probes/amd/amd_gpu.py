"""An AMD GPU as a device: its energy counter if that agrees with its power, else its power integrated.

Observed only: in this version nothing is set on it. Knows AMD SMI only through `probes.amd.amd_smi`. Tested against a
fake of the library, not yet on an AMD GPU; how often its sensors are refreshed, and over what time "average" power is a
mean, is not documented, so the latter is treated like NVML's mean of a second. HIP numbers GPUs in an order of its own,
and HIP_VISIBLE_DEVICES is not applied: a GPU is chosen by its UUID.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from threading import Event

from probes.amd.amd_smi import AmdCard, AmdPower, AmdSmi
from probes.clock import Clock
from probes.cpu.paths import HostPaths
from probes.device import UNSET, Capability, DeviceInfo, DeviceKind, Meter, Method, PowerSource, Scope, Status
from probes.errors import NotSupported, ProbeError
from probes.metering.counting import Counter
from probes.metering.findings import Subject
from probes.metering.gpu_meter import LOOK_INTERVAL_S, GpuMeter
from probes.metering.gpu_watch import CardReads, GpuEye, GpuWatch, ProcessWatch
from probes.metering.sampler import timed
from probes.metering.ticks import measure_tick
from probes.nvidia.gpu_sources import PowerReader, Sources, tried
from probes.settings import POWER_CAP, SM_CLOCK_CAP, DeviceSettings, Settable

PROC = HostPaths().proc
AMD_SMI_NAME = "AMD SMI"
COUNTER_DETAIL = "AMD SMI energy counter"
MICROJOULES_PER_JOULE = 1_000_000
#: How long counter and power are compared before the counter is believed, in how many steps, and how far they may
#: differ. A wrong unit is off by far more; a sensor that is refreshed only ten times a second by less.
CHECK_S = 0.5
NUM_CHECKS = 5
AGREEMENT = 0.2
#: For a counter that never moved while its steps were watched.
ASSUMED_TICK_S = 0.1
NOT_SET = "this version observes AMD GPUs and sets nothing on them"

#: Power by what it is called, the best first, with what its readings are; where AMD SMI does not say which it gives,
#: the worse is assumed.
_POWERS: tuple[tuple[str, Method, Callable[[AmdPower], float | None]], ...] = (
    ("AMD SMI current socket power", Method.INTEGRATED, lambda power: power.current_w),
    ("AMD SMI average socket power", Method.INTEGRATED_AVERAGE, lambda power: power.average_w),
    ("AMD SMI socket power", Method.INTEGRATED_AVERAGE, lambda power: power.either_w),
)


class AmdDevice:
    """One AMD GPU, by UUID."""

    def __init__(self, smi: AmdSmi, card: AmdCard, *, clock: Clock, proc: Path = PROC) -> None:
        self._smi = smi
        self._card = card
        self._clock = clock
        self._proc = proc
        self._found: tuple[Sources, CardReads] | None = None
        self._eye: GpuEye | None = None

    @property
    def info(self) -> DeviceInfo:
        """Which card it is, with its PCI id in the details."""
        card = self._card
        return DeviceInfo(
            uuid=card.uuid,
            name=card.name,
            kind=DeviceKind.GPU,
            driver=card.driver,
            details=(("pci_id", card.pci_id), ("vendor", "amd")),
        )

    @property
    def power_source(self) -> PowerSource | None:
        """The energy counter where it agrees with power, else power readings; None without power. Probed once."""
        return self._probed()[0].best

    def capabilities(self) -> Sequence[Capability]:
        """Every way to read energy or power, with what the library answered, and that nothing can be set."""
        knobs = [Capability(name=name, is_available=False, reason=NOT_SET) for name in (SM_CLOCK_CAP, POWER_CAP)]
        return (*self._probed()[0].capabilities, *knobs)

    def settables(self) -> Sequence[Settable]:
        """Nothing."""
        return ()

    def status(self) -> Status:
        """Look once at power, clocks, temperature and power limit; raise DeviceLost when the card is gone."""
        if self._eye is None:
            self._eye = GpuEye(self._probed()[1], clock=self._clock)
        return self._eye.status()

    def meter(self, pids: Sequence[int], *, settings: DeviceSettings = UNSET) -> Meter:
        """Open a meter for the whole card; whoever computes on it besides the engine counts against the reading.

        Which card the engine is on is not looked for. Raises NotSupported when the card offers no power.
        """
        sources, reads = self._probed()
        uuid = self._card.uuid
        if sources.best is None:
            raise NotSupported(f"{self._card.name} ({uuid}): AMD SMI offers no power")
        counter = Counter(read=partial(self._smi.energy_uj, uuid), counts_per_joule=MICROJOULES_PER_JOULE)
        return GpuMeter(
            partial(self._watch, reads, tuple(pids), settings),
            Subject(source=sources.best, device_uuids=(uuid,)),
            clock=self._clock,
            counter=counter if sources.counter else None,
            check=sources.check,
        )

    def _watch(self, reads: CardReads, pids: tuple[int, ...], settings: DeviceSettings) -> GpuWatch:
        here = partial(self._smi.compute_pids, self._card.uuid)
        processes = ProcessWatch(pids, here=here, elsewhere=tuple, proc=self._proc) if pids else None
        return GpuWatch(
            GpuEye(reads, clock=self._clock),
            device_uuid=self._card.uuid,
            settings=settings,
            settable_step=None,
            processes=processes,
        )

    def _probed(self) -> tuple[Sources, CardReads]:
        if self._found is None:
            power, powers = self._power()
            counter, counted = self._counter(power)
            sources = Sources(counter=counter, power=power, capabilities=(counted, *powers))
            self._found = (sources, self._reads(power))
        return self._found

    def _power(self) -> tuple[PowerReader | None, list[Capability]]:
        chosen: PowerReader | None = None
        capabilities = []
        for detail, method, pick in _POWERS:
            source = PowerSource(scope=Scope.GPU, method=method, detail=detail, resolution_s=LOOK_INTERVAL_S)
            reader = PowerReader(source=source, read_w=partial(self._read_w, detail, pick))
            capability = tried(detail, reader.read_w, "reads {:g} W".format, self._clock)
            capabilities.append(capability)
            chosen = chosen or (reader if capability.is_available else None)
        return chosen, capabilities

    def _read_w(self, detail: str, pick: Callable[[AmdPower], float | None]) -> float:
        power_w = pick(self._smi.power(self._card.uuid))
        if power_w is None:
            raise NotSupported(f"{detail}: this card does not tell")
        return power_w

    def _counter(self, power: PowerReader | None) -> tuple[PowerSource | None, Capability]:
        """Return the counter if over CHECK_S it moves as power says it should."""
        read_uj = partial(self._smi.energy_uj, self._card.uuid)
        try:
            tick = measure_tick(read_uj, self._clock)
            if power is None:
                raise NotSupported("there is no power to hold it against")
            counted_w, seen_w = self._compare(read_uj, power.read_w)
        except ProbeError as error:
            return None, Capability(name=COUNTER_DETAIL, is_available=False, reason=str(error))
        seen = f"counts {counted_w:.1f} W where power reads {seen_w:.1f} W"
        if abs(counted_w - seen_w) > AGREEMENT * seen_w:
            reason = f"{seen}; the counter's unit is wrong or it stands still (ROCm before 6.3), so power is integrated"
            return None, Capability(name=COUNTER_DETAIL, is_available=False, reason=reason)
        source = PowerSource(
            scope=Scope.GPU,
            method=Method.COUNTER,
            detail=COUNTER_DETAIL,
            resolution_s=tick.period_s or ASSUMED_TICK_S,
        )
        return source, Capability(name=COUNTER_DETAIL, is_available=True, reason=seen)

    def _compare(self, read_uj: Callable[[], int], read_w: Callable[[], float]) -> tuple[float, float]:
        """Return mean power over CHECK_S by the counter, and by power readings."""
        never = Event()
        before = timed(read_uj, self._clock)
        powers_w = [read_w()]
        for _ in range(NUM_CHECKS):
            self._clock.wait(never, CHECK_S / NUM_CHECKS)
            powers_w.append(read_w())
        after = timed(read_uj, self._clock)
        counted_w = (after.value - before.value) / MICROJOULES_PER_JOULE / (after.time_s - before.time_s)
        return counted_w, fmean(powers_w)

    def _reads(self, power: PowerReader | None) -> CardReads:
        """Return what the card answers now, so that the rest is not asked ten times a second."""
        smi, uuid = self._smi, self._card.uuid

        def kept(read: Callable[[], float | None]) -> bool:
            return tried("", read, str, self._clock).is_available

        clock_mhz, memory_clock_mhz = partial(smi.clock_mhz, uuid), partial(smi.memory_clock_mhz, uuid)
        temperature_c = partial(smi.temperature_c, uuid)
        return CardReads(
            power_w=power.read_w if power else None,
            clock_mhz=clock_mhz if kept(clock_mhz) else None,
            memory_clock_mhz=memory_clock_mhz if kept(memory_clock_mhz) else None,
            temperature_c=temperature_c if kept(temperature_c) else None,
            enforced_limit_w=lambda: smi.power(uuid).limit_w,
        )


def list_amd_gpus(
    clock: Clock, *, smi: AmdSmi | None = None, proc: Path = PROC
) -> tuple[tuple[AmdDevice, ...], Capability]:
    """Return the AMD GPUs in order of PCI id, and what asking for them showed.

    Without the library or the driver there are none and no error; the reason is in the capability.
    """
    smi = smi or AmdSmi()
    try:
        cards, left_out = smi.cards()
    except ProbeError as error:
        return (), Capability(name=AMD_SMI_NAME, is_available=False, reason=str(error))
    reason = "; ".join([f"{len(cards)} GPUs", *left_out])
    devices = tuple(AmdDevice(smi, card, clock=clock, proc=proc) for card in cards)
    return devices, Capability(name=AMD_SMI_NAME, is_available=bool(cards), reason=reason)
