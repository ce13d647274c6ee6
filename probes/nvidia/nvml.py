"""NVIDIA GPUs through NVML: the only `import pynvml` in the project.

A GPU is known by its UUID, never by a handle or an index; what the driver answers becomes a value in watts, a whole
number of millijoules, or a named error. Knows nothing of windows of time. Four methods set something, and only
`probes.control` calls them.

Meaning of the calls: nvml.h, https://docs.nvidia.com/deploy/nvml-api/.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import Structure, byref, c_int32, c_long, c_uint
from dataclasses import dataclass
from threading import RLock
from typing import Any, TypeVar

import pynvml

from probes.errors import NotSupported, ProbeError
from probes.nvidia.nvml_values import (
    MILLIWATTS_PER_WATT,
    NOT_AVAILABLE_U32,
    NOT_AVAILABLE_U64,
    PowerField,
    PowerScope,
    decoded,
    limit_w,
    named_error,
    normalised_pci_id,
    plausible_w,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What identifies a GPU."""

    uuid: str
    name: str
    #: As the kernel writes it: 0000:01:00.0.
    pci_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLimits:
    """A board's power limit and its bounds."""

    #: In whole watts: the bounds for what is set, and the lowest of all limits in force, those out of band included.
    lowest_w: int
    highest_w: int
    enforced_w: int
    #: What the board came with.
    default_mw: int
    #: What was last set, to the milliwatt, so that it can be put back to the milliwatt.
    set_mw: int

    @property
    def set_w(self) -> int:
        """What was last set, in whole watts."""
        return self.set_mw // MILLIWATTS_PER_WATT


class Nvml:
    """One process's connection to the driver; opened on first use, and anew in a forked child."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._pid: int | None = None
        self._handles: dict[str, Any] = {}
        _forget_in_children(self)

    def close(self) -> None:
        """Let go of the driver, so that an administrator can reset the GPU. Idempotent."""
        with self._lock:
            # A child must not shut down what its parent opened.
            if self._pid == os.getpid():
                with suppress(pynvml.NVMLError):
                    pynvml.nvmlShutdown()
            self._pid = None
            self._handles.clear()

    def cards(self) -> tuple[Card, ...]:
        """Return all GPUs in order of PCI id, which NVML's own order need not be; raise when one does not answer."""
        cards, unanswered = self.cards_and_failures()
        if unanswered:
            raise unanswered[0]
        return cards

    def cards_and_failures(self) -> tuple[tuple[Card, ...], tuple[ProbeError, ...]]:
        """Return the GPUs that answer, in order of PCI id, and one error for each that does not."""
        with self._asking("listing GPUs"):
            num_cards = pynvml.nvmlDeviceGetCount()
        cards: list[Card] = []
        failures: list[ProbeError] = []
        for index in range(num_cards):
            try:
                cards.append(self._card(index))
            except ProbeError as error:
                failures.append(error)
        return tuple(sorted(cards, key=lambda card: card.pci_id)), tuple(failures)

    def driver_version(self) -> str:
        """Return the driver's version."""
        with self._asking("the driver's version"):
            return str(pynvml.nvmlSystemGetDriverVersion())

    def vbios_version(self, uuid: str) -> str:
        """Return the version of the board's firmware."""
        return str(self._ask(uuid, pynvml.nvmlDeviceGetVbiosVersion))

    def architecture(self, uuid: str) -> int:
        """Return NVML's number of the architecture: 5 Volta, 7 Ampere, 9 Hopper, 10 Blackwell."""
        return int(self._ask(uuid, pynvml.nvmlDeviceGetArchitecture))

    def is_mig_enabled(self, uuid: str) -> bool:
        """Return whether the card is cut into slices."""
        try:
            current, _pending = self._ask(uuid, pynvml.nvmlDeviceGetMigMode)
        except NotSupported:
            return False
        return bool(current == 1)

    def mig_parent(self, mig_uuid: str) -> str:
        """Return the UUID of the card that a MIG slice belongs to."""
        with self._asking(mig_uuid):
            slice_handle = pynvml.nvmlDeviceGetHandleByUUID(mig_uuid)
            card = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice_handle)
            return str(pynvml.nvmlDeviceGetUUID(card))

    def power_limit_w(self, uuid: str) -> float | None:
        """Return the power limit now enforced; None where the board has none."""
        try:
            return limit_w(self._ask(uuid, pynvml.nvmlDeviceGetEnforcedPowerLimit))
        except ProbeError:
            return None

    def max_power_limit_w(self, uuid: str) -> float | None:
        """Return the highest power limit that could be set; None where the board has none."""
        try:
            _lowest, highest = self._ask(uuid, pynvml.nvmlDeviceGetPowerManagementLimitConstraints)
        except ProbeError:
            return None
        return limit_w(highest)

    def energy_mj(self, uuid: str) -> int:
        """Return millijoules since the driver was loaded: a whole number that passes 2**32 within hours."""
        millijoules = int(self._ask(uuid, pynvml.nvmlDeviceGetTotalEnergyConsumption))
        if millijoules in (0, NOT_AVAILABLE_U64):
            raise NotSupported(f"{uuid}: the energy counter says {millijoules}, which stands for no value")
        return millijoules

    def power_w(self, uuid: str, *, ceiling_w: float) -> float:
        """Return the driver's plain power reading: a mean over the last second on most boards since Ampere."""
        return plausible_w(self._ask(uuid, pynvml.nvmlDeviceGetPowerUsage), uuid, ceiling_w)

    def power_field_w(
        self, uuid: str, field: PowerField, scope: PowerScope = PowerScope.GPU, *, ceiling_w: float
    ) -> float:
        """Return one power field.

        NVML calls a batch of fields a success when any of them was, so each entry's own code is what counts.
        """
        entry = self._ask(uuid, lambda handle: _field_value(handle, field, scope))
        if entry.nvmlReturn != 0:
            raise named_error(entry.nvmlReturn, f"{uuid}: field {field:d}")
        return plausible_w(decoded(entry.valueType, entry.value), uuid, ceiling_w)

    def sm_clock_mhz(self, uuid: str) -> int:
        """Return the present clock of the streaming multiprocessors."""
        return _clock(self._ask(uuid, _sm_clock), uuid)

    def memory_clock_mhz(self, uuid: str) -> int:
        """Return the present clock of the memory."""
        return _clock(self._ask(uuid, _memory_clock), uuid)

    def temperature_c(self, uuid: str) -> int:
        """Return the temperature of the die; by the older call where the driver or the bindings lack the newer one."""
        if hasattr(pynvml, "nvmlDeviceGetTemperatureV"):
            with suppress(NotSupported):
                return int(self._ask(uuid, _temperature))
        return int(self._ask(uuid, _temperature_before_v))

    def event_bits(self, uuid: str) -> int:
        """Return why the clocks are below what they could be, as NVML's bits (see `probes.clock_events`)."""
        return int(self._ask(uuid, pynvml.nvmlDeviceGetCurrentClocksEventReasons))

    def supported_sm_clocks_mhz(self, uuid: str) -> tuple[int, ...]:
        """Return the clocks that a lock may name, ascending: those at the highest memory clock.

        Raises NotSupported where the list is empty.
        """
        memory_clocks = self._ask(uuid, pynvml.nvmlDeviceGetSupportedMemoryClocks)
        # A memory clock of 0 would be answered with "not found", as if there were no such GPU.
        clocks = memory_clocks and self._ask(
            uuid, lambda handle: pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle, max(memory_clocks))
        )
        if not clocks:
            raise NotSupported(f"NVML: {uuid}: the list of supported clocks is empty")
        return tuple(sorted({int(clock) for clock in clocks}))

    def power_limits(self, uuid: str) -> PowerLimits:
        """Return the power limit with its bounds; raise NotSupported where the board has none."""
        lowest, highest = self._ask(uuid, pynvml.nvmlDeviceGetPowerManagementLimitConstraints)
        return PowerLimits(
            lowest_w=-(-_limit(lowest, uuid) // MILLIWATTS_PER_WATT),  # rounded up: a lower one would be refused
            highest_w=_limit(highest, uuid) // MILLIWATTS_PER_WATT,
            enforced_w=_limit(self._ask(uuid, pynvml.nvmlDeviceGetEnforcedPowerLimit), uuid) // MILLIWATTS_PER_WATT,
            default_mw=_limit(self._ask(uuid, pynvml.nvmlDeviceGetPowerManagementDefaultLimit), uuid),
            set_mw=_limit(self._ask(uuid, pynvml.nvmlDeviceGetPowerManagementLimit), uuid),
        )

    def is_persistent(self, uuid: str) -> bool | None:
        """Return whether the driver stays loaded without a client; None where it does not say."""
        try:
            return bool(self._ask(uuid, pynvml.nvmlDeviceGetPersistenceMode) == 1)
        except ProbeError:
            return None

    def is_virtual(self, uuid: str) -> bool:
        """Return whether this is a guest's share of a card (vGPU), whose power is not its own."""
        try:
            return bool(
                self._ask(uuid, pynvml.nvmlDeviceGetVirtualizationMode) == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU
            )
        except ProbeError:
            return False

    def compute_pids(self, uuid: str) -> frozenset[int]:
        """Return the processes that compute on the card, by their ids in the host's namespace."""
        return frozenset(int(row.pid) for row in self._ask(uuid, pynvml.nvmlDeviceGetComputeRunningProcesses))

    def set_sm_clock_range(self, uuid: str, lowest_mhz: int, highest_mhz: int) -> None:
        """Lock the SM clock into a range until it is reset, the driver reloads or the machine restarts; needs root."""
        self._ask(uuid, lambda handle: pynvml.nvmlDeviceSetGpuLockedClocks(handle, lowest_mhz, highest_mhz))

    def reset_sm_clock_range(self, uuid: str) -> None:
        """Undo any lock of the SM clock, whoever set it; needs root."""
        self._ask(uuid, pynvml.nvmlDeviceResetGpuLockedClocks)

    def set_power_limit_mw(self, uuid: str, limit_mw: int) -> None:
        """Set the board's power limit until the driver reloads; needs root.

        By the older call: the newer one returns success on errors too (seen in nvidia-ml-py 13.615.71).
        """
        self._ask(uuid, lambda handle: pynvml.nvmlDeviceSetPowerManagementLimit(handle, limit_mw))

    def _card(self, index: int) -> Card:
        with self._asking(f"GPU {index}"):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            return Card(
                uuid=pynvml.nvmlDeviceGetUUID(handle),
                name=pynvml.nvmlDeviceGetName(handle),
                pci_id=normalised_pci_id(pynvml.nvmlDeviceGetPciInfo(handle).busId),
            )

    def _ask(self, uuid: str, call: Callable[[Any], T]) -> T:
        # Written out instead of `with self._asking(uuid)`: it runs a hundred times a second beside the engine.
        try:
            if self._pid != os.getpid():
                self._connect()
            handle = self._handles.get(uuid)
            if handle is None:
                handle = self._handles[uuid] = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            return call(handle)
        except pynvml.NVMLError as error:
            raise named_error(error.value, uuid) from error

    @contextmanager
    def _asking(self, subject: str) -> Iterator[None]:
        """Have a connection of this very process; name the driver's errors."""
        try:
            self._connect()
            yield
        except pynvml.NVMLError as error:
            raise named_error(error.value, subject) from error

    def _connect(self) -> None:
        refuse_other_package()
        with self._lock:
            if self._pid == os.getpid():
                return
            self._handles.clear()  # NVML's state does not survive a fork
            pynvml.nvmlInit()
            self._pid = os.getpid()


def refuse_other_package() -> None:
    """Raise NotSupported if `import pynvml` found another distribution than nvidia-ml-py."""
    if not hasattr(pynvml, "_nvmlGetFunctionPointer"):
        raise NotSupported(
            "NVML: `import pynvml` found another package than nvidia-ml-py; "
            "run `pip uninstall pynvml` and install nvidia-ml-py again"
        )


def _forget_in_children(nvml: Nvml) -> None:
    """Give a forked child a lock of its own: the parent's may be held by a thread that the child does not have."""
    known = weakref.ref(nvml)

    def renew() -> None:
        survivor = known()
        if survivor is not None:
            survivor._lock = RLock()

    os.register_at_fork(after_in_child=renew)


class _FieldValue(Structure):
    """One nvmlFieldValue_t, laid out as in the bindings, whose own class takes three times as long to fill and read."""

    _fields_ = (
        ("fieldId", c_uint),
        ("scopeId", c_uint),
        ("timestamp", c_long),
        ("latencyUsec", c_long),
        ("valueType", c_uint),
        ("nvmlReturn", c_uint),
        ("value", getattr(pynvml, "c_nvmlValue_t", c_long)),  # another package is refused by name, later
    )


_OneFieldValue = _FieldValue * 1


def _field_value(handle: Any, field: int, scope: int) -> _FieldValue:
    """Ask for one field, as the bindings' nvmlDeviceGetFieldValues does: it is read ten times a second on every GPU."""
    values = _OneFieldValue()
    values[0].fieldId = field
    values[0].scopeId = scope
    ask = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetFieldValues")
    pynvml._nvmlCheckReturn(ask(handle, c_int32(1), byref(values)))
    return values[0]


def _sm_clock(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))


def _memory_clock(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM))


def _temperature(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU))


def _temperature_before_v(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))


def _clock(clock_mhz: int, uuid: str) -> int:
    if clock_mhz in (0, NOT_AVAILABLE_U32):
        raise NotSupported(f"NVML: {uuid}: a clock reads {clock_mhz} MHz, which stands for no value")
    return clock_mhz


def _limit(milliwatts: int, uuid: str) -> int:
    if limit_w(milliwatts) is None:
        raise NotSupported(f"NVML: {uuid}: a power limit reads {milliwatts} mW, which stands for no value")
    return int(milliwatts)
