"""NVIDIA GPUs through NVML: the only `import pynvml` in the project.

A GPU is known by its UUID, never by a handle or an index; what the driver answers becomes a value in watts, a whole
number of millijoules, or a named error. Knows nothing of windows of time. Nothing is ever set.

Meaning of the calls: nvml.h, https://docs.nvidia.com/deploy/nvml-api/.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import RLock
from typing import Any, TypeVar

import pynvml

from probes.errors import NotSupported, ProbeError
from probes.nvml_values import (
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


class Nvml:
    """One process's connection to the driver; opened on first use, and anew in a forked child."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._pid: int | None = None
        self._handles: dict[str, Any] = {}

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
        """Return all GPUs in order of PCI id, which NVML's own order need not be."""
        with self._asking("listing GPUs"):
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            cards = [
                Card(
                    uuid=pynvml.nvmlDeviceGetUUID(handle),
                    name=pynvml.nvmlDeviceGetName(handle),
                    pci_id=normalised_pci_id(pynvml.nvmlDeviceGetPciInfo(handle).busId),
                )
                for handle in handles
            ]
        return tuple(sorted(cards, key=lambda card: card.pci_id))

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
        (entry,) = self._ask(uuid, lambda handle: pynvml.nvmlDeviceGetFieldValues(handle, [(field, scope)]))
        if entry.nvmlReturn != 0:
            raise named_error(entry.nvmlReturn, f"{uuid}: field {field:d}")
        return plausible_w(decoded(entry.valueType, entry.value), uuid, ceiling_w)

    def _ask(self, uuid: str, call: Callable[[Any], T]) -> T:
        with self._asking(uuid):
            if uuid not in self._handles:
                self._handles[uuid] = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            return call(self._handles[uuid])

    @contextmanager
    def _asking(self, subject: str) -> Iterator[None]:
        """Have a connection of this very process; name the driver's errors."""
        refuse_other_package()
        try:
            self._connect()
            yield
        except pynvml.NVMLError as error:
            raise named_error(error.value, subject) from error

    def _connect(self) -> None:
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
