"""What each part of the search is worth: Wattfront with one of them switched off, on landscapes that are known.

The whole search proposes blocks of points inside one launch, has a physical model, leaves out what cannot matter, and
ends windows early whose limits are missed. Told is the device time to 95 and 99 % of the true hypervolume without each,
as a multiple of the whole search's, geometric mean over landscapes; a search that did not get there counts with what it
used, so that its multiple is a lower bound.

Repeats do not make a search faster: they cost time, and buy figures that are true. So they are shown under noise: how
far the best points' figures are above the truth, and how much of the true hypervolume they really have, with and
without them. SIMULATED throughout.

    python -m benchmarks.search_ablation --seeds 3
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime

import numpy as np
import structlog

from benchmarks import truth_sets
from benchmarks.machine import finish
from benchmarks.replay import landscape
from tuner.pareto import front_of, hypervolume, points_of
from tuner.planner import Options
from tuner.request import RepeatRule

WHOLE = "whole"
#: What is switched off, and whether windows end early.
VARIANTS: dict[str, tuple[Options, bool]] = {
    WHOLE: (Options(), True),
    "no blocks": (Options(has_blocks=False), True),
    "no physics": (Options(has_physics=False), True),
    "no pruning": (Options(has_pruning=False), True),
    "no early stopping": (Options(), False),
}
SHARES = (0.95, 0.99)
MAX_DEVICE_S = 6_000.0
MAX_TRIALS = 100
#: For the repeats: standard deviation of every figure, trials of the screening, windows of each finalist.
NOISE = 0.03
SCREENED = 40
WINDOWS = 3


def main() -> int:
    """Run the searches, print both tables, end with the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = [one.name for one in truth_sets.landscapes()]
    parser.add_argument("--seeds", type=int, default=3, help="searches of each kind on each landscape (default 3)")
    parser.add_argument("--landscape", choices=names, action="append", help="only this one; may be repeated")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: cores)")
    arguments = parser.parse_args()
    chosen = arguments.landscape or names
    with ProcessPoolExecutor(arguments.workers) as pool:
        figures = parts(pool, chosen, arguments.seeds) | repeats(pool, chosen, arguments.seeds)
    finish("search_ablation", figures)
    return 0


def parts(pool: ProcessPoolExecutor, names: Sequence[str], num_seeds: int) -> dict[str, float]:
    """Print device-seconds by landscape and variant; return each variant's multiples of the whole search."""
    tasks = {
        (name, variant): [pool.submit(seconds_to, name, variant, seed) for seed in range(num_seeds)]
        for name in names
        for variant in VARIANTS
    }
    print(f"Median device-seconds to 95 % and 99 % of the true hypervolume, {num_seeds} seeds; > where not reached\n")
    print(f"{'landscape':20} " + " ".join(f"{variant:>20}" for variant in VARIANTS))
    medians: dict[str, list[tuple[float, float]]] = {variant: [] for variant in VARIANTS}
    for name in names:
        cells = []
        for variant in VARIANTS:
            runs = [task.result() for task in tasks[name, variant]]
            middle = tuple(float(np.median([run[i][0] for run in runs])) for i in range(len(SHARES)))
            missed = tuple(2 * sum(not run[i][1] for run in runs) >= len(runs) for i in range(len(SHARES)))
            medians[variant].append((middle[0], middle[1]))
            cells.append(" / ".join(f"{'>' if m else ''}{s:,.0f}" for s, m in zip(middle, missed, strict=True)))
        print(f"{name:20} " + " ".join(f"{cell:>20}" for cell in cells), flush=True)
    whole = np.log(np.array(medians[WHOLE]))
    found = {}
    for variant, values in medians.items():
        if variant != WHOLE:
            for i, share in enumerate(SHARES):
                multiple = math.exp(float(np.mean(np.log(np.array(values))[:, i] - whole[:, i])))
                found[f"{variant.replace(' ', '_')}_{share:.0%}".rstrip("%")] = round(multiple, 3)
    print("\nMultiples of the whole search's time, geometric mean over landscapes:")
    for figure, multiple in found.items():
        print(f"  {figure:24} {multiple:.2f}")
    return found


def seconds_to(name: str, variant: str, seed: int) -> list[tuple[float, bool]]:
    """Return device-seconds to each of SHARES, or those used, and whether it got there."""
    _quiet()
    played = landscape(name)
    options, stops_early = VARIANTS[variant]
    request = played.job(sampler="wattfront", seed=seed, num_trials=MAX_TRIALS)
    reached: dict[float, float] = {}
    device_s = 0.0
    for step in played.run(request, options=options, stops_early=stops_early, max_device_s=MAX_DEVICE_S):
        device_s = step.device_s
        for share in SHARES:
            if step.share >= share:
                reached.setdefault(share, device_s)
        if len(reached) == len(SHARES):
            break
    return [(reached.get(share, device_s), share in reached) for share in SHARES]


def repeats(pool: ProcessPoolExecutor, names: Sequence[str], num_seeds: int) -> dict[str, float]:
    """Print what repeats do to the figures of the front; return medians over landscapes and seeds."""
    windows = (1, WINDOWS)
    tasks = {
        count: [pool.submit(told_and_true, name, count, seed) for name in names for seed in range(num_seeds)]
        for count in windows
    }
    print(f"\nUnder {NOISE:.0%} noise, after {SCREENED} screened points: what the front tells against what is true\n")
    print(f"{'windows a finalist':20} {'best tok/J told':>16} {'told hypervolume':>17} {'device-s':>10}")
    found: dict[str, float] = {}
    for count in windows:
        runs = np.array([task.result() for task in tasks[count]])
        best, area, device_s = (float(value) for value in np.median(runs, axis=0))
        print(f"{count:<20} {best:>+16.1%} {area:>+17.1%} {device_s:>10,.0f}")
        found |= {f"overstated_best_pct_{count}": round(100 * best, 2), f"overstated_pct_{count}": round(100 * area, 2)}
    return found


def told_and_true(name: str, windows: int, seed: int) -> tuple[float, float, float]:
    """Return by how much the front overstates its best tokens per joule and its hypervolume, and its device-seconds."""
    _quiet()
    played = landscape(name)
    job = played.job(sampler="wattfront", seed=seed, num_trials=SCREENED)
    request = dataclasses.replace(job, repeats=RepeatRule(windows=windows))
    steps = list(played.run(request, noise=NOISE))
    trials = [step.trial for step in steps]
    front = front_of(trials, request.latency_metric, created_at=datetime(2026, 1, 1, tzinfo=UTC), request=request)
    assert front.latency_reference_ms is not None  # every landscape has feasible points among the first
    points = points_of(front, trials, request=request)
    best = max(points, key=lambda one: one.aggregated.tok_per_j.value)
    told_best, true_best = best.aggregated.tok_per_j.value, played.place(best.trial.point).tok_per_j
    true_area = hypervolume([played.place(one.trial.point) for one in points], front.latency_reference_ms)
    return told_best / true_best - 1, front.hypervolume / true_area - 1, steps[-1].device_s


def _quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))


if __name__ == "__main__":
    raise SystemExit(main())
