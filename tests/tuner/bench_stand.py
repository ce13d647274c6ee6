"""A bench on a scripted engine and device, and points to measure on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from probes.settings import CPU_CLOCK_CAP
from tests.probes.fake_clock import FakeClock
from tests.tuner.factories import make_request
from tests.tuner.scripted import Launcher, MemoryStore, ScriptedControl, ScriptedDevice, ScriptedEngine
from tuner.bench import Bench, Outcome
from tuner.measurement import Measurement
from tuner.point import OperatingPoint
from tuner.rig import DeviceRig
from tuner.trial import TrialState

Change = Callable[[ScriptedEngine], ScriptedEngine]


def make_point(max_batch: int = 4, precision: str = "fp32", prefill_chunk: int = 256) -> OperatingPoint:
    return OperatingPoint.of({"max_batch": max_batch, "precision": precision, "prefill_chunk": prefill_chunk})


def with_(**changes: Any) -> Change:
    return lambda made: replace(made, **changes)


def told(outcome: Outcome) -> tuple[TrialState, str | None, str | None, Measurement | None]:
    return outcome.state, outcome.reason, outcome.detail, outcome.measurement


class Rig:
    """A bench on a scripted engine and device."""

    def __init__(
        self,
        device: ScriptedDevice | None = None,
        *,
        control: ScriptedControl | None = None,
        qualities: MemoryStore | None = None,
        **changes: Any,
    ) -> None:
        self.launcher = Launcher()
        self.device = device or ScriptedDevice()
        self.device.clock = self.launcher.clock
        rig = DeviceRig(self.device, control=control, clock=FakeClock())
        self.bench = Bench(make_request(**changes), self.device, self.launcher, rig=rig, qualities=qualities)

    def measure(self, **knobs: Any) -> Outcome:
        return self.bench.measure(make_point(**knobs))

    def measure_capped(self, cap_mhz: int = 990) -> Outcome:
        """Measure a point with a CPU clock cap, which a scripted device takes at its word."""
        return self.bench.measure(OperatingPoint.of({**make_point().as_dict(), CPU_CLOCK_CAP: cap_mhz}))

    @property
    def journal(self) -> list[str]:
        """What the engines did, without the many pieces of one score."""
        steps = self.launcher.journal
        return [step for i, step in enumerate(steps) if i == 0 or step != steps[i - 1]]
