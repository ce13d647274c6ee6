"""How many seconds of a simulated server pass in a second of computing: one window, metered and summarised, one core.

Llama 3.1 8B in bf16 on a simulated H100, prompts and outputs of 128 to 512 tokens. Each run opens device and engine,
warms up, measures a window of 60 s as a trial of a job does, and summarises its records; the figure is the virtual time
of warm-up and window over the time that all of it took. Wall time is what a user waits for; CPU time is what remains of
it when nobody else uses the core. Knows nothing of whether the figures of the window are right: see
`simulation_fidelity.py`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.machine import ForeignLoad, finish
from engine.load import Progress
from engine.settings import EngineSettings
from engine.simulated.engine import SimulatedEngine
from engine.simulated.shapes import load_shape
from probes.simulated.names import open_simulated
from tuner.measurement import Measurement, summarise
from tuner.request import WindowRule, WorkloadSpec
from tuner.window import SteadyWindow
from tuner.workload import max_context, num_offered, simulated_load

MODEL = "llama-3.1-8b"
DEVICE = "simulated:h100-sxm"
LENGTHS = (128, 512)
PREFILL_CHUNK = 2048
RULE = WindowRule(window_s=60.0, max_window_s=60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A load: as many requests in flight as run at once, or arrivals at random."""

    name: str
    max_batch: int
    rate_per_s: float | None = None

    @property
    def workload(self) -> WorkloadSpec:
        """The requests."""
        if self.rate_per_s is None:
            return WorkloadSpec(prompt_tokens=LENGTHS, output_tokens=LENGTHS)
        return WorkloadSpec(scenario="server", prompt_tokens=LENGTHS, output_tokens=LENGTHS, rate_per_s=self.rate_per_s)


#: The batch that the target is set for comes first.
CASES = (
    Case(name="256", max_batch=256),
    Case(name="1", max_batch=1),
    Case(name="32", max_batch=32),
    Case(name="1024", max_batch=1024),
    Case(name="poisson", max_batch=256, rate_per_s=20.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One window and what it took."""

    virtual_s: float
    wall_s: float
    cpu_s: float
    #: Of `wall_s`, that of turning records into a measurement.
    summary_s: float
    num_steps: int
    #: Calls of the engine's `advance`: stretches of equal steps are one.
    num_advances: int
    measurement: Measurement


def main() -> None:
    """Run all cases and print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5, help="runs of each case, of which the median is told")
    parser.add_argument("--case", choices=[case.name for case in CASES], action="append", help="only these")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    print(f"{MODEL} bf16 on {DEVICE}, window of {RULE.window_s:g} s, one core, median of {arguments.repeats}")
    print(
        f"{'load':<10} {'virtual s':>9} {'wall ms':>8} {'CPU ms':>7} {'summary ms':>10} {'steps':>7} {'advances':>8} "
        f"{'us/step':>7} {'tok/s':>7} {'x real time':>11} {'by CPU':>7}"
    )
    foreign = ForeignLoad()
    figures: dict[str, float] = {}
    for case in CASES:
        if arguments.case and case.name not in arguments.case:
            continue
        runs = [run(case) for _ in range(arguments.repeats)]
        by_wall, by_cpu = _median_factors(runs)
        _print_row(case, runs, by_wall, by_cpu)
        suffix = "" if case is CASES[0] else f"_{case.name}"
        figures |= {f"realtime_factor{suffix}": by_wall, f"realtime_factor_cpu{suffix}": by_cpu}
    cores = foreign.cores()
    print(f"cores in use by others meanwhile: {cores:.2f}")
    finish("simulation_speed", {**figures, "foreign_cores": cores})


def run(case: Case) -> Run:
    """Open device and engine, measure one window and summarise it; end the benchmark when the window is not valid."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    device = open_simulated(DEVICE, seed=0)
    settings = EngineSettings(
        model=MODEL,
        device=device.info.uuid,
        precision="bf16",
        max_batch=case.max_batch,
        prefill_chunk=PREFILL_CHUNK,
        max_context=max_context(case.workload),
    )
    engine = SimulatedEngine(settings, load_shape(MODEL), device)
    meter = device.meter(())
    window = SteadyWindow(RULE, meter, offered=num_offered(case.workload, case.max_batch), max_batch=case.max_batch)
    counted = _Counted(window)
    begun_s = device.clock.monotonic_s()
    records = engine.run(simulated_load(case.workload, capacity=case.max_batch), counted.observe)
    if window.reading is None:
        raise SystemExit(f"{case.name}: the load ended before the window did")
    summary_begun_s = time.perf_counter()
    measurement = summarise(
        records,
        window.reading,
        engine=engine.info,
        warmup_s=window.warmup_s,
        mean_running=window.mean_running,
        prompt_tokens=window.prompt_tokens,
    )
    ended_s = time.perf_counter()
    meter.close()
    if not measurement.is_valid or window.is_unsteady:
        raise SystemExit(f"{case.name}: the window is not valid: {', '.join(measurement.reasons) or 'not steady'}")
    return Run(
        virtual_s=device.clock.monotonic_s() - begun_s,
        wall_s=ended_s - wall_s,
        cpu_s=time.process_time() - cpu_s,
        summary_s=ended_s - summary_begun_s,
        num_steps=counted.num_steps,
        num_advances=counted.num_advances,
        measurement=measurement,
    )


class _Counted:
    """A window's observer that counts what it is told."""

    def __init__(self, window: SteadyWindow) -> None:
        self._window = window
        self.num_steps = self.num_advances = 0

    def observe(self, progress: Progress) -> bool:
        self.num_steps += progress.num_steps
        self.num_advances += 1
        return self._window.observe(progress)


def _median_factors(runs: Sequence[Run]) -> tuple[float, float]:
    return (
        statistics.median(one.virtual_s / one.wall_s for one in runs),
        statistics.median(one.virtual_s / one.cpu_s for one in runs),
    )


def _print_row(case: Case, runs: Sequence[Run], by_wall: float, by_cpu: float) -> None:
    middle = sorted(runs, key=lambda one: one.wall_s)[len(runs) // 2]
    print(
        f"{case.name:<10} {middle.virtual_s:>9.1f} {1e3 * middle.wall_s:>8.0f} {1e3 * middle.cpu_s:>7.0f} "
        f"{1e3 * middle.summary_s:>10.0f} {middle.num_steps:>7} {middle.num_advances:>8} "
        f"{1e6 * (middle.cpu_s - middle.summary_s) / middle.num_steps:>7.1f} "
        f"{middle.measurement.output_tok_s.value:>7.0f} {by_wall:>11.0f} {by_cpu:>7.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
