"""An NVIDIA GPU as a device: what it can be asked is found out by asking, not by its architecture.

Knows NVML only through `probes.nvidia.nvml`, and nothing of other vendors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from probes.clock import Clock
from probes.device import UNSET, Capability, DeviceInfo, DeviceKind, Meter, PowerSource, Status
from probes.errors import InvalidSetting, NotSupported, ProbeError
from probes.metering.counting import Counter
from probes.metering.findings import Subject
from probes.metering.gpu_meter import GpuMeter
from probes.metering.gpu_watch import CardReads, GpuEye, GpuWatch, ProcessWatch
from probes.metering.sampler import Rounds
from probes.nvidia.gpu_reads import find_knobs, find_reads
from probes.nvidia.gpu_sources import SourceProbe, Sources
from probes.nvidia.nvml import Card, Nvml
from probes.nvidia.nvml_values import MILLIJOULES_PER_JOULE
from probes.settings import SM_CLOCK_CAP, DeviceSettings, Settable
from probes.validity import Note

T = TypeVar("T")


class GpuDevice:
    """One card, by UUID."""

    def __init__(
        self,
        nvml: Nvml,
        card: Card,
        *,
        clock: Clock,
        cuda_ordinal: int | None = None,
        is_slice: bool = False,
        proc: Path = Path("/proc"),
    ) -> None:
        """Take a card; `is_slice` says that only a MIG slice of it was named. Processes are looked up in `proc`."""
        self._nvml = nvml
        self._card = card
        self._clock = clock
        self._proc = proc
        self._is_mig = is_slice or nvml.is_mig_enabled(card.uuid)
        self._is_virtual = nvml.is_virtual(card.uuid)
        self._rounds: Rounds | None = None
        self._measured_uuids = frozenset({card.uuid})
        self._info = self._describe(cuda_ordinal)
        self._found: tuple[Sources, CardReads, tuple[Capability, ...]] | None = None
        self._knobs: tuple[tuple[Settable, ...], tuple[Capability, ...]] | None = None

    @property
    def info(self) -> DeviceInfo:
        """Which card it is, with PCI id, firmware, power limits and CUDA ordinal in the details."""
        return self._info

    @property
    def power_source(self) -> PowerSource | None:
        """The energy counter, else power readings; None where the card offers neither. Probed once."""
        return self._probed()[0].best

    def beside(self, uuids: Iterable[str], rounds: Rounds | None = None) -> GpuDevice:
        """Return this card as one of those that are measured together: the engine may compute on all of them.

        Those that are given the same `rounds` are looked at in turn by one thread.
        """
        member = copy.copy(self)
        member._rounds = rounds
        member._measured_uuids = self._measured_uuids | frozenset(uuids)
        return member

    def capabilities(self) -> Sequence[Capability]:
        """Every way to read energy or power, what else can be read, and what could be set, as the driver answered."""
        sources, _reads, seen = self._probed()
        return (*sources.capabilities, *seen, *self._settable()[1])

    def settables(self) -> Sequence[Settable]:
        """The SM clock cap and the power cap, where the driver names their values and the whole card is ours."""
        return self._settable()[0]

    def status(self) -> Status:
        """Look once at power, clocks, temperature, limit and clock events; raise DeviceLost when the card is lost."""
        return GpuEye(self._probed()[1], clock=self._clock).status()

    def meter(self, pids: Sequence[int], *, settings: DeviceSettings = UNSET) -> Meter:
        """Open a meter for the whole card; whoever computes on it besides the engine counts against the reading.

        Raises NotSupported when the card offers neither energy nor power.
        """
        sources, _reads, _seen = self._probed()
        if sources.best is None:
            raise NotSupported(f"{self._card.name} ({self._card.uuid}): the driver offers neither energy nor power")
        read_mj = partial(self._nvml.energy_mj, self._card.uuid)
        return GpuMeter(
            partial(self._watch, tuple(pids), settings),
            Subject(source=sources.best, device_uuids=(self._card.uuid,), notes=self._notes()),
            clock=self._clock,
            counter=Counter(read=read_mj, counts_per_joule=MILLIJOULES_PER_JOULE) if sources.counter else None,
            check=sources.check,
            rounds=self._rounds,
        )

    def _watch(self, pids: tuple[int, ...], settings: DeviceSettings) -> GpuWatch:
        return GpuWatch(
            GpuEye(self._probed()[1], clock=self._clock),
            device_uuid=self._card.uuid,
            settings=settings,
            settable_step=self._clock_step_mhz(settings.sm_clock_cap_mhz),
            processes=self._process_watch(pids),
        )

    def _process_watch(self, pids: tuple[int, ...]) -> ProcessWatch | None:
        """On a card that is shared anyway neighbours are no surprise; without an engine nobody can be told from it."""
        if not pids or self._is_mig or self._is_virtual:
            return None
        here = partial(self._nvml.compute_pids, self._card.uuid)
        return ProcessWatch(pids, here=here, elsewhere=self._pids_elsewhere, proc=self._proc)

    def _pids_elsewhere(self) -> set[int]:
        """Return the processes that compute on cards which are not measured with this one."""
        cards, _unanswered = self._nvml.cards_and_failures()
        uuids = {card.uuid for card in cards} - self._measured_uuids
        return {pid for uuid in uuids for pid in _or_none(partial(self._nvml.compute_pids, uuid)) or ()}

    def _clock_step_mhz(self, cap_mhz: int | None) -> int | None:
        caps = [knob for knob in self.settables() if knob.name == SM_CLOCK_CAP]
        if cap_mhz is None or not caps:
            return None
        try:
            return caps[0].step_below(caps[0].snapped(cap_mhz))
        except InvalidSetting:
            return None

    def _notes(self) -> tuple[str, ...]:
        virtual = (Note.VIRTUAL_GPU,) if self._is_virtual else ()
        return (*virtual, *((Note.WHOLE_GPU_SHARED,) if self._is_mig or self._is_virtual else ()))

    def _describe(self, cuda_ordinal: int | None) -> DeviceInfo:
        nvml, uuid = self._nvml, self._card.uuid
        details: dict[str, object] = {
            "pci_id": self._card.pci_id,
            "vbios": _or_none(lambda: nvml.vbios_version(uuid)),
            "power_limit_w": nvml.power_limit_w(uuid),
            "max_power_limit_w": nvml.max_power_limit_w(uuid),
            "is_mig": self._is_mig,
            "cuda_ordinal": cuda_ordinal,
        }
        return DeviceInfo(
            uuid=uuid,
            name=self._card.name,
            kind=DeviceKind.GPU,
            driver=nvml.driver_version(),
            details=tuple((key, str(value)) for key, value in details.items() if value is not None),
        )

    def _probed(self) -> tuple[Sources, CardReads, tuple[Capability, ...]]:
        if self._found is None:
            sources = SourceProbe(self._nvml, self._card, clock=self._clock).sources()
            reads, seen = find_reads(self._nvml, self._card.uuid, sources.power, self._clock)
            self._found = (sources, reads, seen)
        return self._found

    def _settable(self) -> tuple[tuple[Settable, ...], tuple[Capability, ...]]:
        if self._knobs is None:
            self._knobs = find_knobs(self._nvml, self._card.uuid, barred=self._barred())
        return self._knobs

    def _barred(self) -> str | None:
        if self._is_virtual:
            return "a guest's share of a card (vGPU) has no clock or limit of its own"
        if self._is_mig:
            return "the card is cut into MIG slices, and its clock and limit are those of all of them"
        return None


def _or_none(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except ProbeError:
        return None
