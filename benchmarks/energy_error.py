"""Energy error of the GPU meter against the true energy, in percent.

No hardware: the truth is known because the GPU is the tests' fake, behind the unmodified NVML bindings and on a virtual
clock. So this shows what the method costs in accuracy; a real sensor's own gain error, about 5 % between units of one
model, comes on top and is in no figure here.

- tick: windows of 30 s under loads of many shapes; the counter adds up the truth and moves every 100 ms.
- duty: a sensor that looks at 25 of every 100 ms, a load in step with it, and a counter that adds up that sensor. One
  window cannot be right; what counts is the mean over 8, each started after one of the product's start delays. A
  load that starts a few ms later than asked, not always by the same, gets less of the good: that is a figure too.
- naive: the same loads, a single window each, by two readings of the counter taken at once or by the mean of polled
  power times the time.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pytest

from benchmarks.machine import finish
from probes.nvidia.gpu import GpuDevice
from probes.nvidia.nvml import Nvml
from probes.settle import start_delays
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_nvml import FakeGpu, FakeNvml, install
from tests.probes.fake_sensors import (
    ConstantPower,
    Counter,
    HeldMean,
    PowerSignal,
    SquareWave,
    SteppedPower,
    average_sensor,
    duty_sensor,
)

WINDOW_S = 30.0
#: The same, but no multiple of the counter's step: whoever does not wait for a step does not hit one at both ends.
NAIVE_WINDOW_S = 29.95
SENSOR_PERIOD_S = 0.1
#: By how much later than asked a load may start: an engine's first step takes its time, and not always the same.
LONGEST_LATE_S = 0.005
POLL_S = 0.1
CEILING_W = 2_000.0

#: A load's true power, given when it starts.
Load = Callable[[float], PowerSignal]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One window's joules, measured and true."""

    measured_j: float
    true_j: float


def main() -> None:
    """Run all loads and print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--windows", type=int, default=5, help="windows of each tick load, at random starts (default 5)"
    )
    parser.add_argument("--repeats", type=int, default=8, help="repeats of each duty load (default 8)")
    parser.add_argument("--draws", type=int, default=4, help="draws of delays for late loads (default 4)")
    parser.add_argument("--seed", type=int, default=0, help="of the random starts (default 0)")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)

    print(f"energy error in percent of the truth, windows of {WINDOW_S:.0f} s; fake driver on a virtual clock, no GPU")
    print(f"{'load':<32} {'ours':>8} {'counter at once':>16} {'mean of polls':>14}")
    with pytest.MonkeyPatch.context() as patch:
        bench = Bench(patch)
        random_starts = [rng.uniform(0, 1) for _ in range(arguments.windows)]
        tick = [
            _row(bench, f"tick: {name}", load, random_starts, None, worst_error) for name, load in TICK_LOADS.items()
        ]
        draws = [
            start_delays(arguments.repeats, sensor_period_s=SENSOR_PERIOD_S, rng=rng) for _ in range(arguments.draws)
        ]
        duty = [
            _row(bench, f"duty: {name}", load, draws[0], duty_sensor, mean_error) for name, load in DUTY_LOADS.items()
        ]
        late = max(_late_error(bench, load, delays, rng) for load in DUTY_LOADS.values() for delays in draws)
    print(f"duty, loads up to {1000 * LONGEST_LATE_S:.0f} ms late, worst of {len(draws)} draws of delays: {late:.3f}")
    ours = {"error_tick_pct": max(row[0] for row in tick), "error_duty_pct": max(row[0] for row in duty)}
    ours["error_duty_late_pct"] = late
    naive = {"naive_tick_pct": max(max(row[1:]) for row in tick), "naive_duty_pct": max(max(row[1:]) for row in duty)}
    finish("energy_error", {**ours, **naive, "naive_error_pct": max(naive.values())})


class Bench:
    """One fake GPU on a virtual clock, and the product's device for it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._clock = FakeClock()
        self._gpu = FakeGpu(clock=self._clock)
        self._set_up(ConstantPower(level_w=70.0), None)
        install(patch, FakeNvml(self._gpu))
        self._nvml = Nvml()
        self._device = GpuDevice(self._nvml, self._nvml.cards()[0], clock=self._clock)

    def start(self, load: Load, delay_s: float, sensor: Callable[[PowerSignal], PowerSignal] | None) -> PowerSignal:
        """Start a load so long after an instant at which the sensor looks, and return its true power."""
        self._clock.advance(-self._clock.monotonic_s() % 1.0 + delay_s)
        truth = load(self._clock.monotonic_s())
        self._set_up(truth, sensor)
        return truth

    def metered(self, truth: PowerSignal) -> Window:
        """Measure one window by the product's meter; end the benchmark when it is refused."""
        meter = self._device.meter(())
        meter.start()
        self._clock.advance(WINDOW_S)
        reading = meter.stop()
        if reading.energy_j is None or not reading.is_valid:
            raise SystemExit(f"a window was refused: {', '.join(reading.reasons)}")
        return Window(measured_j=reading.energy_j, true_j=truth.energy_j(reading.start_s, reading.end_s))

    def counted(self, truth: PowerSignal) -> Window:
        """Measure one window by two readings of the counter, taken when it begins and ends."""
        start_s, start_mj = self._clock.monotonic_s(), self._nvml.energy_mj(self._gpu.uuid)
        self._clock.advance(NAIVE_WINDOW_S)
        used_mj = self._nvml.energy_mj(self._gpu.uuid) - start_mj
        return Window(measured_j=used_mj / 1000, true_j=truth.energy_j(start_s, self._clock.monotonic_s()))

    def polled(self, truth: PowerSignal) -> Window:
        """Measure one window by the mean of the driver's plain power reading, times its length."""
        start_s, seen_w = self._clock.monotonic_s(), []
        for _ in range(round(WINDOW_S / POLL_S)):
            seen_w.append(self._nvml.power_w(self._gpu.uuid, ceiling_w=CEILING_W))
            self._clock.advance(POLL_S)
        end_s = self._clock.monotonic_s()
        measured_j = sum(seen_w) / len(seen_w) * (end_s - start_s)
        return Window(measured_j=measured_j, true_j=truth.energy_j(start_s, end_s))

    def _set_up(self, truth: PowerSignal, sensor: Callable[[PowerSignal], PowerSignal] | None) -> None:
        """Let the counter add up what a sensor makes of the truth, or the truth itself."""
        counted = sensor(truth) if sensor else truth
        instant = counted if sensor else HeldMean(signal=truth, period_s=SENSOR_PERIOD_S, window_s=SENSOR_PERIOD_S)
        self._gpu.with_sensors(instant=instant, average=average_sensor(counted), counter=Counter(signal=counted))


def worst_error(windows: Sequence[Window]) -> float:
    """Return the largest error of any window, in percent of its truth."""
    return max(100 * abs(window.measured_j / window.true_j - 1) for window in windows)


def mean_error(windows: Sequence[Window]) -> float:
    """Return the error of the windows' mean, in percent of the true one."""
    return 100 * abs(sum(window.measured_j for window in windows) / sum(window.true_j for window in windows) - 1)


def _late_error(bench: Bench, load: Load, delays_s: Sequence[float], rng: random.Random) -> float:
    """Return our error where every repeat starts late by a time of its own."""
    late_s = [delay_s + rng.uniform(0, LONGEST_LATE_S) for delay_s in delays_s]
    return mean_error([bench.metered(bench.start(load, delay_s, duty_sensor)) for delay_s in late_s])


def _row(
    bench: Bench,
    name: str,
    load: Load,
    delays_s: Sequence[float],
    sensor: Callable[[PowerSignal], PowerSignal] | None,
    error: Callable[[Sequence[Window]], float],
) -> tuple[float, float, float]:
    """Measure one load in every way, and print and return the errors: ours, and the naive ones of single windows."""
    ours = error([bench.metered(bench.start(load, delay_s, sensor)) for delay_s in delays_s])
    counted = worst_error([bench.counted(bench.start(load, delay_s, sensor)) for delay_s in delays_s])
    polled = worst_error([bench.polled(bench.start(load, delay_s, sensor)) for delay_s in delays_s])
    print(f"{name:<32} {ours:>8.3f} {counted:>16.3f} {polled:>14.3f}", flush=True)
    return ours, counted, polled


def _constant(start_s: float) -> PowerSignal:
    return ConstantPower(level_w=350.0)


def _square(start_s: float, *, low_w: float, high_w: float, period_s: float, duty: float = 0.5) -> PowerSignal:
    return SquareWave(low_w=low_w, high_w=high_w, period_s=period_s, duty=duty, phase_s=start_s)


def _rising(start_s: float) -> PowerSignal:
    return SteppedPower(steps=tuple((start_s + second, 200.0 + 12.5 * second) for second in range(33)))


def _from_idle(start_s: float) -> PowerSignal:
    return SteppedPower(steps=((start_s - 1.0, 70.0), (start_s + 0.3, 600.0)))


TICK_LOADS: dict[str, Load] = {
    "350 W": _constant,
    "100/700 W, 0.24 s": partial(_square, low_w=100.0, high_w=700.0, period_s=0.24),
    "100/700 W, 3.7 s": partial(_square, low_w=100.0, high_w=700.0, period_s=3.7),
    "150/650 W, 1.3 s, high for 10 %": partial(_square, low_w=150.0, high_w=650.0, period_s=1.3, duty=0.1),
    "200 to 600 W": _rising,
    "70 W, then 600 W": _from_idle,
}
DUTY_LOADS: dict[str, Load] = {
    f"150/650 W, 0.1 s, high for {duty:.0%}": partial(
        _square, low_w=150.0, high_w=650.0, period_s=SENSOR_PERIOD_S, duty=duty
    )
    for duty in (0.15, 0.3, 0.5, 0.8)
}


if __name__ == "__main__":
    main()
