"""True power over time, and what a board's sensors and counter make of it.

Everything here is a `PowerSignal`: a power at an instant and the exact energy of a stretch. A curve is the truth; a
`HeldMean` is a sensor that looks at a curve from time to time; a `Counter` adds up either in steps. Knows nothing of
NVML. What real sensors do is in Yang et al., https://arxiv.org/abs/2312.02741.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Lock
from typing import Protocol

MILLIJOULES_PER_JOULE = 1000
MILLIWATTS_PER_WATT = 1000
#: Keeps an instant on a step from falling before it by rounding.
STEP_ROUNDING = 1e-6


class PowerSignal(Protocol):
    """A power that is known at every instant."""

    def power_w(self, time_s: float) -> float:
        """Return the power at an instant."""

    def energy_j(self, start_s: float, end_s: float) -> float:
        """Return the integral of the power from start to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantPower:
    """One level for ever."""

    level_w: float

    def power_w(self, time_s: float) -> float:
        return self.level_w

    def energy_j(self, start_s: float, end_s: float) -> float:
        return self.level_w * (end_s - start_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareWave:
    """High for the first `duty` of each period, then low; a period begins at `phase_s`."""

    low_w: float
    high_w: float
    period_s: float
    #: Share of a period, 0 to 1.
    duty: float = 0.5
    phase_s: float = 0.0

    def power_w(self, time_s: float) -> float:
        into_period = (time_s - self.phase_s) / self.period_s % 1.0
        return self.high_w if into_period < self.duty else self.low_w

    def energy_j(self, start_s: float, end_s: float) -> float:
        return self._energy_since_phase_j(end_s) - self._energy_since_phase_j(start_s)

    def _energy_since_phase_j(self, time_s: float) -> float:
        periods = (time_s - self.phase_s) / self.period_s
        whole = math.floor(periods)
        high_periods = whole * self.duty + min(periods - whole, self.duty)
        return self.period_s * (self.low_w * periods + (self.high_w - self.low_w) * high_periods)


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedPower:
    """Levels that each hold from their instant on; the first one before it too."""

    #: (from when, level), ascending in time.
    steps: tuple[tuple[float, float], ...]

    def power_w(self, time_s: float) -> float:
        return [self.steps[0][1], *(level_w for from_s, level_w in self.steps if from_s <= time_s)][-1]

    def energy_j(self, start_s: float, end_s: float) -> float:
        inner = [from_s for from_s, _level_w in self.steps if start_s < from_s < end_s]
        return sum(self.power_w(left) * (right - left) for left, right in pairwise([start_s, *inner, end_s]))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMean:
    """A sensor: every `period_s` it shows the mean of the last `window_s`, and holds it until the next time."""

    signal: PowerSignal
    period_s: float = 0.1
    window_s: float
    #: One of the instants at which it is refreshed.
    phase_s: float = 0.0

    def power_w(self, time_s: float) -> float:
        return self._shown_w(self._step(time_s))

    def energy_j(self, start_s: float, end_s: float) -> float:
        """Return the integral of what is shown, as hardware that adds up its sensor would have it."""
        first, last = self._step(start_s), self._step(end_s)
        edges = [start_s, *(self._instant_s(step) for step in range(first + 1, last + 1)), end_s]
        return sum(
            self._shown_w(step) * (right - left)
            for step, (left, right) in zip(range(first, last + 1), pairwise(edges), strict=True)
        )

    def _step(self, time_s: float) -> int:
        return math.floor((time_s - self.phase_s) / self.period_s + STEP_ROUNDING)

    def _instant_s(self, step: int) -> float:
        return self.phase_s + step * self.period_s

    def _shown_w(self, step: int) -> float:
        end_s = self._instant_s(step)
        return self.signal.energy_j(end_s - self.window_s, end_s) / self.window_s


def duty_sensor(signal: PowerSignal, *, phase_s: float = 0.0) -> HeldMean:
    """Return the instantaneous sensor of Hopper and GA100: every 100 ms it looks at 25 ms."""
    return HeldMean(signal=signal, window_s=0.025, phase_s=phase_s)


def average_sensor(signal: PowerSignal, *, phase_s: float = 0.0) -> HeldMean:
    """Return the averaging sensor of most boards since Ampere: the trailing second, every 100 ms."""
    return HeldMean(signal=signal, window_s=1.0, phase_s=phase_s)


@dataclass(slots=True, kw_only=True)
class Counter:
    """An energy counter that moves every `tick_s`; call it with the present time, which must not go back."""

    #: The truth, or the sensor whose readings the hardware adds up.
    signal: PowerSignal
    tick_s: float = 0.1
    base_mj: int = 5_000_000
    #: What has been counted up to which tick; None before the first look, which is where counting begins.
    _until_s: float | None = None
    _counted_j: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    def __call__(self, time_s: float) -> int:
        """Return the millijoules shown at an instant."""
        with self._lock:
            tick_s = math.floor(time_s / self.tick_s + STEP_ROUNDING) * self.tick_s
            if self._until_s is None:
                self._until_s = tick_s
            if tick_s > self._until_s:
                self._counted_j += self.signal.energy_j(self._until_s, tick_s)
                self._until_s = tick_s
            return self.base_mj + round(self._counted_j * MILLIJOULES_PER_JOULE)

    def reset(self) -> None:
        """Begin anew at nothing, as after a reload of the driver."""
        with self._lock:
            self.base_mj, self._counted_j = 0, 0.0
