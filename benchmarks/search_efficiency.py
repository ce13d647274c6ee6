"""Device time until a search has found the true front: Wattfront's planner against Optuna's own samplers.

Every search runs on landscapes whose every point is known (benchmarks/truth_sets.py), through the very loop that jobs
run through, the default point first. A launch costs 60 s, a window 30 s, for all alike; nobody's window ends early.
Told is how many device-seconds each needs until the points it measured have 90, 95 and 99 % of the true front's
hypervolume, median and quartiles over seeds. A search that did not get there in its allowance counts with what it used:
where that is theirs, a ratio is an upper bound, where it is ours, there is none. SIMULATED throughout: the landscapes
are models of GPUs.

    python -m benchmarks.search_efficiency                      # all: about an hour on two quiet cores
    python -m benchmarks.search_efficiency --seeds 3 --landscape h100-8b-chat
    python -m benchmarks.search_efficiency --only overhead      # CPU time of one suggestion

What each part of the search is worth: benchmarks/search_ablation.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import structlog
import vl_convert
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu

from benchmarks import truth_sets
from benchmarks.machine import finish
from benchmarks.replay import landscape
from tuner.planner import Options

OURS = "wattfront"
WRONG = "wattfront, wrong physics"
STOCK = ("gp", "tpe", "nsga2", "sobol", "random")
SHARES = (0.9, 0.95, 0.99)
#: Device-seconds and trials that a search may take. The Gaussian process computes seconds for each of its points, so it
#: gets fewer; random search would need more than a day.
ALLOWANCE = {"gp": (7_200.0, 80), "random": (60_000.0, 800), OURS: (9_000.0, 160), WRONG: (9_000.0, 120)}
USUAL_ALLOWANCE = (30_000.0, 400)
FOLDER = Path(__file__).parent.parent / "docs" / "images"
RESULTS = Path(__file__).parent / "results" / "search_efficiency.json"
_SHOWN_S = 6_000.0
NO_FEWER: Mapping[str, int] = {}


def _mirrored(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give each point what is said of the one opposite: fast is called slow, frugal wasteful."""
    return means[::-1]


#: Wattfront, and with a physical model that is wrong everywhere.
VARIANTS: dict[str, Options] = {
    OURS: Options(),
    WRONG: Options(distorted=_mirrored),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One search on one landscape with one seed."""

    landscape: str
    strategy: str
    seed: int
    #: After each trial: device-seconds so far, share of the true hypervolume.
    curve: tuple[tuple[float, float], ...]

    def seconds_to(self, share: float) -> float:
        """Return when it had that share; infinite if it never had."""
        return next((device_s for device_s, found in self.curve if found >= share), math.inf)

    def share_after(self, num_trials: int) -> float:
        """Return what it had after so many trials."""
        return self.curve[min(num_trials, len(self.curve)) - 1][1]


def main() -> int:
    """Run the searches, print the tables, draw the curves, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = [one.name for one in truth_sets.landscapes()]
    parser.add_argument("--seeds", type=int, default=10, help="searches of each kind on each landscape (default 10)")
    parser.add_argument("--landscape", choices=names, action="append", help="only this one; may be repeated")
    parser.add_argument("--only", choices=("comparison", "overhead"), help="only this part")
    parser.add_argument("--gp-seeds", type=int, default=10, help="searches by the Gaussian process (default 10)")
    parser.add_argument("--wrong-seeds", type=int, default=3, help="searches with wrong physics (default 3)")
    parser.add_argument("--strategy", action="append", help="only this one of the comparison; may be repeated")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: cores)")
    parser.add_argument("--write", action="store_true", help="write the picture and the JSON of the curves")
    arguments = parser.parse_args()
    chosen = arguments.landscape or names
    figures: dict[str, float] = {}
    if arguments.only in (None, "comparison"):
        strategies = arguments.strategy or [OURS, *STOCK, WRONG]
        seeds = {
            name: min(arguments.seeds, most)
            for name, most in (("gp", arguments.gp_seeds), (WRONG, arguments.wrong_seeds))
        }
        runs = run_all(chosen, strategies, arguments.seeds, arguments.workers, seeds)
        figures |= compare(runs, strategies)
        if arguments.write:
            write(runs)
    if arguments.only in (None, "overhead"):
        figures |= overhead(chosen)
    finish("search_efficiency", figures)
    return 0


def run_all(
    names: Sequence[str],
    strategies: Sequence[str],
    num_seeds: int,
    num_workers: int,
    fewer: Mapping[str, int] = NO_FEWER,
) -> list[Run]:
    """Run every strategy on every landscape with every seed, `fewer` seeds for some; the long ones first."""
    tasks = [
        (name, strategy, seed)
        for strategy in strategies
        for seed in range(fewer.get(strategy, num_seeds))
        for name in names
    ]
    tasks.sort(key=lambda task: task[1] != "gp")
    runs: list[Run] = []
    started_s = time.monotonic()
    with ProcessPoolExecutor(num_workers) as pool:
        for done in as_completed([pool.submit(run_one, *task) for task in tasks]):
            runs.append(done.result())
            print(
                f"\r{len(runs)} of {len(tasks)} searches, {time.monotonic() - started_s:.0f} s",
                end="",
                file=sys.stderr,
                flush=True,
            )
    print(file=sys.stderr)
    return sorted(runs, key=lambda run: (run.landscape, run.strategy, run.seed))


def run_one(name: str, strategy: str, seed: int) -> Run:
    """Run one search until it has the largest of SHARES, or has used up its allowance."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    played = landscape(name)
    max_device_s, max_trials = ALLOWANCE.get(strategy, ALLOWANCE[OURS] if strategy in VARIANTS else USUAL_ALLOWANCE)
    request = played.job(sampler=OURS if strategy in VARIANTS else strategy, seed=seed, num_trials=max_trials)
    curve = []
    steps = played.run(
        request,
        options=VARIANTS.get(strategy, Options()),
        max_device_s=max_device_s,
    )
    for step in steps:
        curve.append((step.device_s, step.share))
        if step.share >= SHARES[-1]:
            break
    return Run(landscape=name, strategy=strategy, seed=seed, curve=tuple(curve))


def compare(runs: Sequence[Run], strategies: Sequence[str]) -> dict[str, float]:
    """Print device-seconds by landscape and strategy; return the figures, each of its worst landscape."""
    print("\nDevice-seconds to a share of the true hypervolume: median (quartiles); > where it was not reached\n")
    print(f"{'landscape':20} {'strategy':26} {'90 %':>22} {'95 %':>22} {'99 %':>22}  {'at 15 trials':>12}")
    ratios: dict[str, list[float]] = {}
    for name in dict.fromkeys(run.landscape for run in runs):
        here = {
            strategy: [one for one in runs if (one.landscape, one.strategy) == (name, strategy)]
            for strategy in strategies
        }
        for strategy, of_one in here.items():
            cells = [_cell(of_one, share) for share in SHARES]
            at_15 = float(np.median([run.share_after(15) for run in of_one]))
            print(f"{name:20} {strategy:26} {cells[0]:>22} {cells[1]:>22} {cells[2]:>22}  {at_15:>12.3f}")
        for figure, ratio in _ratios(here).items():
            ratios.setdefault(figure, []).append(ratio)
    print("\nOurs over theirs to 99 %, by landscape (where theirs was not reached, its allowance stands for it):")
    for figure, values in ratios.items():
        print(f"  {figure:22} {'  '.join(f'{value:.3g}' for value in values)}")
    # JSON has no infinity: a figure whose worst landscape was not finished is left out, and stands in the lines above.
    return {figure: max(values) for figure, values in ratios.items() if math.isfinite(max(values))}


def _ratios(here: dict[str, list[Run]]) -> dict[str, float]:
    """Return ours over theirs on one landscape, and how likely random search is as good as ours at 15 trials."""
    medians = {strategy: _median_s(of_one, SHARES[-1], is_lower=True) for strategy, of_one in here.items()}
    found: dict[str, float] = {}
    stock = [medians[strategy] for strategy in STOCK if strategy in medians]
    ours = _median_s(here[OURS], SHARES[-1], is_lower=False) if OURS in here else math.nan
    if OURS in here and stock:
        found["ratio_best_stock_99"] = ours / min(stock)
    if OURS in here and "random" in here:
        found["ratio_random_99"] = ours / medians["random"]
        found["p_random_15_max"] = _p_better(here[OURS], here["random"], 15)
    if WRONG in here and stock:
        found["ratio_wrong_physics_99"] = _median_s(here[WRONG], SHARES[-1], is_lower=False) / min(stock)
    return found


def _p_better(ours: Sequence[Run], theirs: Sequence[Run], num_trials: int) -> float:
    """Return the probability of a difference like this if ours were no better (one-sided Mann-Whitney)."""
    return float(
        mannwhitneyu(
            [run.share_after(num_trials) for run in ours],
            [run.share_after(num_trials) for run in theirs],
            alternative="greater",
        ).pvalue
    )


def _median_s(runs: Sequence[Run], share: float, *, is_lower: bool) -> float:
    """Return the median device-seconds to a share; a run that never had it counts with what it used, or as never."""
    return float(np.median([min(run.seconds_to(share), run.curve[-1][0] if is_lower else math.inf) for run in runs]))


def _cell(runs: Sequence[Run], share: float) -> str:
    seconds = [run.seconds_to(share) for run in runs]
    used = [min(second, run.curve[-1][0]) for second, run in zip(seconds, runs, strict=True)]
    low, middle, high = np.quantile(used, (0.25, 0.5, 0.75))
    num_missed = sum(math.isinf(second) for second in seconds)
    is_missed = 2 * num_missed >= len(seconds)
    beyond = ">" if 4 * num_missed > len(seconds) else ""
    return f"{'>' if is_missed else ''}{middle:,.0f} ({low:,.0f}-{beyond}{high:,.0f})"


def overhead(names: Sequence[str], *, num_trials: int = 200, num_questions: int = 5) -> dict[str, float]:
    """Return the CPU seconds that our choice of a point takes after so many trials, on the worst landscape."""
    used = {name: _ask_cpu_s(name, num_trials, num_questions) for name in names}
    print(f"\nCPU seconds for one suggestion after {num_trials} trials: {used}")
    return {f"ask_cpu_s_at_{num_trials}": max(used.values())}


def _ask_cpu_s(name: str, num_trials: int, num_questions: int) -> float:
    played = landscape(name)
    request = played.job(sampler=OURS, seed=0, num_trials=num_trials + num_questions)
    times_s = [time.process_time() for _ in played.run(request)]
    return round(float(np.median(np.diff(times_s)[-num_questions:])), 3)


def write(runs: Sequence[Run]) -> None:
    """Write the curves as JSON, and draw them."""
    RESULTS.parent.mkdir(exist_ok=True)
    rows = [dataclasses.asdict(run) | {"curve": _thinned(run.curve)} for run in runs]
    RESULTS.write_text(json.dumps({"launch_s": 60, "window_s": 30, "runs": rows}) + "\n", encoding="utf-8")
    FOLDER.mkdir(exist_ok=True)
    picture = vl_convert.vegalite_to_png(chart(runs).to_dict(), scale=2)
    (FOLDER / "search-efficiency.png").write_bytes(picture)


def _thinned(curve: Sequence[tuple[float, float]]) -> list[tuple[int, float]]:
    """Return the steps at which a share grew, and the end."""
    kept = [curve[0]]
    for step in curve[1:]:
        if step[1] > kept[-1][1] + 5e-4:
            kept.append(step)
    return [(round(device_s), round(share, 4)) for device_s, share in [*kept, curve[-1]]]


def chart(runs: Sequence[Run]) -> Any:
    """Draw the median share found by device time, a panel a landscape."""
    rows = list(_rows(runs))
    panels = [
        alt.Chart(_data([row for row in rows if row["landscape"] == name]), title=name, width=330, height=230)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X("device_s:Q", title="device-seconds, launches included"),
            y=alt.Y("share:Q", title="share of the true hypervolume", scale=alt.Scale(domain=(0.4, 1.0), clamp=True)),
            color=alt.Color("strategy:N", title="strategy (median of seeds)", sort=[OURS, WRONG, *STOCK]),
        )
        for name in dict.fromkeys(run.landscape for run in runs)
    ]
    picture = alt.vconcat(*(alt.hconcat(*panels[start : start + 2]) for start in range(0, len(panels), 2)))
    return picture.properties(title="Simulated landscapes: how fast a search finds the true front")


def _data(rows: Sequence[dict[str, Any]]) -> Any:
    data: Any = alt.InlineData  # its constructor has no types
    return data(values=list(rows))


def _rows(runs: Sequence[Run]) -> Iterable[dict[str, Any]]:
    grid = np.arange(90.0, _SHOWN_S + 1, 30.0)
    for name in dict.fromkeys(run.landscape for run in runs):
        for strategy in dict.fromkeys(run.strategy for run in runs):
            of_one = [run for run in runs if (run.landscape, run.strategy) == (name, strategy)]
            shares = np.array([_at(run.curve, grid) for run in of_one])
            for device_s, share in zip(grid, np.median(shares, axis=0), strict=True):
                yield {"landscape": name, "strategy": strategy, "device_s": device_s, "share": float(share)}


def _at(curve: Sequence[tuple[float, float]], grid: NDArray[np.float64]) -> NDArray[np.float64]:
    times, shares = (np.array(column) for column in zip(*curve, strict=True))
    found: NDArray[np.float64] = np.append(0.0, shares)[np.searchsorted(times, grid, side="right")]
    return found


if __name__ == "__main__":
    raise SystemExit(main())
