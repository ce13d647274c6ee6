"""A device as it was when last seen, and whether anybody sets it. Knows nothing of SQL or drivers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from probes.device import Capability, DeviceInfo


class ControlState(StrEnum):
    """Whether a device's clocks and limits are ours for the moment."""

    OBSERVED = "observed"  # only read, or everything that was set has been put back
    CONTROLLED = "controlled"  # a job is setting its knobs now, or was when its worker died
    RESTORE_FAILED = "restore_failed"  # what was found could not be put back; no job may use it until it is


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenDevice:
    """What is known of one device at the moment of asking."""

    info: DeviceInfo
    capabilities: tuple[Capability, ...]
    first_seen: datetime
    last_seen: datetime
    control_state: ControlState = ControlState.OBSERVED
    #: Who sets it, or what could not be put back, in words; None where there is nothing to say.
    control_detail: str | None = None
