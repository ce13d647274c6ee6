"""Waiting before a window: start delays, idle power, cool-down, and whether power and temperature have settled.

Knows nothing of engines or loads, and not how far the state of a chip lags behind the temperature it shows.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event

from probes.clock import Clock
from probes.device import Device, Reading, Status
from probes.errors import ProbeError
from probes.metering.sampler import LONGEST_GAP_S, longest_gap_s

#: Starts are spread over a second, many periods of any power sensor (arXiv 2312.02741).
LONGEST_DELAY_S = 1.0
IDLE_S = 30.0
#: How near the start temperature of a block counts as there.
TEMPERATURE_TOLERANCE_C = 2.0
#: Temperatures move slowly, and NVML gives whole degrees.
COOL_DOWN_INTERVAL_S = 1.0
#: What has settled has been so for this long.
STEADY_S = 10.0
#: Highest standard deviation of power as a share of its mean.
STEADY_POWER_CV = 0.03
#: Steepest slope of temperature, either way, over STEADY_S.
STEADY_SLOPE_C = 0.5
#: Half a second gives 20 looks to judge by and costs a device nothing.
LOOK_INTERVAL_S = 0.5


def start_delays(num_repeats: int, *, sensor_period_s: float, rng: random.Random) -> tuple[float, ...]:
    """Return by how many seconds to delay the start of each repeat of one window.

    A sensor that looks for part of its period only (25 of 100 ms on an H100, arXiv 2312.02741) reads a load in step
    with it wrongly, and the same way each time. So the phases of n repeats lie 1/n of a period apart from a common
    random origin, in random order, and whole periods at random come on top. All are in [0, 1) s, or in [0, period)
    for a sensor slower than that. Phases spread evenly if the undelayed starts share a phase; else they are random.
    Raises ValueError unless num_repeats is at least 1 and sensor_period_s positive and finite.
    """
    if num_repeats < 1:
        raise ValueError(f"num_repeats is {num_repeats}; give 1 or more")
    if not 0 < sensor_period_s < math.inf:
        raise ValueError(f"sensor_period_s is {sensor_period_s}; give a positive time")
    origin = rng.random()
    delays = [
        (rng.randrange(max(1, int(LONGEST_DELAY_S / sensor_period_s))) + (i + origin) / num_repeats) * sensor_period_s
        for i in range(num_repeats)
    ]
    rng.shuffle(delays)
    below_s = math.nextafter(max(LONGEST_DELAY_S, sensor_period_s), 0.0)  # rounding may have reached the end itself
    return tuple(min(delay_s, below_s) for delay_s in delays)


def idle_power(device: Device, clock: Clock, seconds: float = IDLE_S, *, pids: Sequence[int] = ()) -> Reading:
    """Measure the device for `seconds` in which nobody asks anything of it.

    `pids` are processes that may be on it, as an engine with its model loaded. The figure stands beside others and is
    never subtracted from them. Raises NotSupported where the device has no source of power.
    """
    meter = device.meter(pids)
    try:
        meter.start()
        clock.wait(Event(), seconds)
        return meter.stop()
    finally:
        meter.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class CoolDown:
    """How a wait for a temperature ended."""

    waited_s: float
    #: Whether the temperature was within its tolerance at the end.
    has_reached: bool
    #: The last that could be read; None where none could.
    temperature_c: float | None


def cool_down(
    status: Callable[[], Status],
    *,
    target_c: float | None,
    tolerance_c: float = TEMPERATURE_TOLERANCE_C,
    longest_s: float,
    shortest_s: float,
    clock: Clock,
    should_stop: Callable[[], bool] = lambda: False,
) -> CoolDown:
    """Wait until the device is within `tolerance_c` of `target_c`, at most `longest_s`.

    Where there is no target, or no temperature can be read, wait `shortest_s`. A device colder than that is not waited
    for: idling makes none warmer. `should_stop` is asked once a second and ends the wait.
    """
    begun_s = clock.monotonic_s()
    last_c: float | None = None
    while True:
        now_c = _temperature_c(status)
        last_c = last_c if now_c is None else now_c
        above_c = math.inf if now_c is None or target_c is None else now_c - target_c
        waited_s = clock.monotonic_s() - begun_s
        left_s = (shortest_s if last_c is None or target_c is None else longest_s) - waited_s
        if above_c <= tolerance_c or left_s <= 0 or should_stop():
            return CoolDown(waited_s=waited_s, has_reached=abs(above_c) <= tolerance_c, temperature_c=last_c)
        clock.wait(Event(), min(left_s, COOL_DOWN_INTERVAL_S))


def _temperature_c(status: Callable[[], Status]) -> float | None:
    try:
        return status().temperature_c
    except ProbeError:  # whether the device is lost is for the window to find out
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """What a device did over the last STEADY_S; a figure is None where the device does not say."""

    #: Whether the looks reach back so far without a gap; without that nothing has settled.
    is_covered: bool
    #: Standard deviation of power over its mean.
    power_cv: float | None = None
    #: Least-squares slope in degrees C per STEADY_S.
    temperature_slope_c: float | None = None

    @classmethod
    def of(cls, looks: Sequence[Status]) -> SteadyState:
        """Judge looks in order of time by those of the last STEADY_S before the newest.

        A figure that the device never gave is not held against it; one that it gave must cover the whole stretch.
        In whole degrees one step amid the stretch is a slope of 1.5 degrees: it has to be STEADY_S old, or nearly.
        """
        end_s = looks[-1].time_s if looks else math.inf
        power = [(look.time_s, look.power_w) for look in looks if look.power_w is not None]
        temperature = [(look.time_s, look.temperature_c) for look in looks if look.temperature_c is not None]
        given = [[time_s for time_s, _ in series] for series in (power, temperature) if series]
        if not all(_covers(times_s, end_s) for times_s in ([look.time_s for look in looks], *given)):
            return cls(is_covered=False)
        since_s = end_s - STEADY_S
        return cls(
            is_covered=True,
            power_cv=_variation([power_w for time_s, power_w in power if time_s >= since_s]),
            temperature_slope_c=_slope([pair for pair in temperature if pair[0] >= since_s]),
        )

    @property
    def is_power_steady(self) -> bool:
        """Whether power varied by no more than STEADY_POWER_CV."""
        return self.is_covered and (self.power_cv is None or self.power_cv <= STEADY_POWER_CV)

    @property
    def is_temperature_steady(self) -> bool:
        """Whether temperature moved by no more than STEADY_SLOPE_C over STEADY_S."""
        slope_c = self.temperature_slope_c
        return self.is_covered and (slope_c is None or abs(slope_c) <= STEADY_SLOPE_C)

    @property
    def is_steady(self) -> bool:
        """Whether both have settled."""
        return self.is_power_steady and self.is_temperature_steady


class Settling:
    """Looks at a device as often as needed while a load warms it up, and says when it has settled."""

    def __init__(self, status: Callable[[], Status], clock: Clock) -> None:
        self._status = status
        self._clock = clock
        self._asked_s = -math.inf
        self._looks: deque[Status] = deque()
        self._state = SteadyState.of(())

    def state(self) -> SteadyState:
        """Look and judge, unless that was done within LOOK_INTERVAL_S; a look that fails leaves a gap."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._asked_s + LOOK_INTERVAL_S:
            self._asked_s = now_s
            self._look()
        return self._state

    def is_settled(self) -> bool:
        """Tell whether power and temperature have been steady for STEADY_S; cheap enough for every step of a load."""
        return self.state().is_steady

    def _look(self) -> None:
        try:
            self._looks.append(self._status())
        except ProbeError:  # whether the device is lost is for the window to find out
            return
        while self._looks[0].time_s < self._looks[-1].time_s - STEADY_S - LONGEST_GAP_S:
            self._looks.popleft()
        self._state = SteadyState.of(self._looks)  # 100 us: too long for every step, and only a look changes it


def _covers(times_s: Sequence[float], end_s: float) -> bool:
    """Return whether times reach from STEADY_S before the end up to it without a gap."""
    since_s = end_s - STEADY_S
    if not times_s or times_s[0] > since_s:
        return False
    recent_s = [time_s for time_s in times_s if time_s >= since_s]
    return longest_gap_s([since_s, *recent_s, end_s]) <= LONGEST_GAP_S


def _variation(powers_w: Sequence[float]) -> float | None:
    """Return the coefficient of variation; infinite without power, which no load draws."""
    if not powers_w:
        return None
    mean_w = statistics.fmean(powers_w)
    return statistics.stdev(powers_w) / mean_w if mean_w > 0 else math.inf


def _slope(series: Sequence[tuple[float, float]]) -> float | None:
    if not series:
        return None
    times_s, temperatures_c = zip(*series, strict=True)
    return STEADY_S * statistics.linear_regression(times_s, temperatures_c).slope
