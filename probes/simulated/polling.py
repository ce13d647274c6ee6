"""Reading a simulated sensor over a stretch of virtual time, as a thread reads a real one, and what it comes to.

The rules are those for real sensors. Knows nothing of what is true.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from probes.device import Method, PowerSource
from probes.errors import ProbeError
from probes.metering.counting import Counter, count_energy
from probes.metering.findings import Findings
from probes.metering.integral import integrate_run
from probes.metering.sampler import Failure, Run, Sample
from probes.simulated.clock import VirtualClock
from probes.simulated.options import Sensor
from probes.simulated.sensors import MILLIJOULES_PER_JOULE, Sensors

#: As often as a meter of a real GPU.
POLL_INTERVAL_S = 0.1

T = TypeVar("T")


class Polling(Generic[T]):
    """Reads a sensor over and over: a visitor of the device's clock."""

    def __init__(self, read: Callable[[], T], clock: VirtualClock) -> None:
        self._read = read
        self._clock = clock
        self.start_s = clock.now_s
        self._num_polls = 0
        self._opening = self._closing = self._poll()
        self._polls = [self._opening]

    @property
    def due_s(self) -> float:
        """The next reading."""
        return self.start_s + (self._num_polls + 1) * POLL_INTERVAL_S

    def visit(self, now_s: float) -> None:
        """Read."""
        self._num_polls += 1
        self._polls.append(self._poll())

    def run(self) -> Run[T]:
        """Read a last time, and return all readings."""
        closing = self._poll()
        polls = [*self._polls, closing]
        return Run(
            opening=self._opening,
            closing=closing,
            samples=tuple(poll for poll in polls if isinstance(poll, Sample)),
            failures=tuple(poll for poll in polls if isinstance(poll, Failure)),
            has_died=False,
        )

    def _poll(self) -> Sample[T] | Failure:
        try:
            return Sample(time_s=self._clock.now_s, value=self._read())
        except ProbeError as error:
            return Failure(time_s=self._clock.now_s, kind=error.kind, message=str(error))


class CounterPolling(Polling[int]):
    """Reads the energy counter."""

    def found(self, source: PowerSource) -> Findings:
        """Return the counter's difference until now."""
        return count_energy(self.run(), Counter(read=self._read, counts_per_joule=MILLIJOULES_PER_JOULE), source)


class PowerPolling(Polling[float]):
    """Reads power; `method` says whether a reading is an average over longer than its interval."""

    def __init__(self, read: Callable[[], float], clock: VirtualClock, method: Method) -> None:
        super().__init__(read, clock)
        self._method = method

    def found(self, source: PowerSource) -> Findings:
        """Return the integral of power until now."""
        source = replace(source, method=self._method)
        return integrate_run(self.run(), source, self.start_s, self._clock.now_s)


def polling_of(sensor: Sensor, sensors: Sensors, clock: VirtualClock) -> CounterPolling | PowerPolling:
    """Begin to read a sensor, any but the exact one."""
    if sensor is Sensor.COUNTER:
        return CounterPolling(sensors.counter_mj, clock)
    if sensor is Sensor.INSTANT:
        return PowerPolling(sensors.instant_w, clock, Method.INTEGRATED)
    return PowerPolling(sensors.average_w, clock, Method.INTEGRATED_AVERAGE)
