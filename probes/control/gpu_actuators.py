"""A GPU's clock cap and power cap, through NVML.

NVML has no getter for locked clocks: what was locked before can only be declared by the operator, and whether a lock
holds is seen by behaviour (`probes.control.attain`). There is no memory clock here: on Hopper the call is not taken at
run time, and a change would need a GPU reset. Meaning of the calls: nvml.h, https://docs.nvidia.com/deploy/nvml-api/.
"""

from __future__ import annotations

import structlog

from probes.control.actuator import Found
from probes.errors import ImplausibleReading, NotSupported
from probes.nvidia.nvml import Nvml
from probes.nvidia.nvml_values import MILLIWATTS_PER_WATT
from probes.settings import POWER_CAP, SM_CLOCK_CAP, Settable
from probes.validity import Reason

CAP = "cap_mhz"
LIMIT = "limit_mw"

log = structlog.get_logger()


class SmClockCap:
    """The highest clock of one GPU's streaming multiprocessors, by a lock from the lowest clock up to it."""

    knob = SM_CLOCK_CAP

    def __init__(self, nvml: Nvml, uuid: str, prior_cap_mhz: int | None) -> None:
        self._nvml = nvml
        self._uuid = uuid
        self._prior_cap_mhz = prior_cap_mhz

    @property
    def device_uuid(self) -> str:
        """Whose clock it is."""
        return self._uuid

    def settable(self) -> Settable:
        """Return the clocks that a lock may name. Raises NotSupported: no clocks, MIG, or a guest's share."""
        refuse_shared(self._nvml, self._uuid)
        return self._clocks()

    def look(self) -> Found:
        """Return the cap that the operator declared, or nothing; the driver itself does not tell.

        Raises InvalidSetting when the declared cap is below all clocks of the GPU.
        """
        clocks = self.settable()
        return {} if self._prior_cap_mhz is None else {CAP: clocks.snapped(self._prior_cap_mhz)}

    def value_of(self, found: Found) -> int | None:
        """Return the declared cap."""
        return found.get(CAP)

    def set(self, value: int) -> None:
        """Lock the clock between the lowest supported one and `value`; needs root."""
        self._lock(self.settable(), value)

    def deviation(self, value: int) -> str | None:
        """Return None always: there is nothing to read back."""
        return None

    def put_back(self, found: Found) -> None:
        """Lock the declared cap again, or undo the lock where none was declared."""
        cap_mhz = found.get(CAP)
        if cap_mhz is not None:
            self._lock(self._clocks(), cap_mhz)
            return
        log.info(
            "clock_lock_reset",
            device=self._uuid,
            reason="no earlier cap was declared, and the driver cannot tell whether there was one",
        )
        self.reset()

    def reset(self) -> None:
        """Undo any lock."""
        self._nvml.reset_sm_clock_range(self._uuid)

    def _clocks(self) -> Settable:
        return Settable(name=self.knob, values=self._nvml.supported_sm_clocks_mhz(self._uuid))

    def _lock(self, clocks: Settable, cap_mhz: int) -> None:
        self._nvml.set_sm_clock_range(self._uuid, clocks.lowest, cap_mhz)


class PowerCap:
    """One board's power limit: set in whole watts, put back to the milliwatt."""

    knob = POWER_CAP

    def __init__(self, nvml: Nvml, uuid: str) -> None:
        self._nvml = nvml
        self._uuid = uuid

    @property
    def device_uuid(self) -> str:
        """Whose limit it is."""
        return self._uuid

    def settable(self) -> Settable:
        """Return the lowest and highest limit. Raises NotSupported: no limit, MIG, or a guest's share."""
        refuse_shared(self._nvml, self._uuid)
        limits = self._nvml.power_limits(self._uuid)
        return Settable(name=self.knob, values=(limits.lowest_w, limits.highest_w), is_range=True)

    def look(self) -> Found:
        """Return the limit that was last set, by whomever."""
        refuse_shared(self._nvml, self._uuid)
        return {LIMIT: self._nvml.power_limits(self._uuid).set_mw}

    def value_of(self, found: Found) -> int | None:
        """Return the limit in whole watts."""
        return found[LIMIT] // MILLIWATTS_PER_WATT if LIMIT in found else None

    def set(self, value: int) -> None:
        """Set the limit; needs root."""
        refuse_shared(self._nvml, self._uuid)
        self._nvml.set_power_limit_mw(self._uuid, value * MILLIWATTS_PER_WATT)

    def deviation(self, value: int) -> str | None:
        """Return why the limit is not in force: another one is set, or a lower one is enforced."""
        limits = self._nvml.power_limits(self._uuid)
        if limits.set_w != value:
            return f"{Reason.EXTERNAL_CHANGE}: the power limit reads {limits.set_w} W instead of {value} W"
        if limits.enforced_w < value:
            return f"{Reason.LIMIT_OVERRIDDEN}: a limit of {limits.enforced_w} W is enforced instead of {value} W"
        return None

    def put_back(self, found: Found) -> None:
        """Set the limit that was found, and read it back; the default where none was noted.

        Raises ImplausibleReading when it reads otherwise then. What others enforce besides is not ours to undo.
        """
        limit_mw = found.get(LIMIT)
        if limit_mw is None:
            self.reset()
        else:
            self._set_verified(limit_mw)

    def reset(self) -> None:
        """Set the limit that the board came with, and read it back."""
        self._set_verified(self._nvml.power_limits(self._uuid).default_mw)

    def _set_verified(self, limit_mw: int) -> None:
        self._nvml.set_power_limit_mw(self._uuid, limit_mw)
        set_mw = self._nvml.power_limits(self._uuid).set_mw
        if set_mw != limit_mw:
            raise ImplausibleReading(f"{self._uuid}: the power limit was set to {limit_mw} mW and reads {set_mw} mW")


def refuse_shared(nvml: Nvml, uuid: str) -> None:
    """Raise NotSupported where a setting would reach others: a card cut into MIG slices, or a guest's share of one."""
    if nvml.is_mig_enabled(uuid):
        raise NotSupported(f"{uuid}: MIG is on, and clocks and power are those of all slices; turn MIG off to set them")
    if nvml.is_virtual(uuid):
        raise NotSupported(f"{uuid}: a guest's share of a card (vGPU): its clocks and power belong to the host")
