"""A device that answers with what a test wrote down: for what is made of several devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from probes.device import UNSET, Capability, DeviceInfo, DeviceKind, Method, PowerSource, Reading, Scope, Status
from probes.errors import ProbeError
from probes.settings import DeviceSettings, Settable

COUNTER = PowerSource(scope=Scope.GPU, method=Method.COUNTER, detail="counter", resolution_s=0.1)
READING = Reading(
    energy_j=3000.0,
    start_s=1000.0,
    end_s=1010.0,
    scope=Scope.GPU,
    method=Method.COUNTER,
    detail="counter",
    device_uuids=(),
    uncertainty_j=1.0,
)


def make_reading(uuid: str, **changes: Any) -> Reading:
    """A valid reading of one device: 300 W for ten seconds."""
    return replace(READING, device_uuids=(uuid,), **changes)


@dataclass(slots=True)
class FakeMeter:
    """Gives one reading."""

    reading: Reading
    start_error: ProbeError | None = None
    stop_error: ProbeError | None = None
    num_starts: int = 0
    num_closes: int = 0

    def start(self) -> float:
        self.num_starts += 1
        if self.start_error:
            raise self.start_error
        return self.reading.start_s

    def stop(self) -> Reading:
        if self.stop_error:
            raise self.stop_error
        return self.reading

    def close(self) -> None:
        self.num_closes += 1


@dataclass(slots=True, kw_only=True)
class FakeMember:
    """One GPU, by its UUID."""

    uuid: str = "GPU-1"
    name: str = "NVIDIA H100 80GB HBM3"
    kind: DeviceKind = DeviceKind.GPU
    driver: str = "570.86.10"
    details: tuple[tuple[str, str], ...] = ()
    power_source: PowerSource | None = COUNTER
    knobs: tuple[Settable, ...] = ()
    seen: Status = Status(time_s=1000.0)  # noqa: RUF009 -- frozen
    status_error: ProbeError | None = None
    settings: list[DeviceSettings] = field(default_factory=list)
    metered_pids: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def info(self) -> DeviceInfo:
        return DeviceInfo(uuid=self.uuid, name=self.name, kind=self.kind, driver=self.driver, details=self.details)

    def capabilities(self) -> Sequence[Capability]:
        return [Capability(name="counter", is_available=True, reason="rose")]

    def settables(self) -> Sequence[Settable]:
        return self.knobs

    def status(self) -> Status:
        if self.status_error:
            raise self.status_error
        return self.seen

    def meter(self, pids: Sequence[int], *, settings: DeviceSettings = UNSET) -> FakeMeter:
        self.metered_pids.append(tuple(pids))
        self.settings.append(settings)
        return FakeMeter(make_reading(self.uuid))
