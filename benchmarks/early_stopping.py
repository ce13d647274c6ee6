"""How often windows that end early are ended wrongly, and how much device time they save.

Windows of simulated points, each on a device and with requests of its own seed: loads kept in flight with and without a
queue, and Poisson arrivals well below and near capacity, so that requests depend on each other as they do in a server.
What a point's percentile truly is, all its windows together tell. Then limits are placed around that truth and every
window is looked at as `tuner/sequential.py` does while it runs: a window that is cut though the truth is inside the
limit is a wrong verdict. Some windows are also run with the limit in force, to see that the replay is what happens, and
some with a rival at a known distance. SIMULATED throughout.

    python -m benchmarks.early_stopping                 # 2,000 windows; three minutes on one core
    python -m benchmarks.early_stopping --windows 200   # fewer, so that the truth is less well known
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

import numpy as np
import structlog

from benchmarks.machine import finish
from engine.load import Load, Observer
from engine.request import RequestRecord
from engine.settings import EngineSettings
from engine.simulated.engine import SimulatedEngine
from tuner.bench import Bench, Outcome
from tuner.pareto import ObjectivePair
from tuner.point import OperatingPoint
from tuner.request import Limit, TuneRequest, WindowRule, WorkloadSpec
from tuner.sequential import LimitTest, ShareVerdict, latency_ms
from tuner.simulation import open_simulation

METRICS = ("ttft_p90_ms", "ttft_p99_ms", "tpot_p99_ms", "e2e_p99_ms")
#: By which share of the bound the true percentile lies above it: below 0 is inside, at 0 exactly on the limit.
VIOLATIONS = (-0.1, -0.05, -0.02, 0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
#: By how much a rival is better on both axes; at 0 it is the point's own place.
RIVAL_LEADS = (0.0, 0.1, 0.2, 0.4)
WINDOW = WindowRule(
    warmup_s=6, max_warmup_s=30, window_s=16, min_requests=30, max_window_s=60, idle_s=0, stops_early=False
)
_IN_FLIGHT = WorkloadSpec(prompt_tokens=(100, 500), output_tokens=(100, 500))
_POINT = OperatingPoint.of({"max_batch": 16, "prefill_chunk": 2048})
#: An 8B model on an H100: 16 at once serve some 6 requests a second.
LOADS = {
    "in_flight": _IN_FLIGHT,
    "queued": replace(_IN_FLIGHT, concurrency=24),
    "poisson": replace(_IN_FLIGHT, scenario="server", rate_per_s=3.5),
    "poisson_busy": replace(_IN_FLIGHT, scenario="server", rate_per_s=5.5),
}
#: Windows whose cut is compared with the replay's, and windows for each lead of a rival, as shares of a load's.
_CHECKED_SHARE = 0.01
_RIVALLED_SHARE = 0.1

#: Median share of the window that was used, by violation: `python -m benchmarks.early_stopping`, all loads and metrics.
CUT_SHARES: tuple[tuple[float, float], ...] = (
    (0.0, 1.0), (0.1, 1.0), (0.2, 0.41), (0.3, 0.23), (0.5, 0.22), (1.0, 0.18),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One whole window: when each request ended, from the window's start, and its latency if it counts, by metric."""

    window_s: float
    warmup_s: float
    ended: dict[str, list[tuple[float, float | None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of all windows of one load under a limit on one metric."""

    load: str
    metric: str
    violation: float
    #: Share of each window that was used; 1 where it was not cut.
    used: list[float]
    is_cut: list[bool]


def cut_share(violation: float) -> float:
    """Return the median share of a window that is used where a percentile lies so far above its bound.

    `violation` is a share of the bound; at 0 and below the whole window is used. Between the measured distances the
    share is interpolated, beyond them it stays.
    """
    distances, shares = zip(*CUT_SHARES, strict=True)
    return float(np.interp(violation, distances, shares))


def main() -> int:
    """Run the windows, replay them under limits, print the table."""
    _quiet()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--windows", type=int, default=2000, help="windows in all (default: 2000)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: cores)")
    arguments = parser.parse_args()
    num = max(2, arguments.windows // len(LOADS))
    with ProcessPoolExecutor(arguments.workers, initializer=_quiet) as pool:
        jobs = [(load, seed) for load in LOADS for seed in range(num)]
        done = list(pool.map(_whole, jobs, chunksize=10))
        windows = {load: [one for (of, _), one in zip(jobs, done, strict=True) if of == load] for load in LOADS}
        replaying = [pool.submit(_replay, load, metric, windows[load]) for load in LOADS for metric in METRICS]
        replayed = [one for some in replaying for one in some.result()]
        rivalled = list(pool.map(_behind, range(max(2, int(num * _RIVALLED_SHARE)))))
    agreeing = [
        _agrees(load, windows[load], seed) for load in LOADS for seed in range(max(1, int(num * _CHECKED_SHARE)))
    ]
    print(f"SIMULATED: {num * len(LOADS)} windows of {WINDOW.window_s:g} s, {len(METRICS)} metrics each")
    figures = _limit_figures(replayed)
    figures |= {"windows": num * len(LOADS), "replay_agrees_share": statistics.mean(agreeing)}
    figures |= _rival_figures(rivalled)
    finish("early_stopping", figures)
    return 0


def run_window(load: str, seed: int, *, rivals: Sequence[ObjectivePair] = (), **changes: object) -> _Run:
    """Measure the point under a load once, on a device and with requests of that seed."""
    request = TuneRequest(
        model="llama-3.1-8b",
        engine="simulated",
        device="simulated:h100-sxm",
        workload=LOADS[load],
        window=WINDOW,
        seed=seed,
    )
    request = replace(request, **changes)  # type: ignore[arg-type] # fields by name
    simulation = open_simulation(request)
    opened: list[_RecordingEngine] = []

    def open_engine(settings: EngineSettings) -> _RecordingEngine:
        opened.append(_RecordingEngine(settings, simulation.shape, simulation.device))
        return opened[-1]

    outcome = Bench(request, simulation.device, open_engine, rig=simulation.open_rig()).measure(_POINT, rivals=rivals)
    return _Run(outcome=outcome, records=opened[-1].records)


def replay(window: Window, limit: Limit) -> tuple[float, bool]:
    """Return the share of a whole window that is used under a limit, and whether it is cut."""
    test = LimitTest(limit, window_s=WINDOW.window_s)
    for elapsed_s, together in groupby(window.ended[limit.metric], key=itemgetter(0)):  # a step ends them at once
        for _, value_ms in together:
            if value_ms is not None:
                test.add(elapsed_s, value_ms)
        if test.look(elapsed_s) is ShareVerdict.MISSED:
            return elapsed_s / window.window_s, True
    return 1.0, False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A measured window and the records behind it."""

    outcome: Outcome
    records: list[RequestRecord]


class _RecordingEngine(SimulatedEngine):
    """Keeps the records of its last load."""

    records: list[RequestRecord]

    def run(self, load: Load, observer: Observer) -> list[RequestRecord]:
        self.records = super().run(load, observer)
        return self.records


def _quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))


def _whole(job: tuple[str, int]) -> Window:
    run = run_window(*job)
    measured = run.outcome.measurement
    assert measured is not None  # nothing fails on a device without faults
    start_s, end_s = measured.reading.start_s, measured.reading.end_s
    inside = [one for one in run.records if one.token_times_s and start_s <= one.token_times_s[-1] < end_s]
    inside.sort(key=lambda one: one.token_times_s[-1])
    ended = {
        metric: [(one.token_times_s[-1] - start_s, latency_ms(one, metric, start_s)) for one in inside]
        for metric in METRICS
    }
    return Window(window_s=measured.window_s, warmup_s=measured.warmup_s, ended=ended)


def _truth_ms(windows: Sequence[Window], metric: str) -> float:
    percent = float(metric.split("_")[1].removeprefix("p"))
    samples = [value_ms for one in windows for _, value_ms in one.ended[metric] if value_ms is not None]
    return float(np.percentile(samples, percent))


def _replay(load: str, metric: str, windows: Sequence[Window]) -> list[Replayed]:
    truth_ms = _truth_ms(windows, metric)
    rows = []
    for violation in VIOLATIONS:
        limit = Limit(metric=metric, bound_ms=truth_ms / (1 + violation))
        used, is_cut = zip(*(replay(one, limit) for one in windows), strict=True)
        rows.append(Replayed(load=load, metric=metric, violation=violation, used=list(used), is_cut=list(is_cut)))
    return rows


def _agrees(load: str, windows: Sequence[Window], seed: int) -> bool:
    """Tell whether a window with the limit in force ends when its replay says."""
    limit = Limit(metric="ttft_p99_ms", bound_ms=_truth_ms(windows, "ttft_p99_ms") / 1.5)
    used, is_cut = replay(windows[seed], limit)
    outcome = run_window(load, seed, sla=(limit,), window=replace(WINDOW, stops_early=True)).outcome
    assert outcome.measurement is not None  # nothing fails on a device without faults
    is_alike = abs(outcome.measurement.window_s - used * windows[seed].window_s) < 1e-6
    return is_alike and is_cut == (outcome.measurement.cut_by == f"sla:{limit.metric}")


def _behind(seed: int) -> list[tuple[float, float, bool]]:
    """Run one seed's window against a rival at each lead; return lead, share used and whether it was cut."""
    whole = run_window("in_flight", seed).outcome.measurement
    assert whole is not None  # nothing fails on a device without faults
    assert whole.tok_per_j is not None
    assert whole.tpot.p99 is not None
    rows = []
    for lead in RIVAL_LEADS:
        rival = ObjectivePair(whole.tok_per_j.value * (1 + lead), whole.tpot.p99.value / (1 + lead))
        shown = run_window("in_flight", seed, rivals=(rival,), window=replace(WINDOW, stops_early=True)).outcome
        assert shown.measurement is not None
        rows.append((lead, shown.measurement.window_s / whole.window_s, shown.measurement.cut_by is not None))
    return rows


def _limit_figures(replayed: Sequence[Replayed]) -> dict[str, float]:
    """Print how windows fared by distance from the limit, and return the figures."""
    figures: dict[str, float] = {}
    print("true percentile over its bound | windows cut | window used, median (mean) | worst load and metric: cut")
    for violation in VIOLATIONS:
        rows = [one for one in replayed if one.violation == violation]
        used = [share for one in rows for share in one.used]
        cut = statistics.mean(is_cut for one in rows for is_cut in one.is_cut)
        worst = max(rows, key=lambda one: statistics.mean(one.is_cut))
        worst_cut = statistics.mean(worst.is_cut)
        median, mean = statistics.median(used), statistics.mean(used)
        print(
            f"{violation:+30.0%} | {cut:11.2%} | {median:18.2f} ({mean:.2f}) | "
            f"{worst.load} {worst.metric}: {worst_cut:.2%}"
        )
        if violation > 0:
            figures[f"used_median_at_{violation:.0%}".rstrip("%")] = median
            figures[f"used_mean_at_{violation:.0%}".rstrip("%")] = mean
        else:
            figures["wrong_pct"] = max(figures.get("wrong_pct", 0.0), 100 * cut)
            figures["wrong_worst_pct"] = max(figures.get("wrong_worst_pct", 0.0), 100 * worst_cut)
    return figures


def _rival_figures(rivalled: Sequence[Sequence[tuple[float, float, bool]]]) -> dict[str, float]:
    """Print how windows fared against rivals, and return the figures."""
    figures: dict[str, float] = {}
    print("rival better on both axes by | windows cut | window used, median")
    for i, lead in enumerate(RIVAL_LEADS):
        cut = statistics.mean(rows[i][2] for rows in rivalled)
        used = statistics.median(rows[i][1] for rows in rivalled)
        print(f"{lead:28.0%} | {cut:11.0%} | {used:.2f}")
        figures[f"dominated_cut_pct_at_{lead:.0%}".rstrip("%")] = 100 * cut
        figures[f"dominated_used_at_{lead:.0%}".rstrip("%")] = used
    return figures


if __name__ == "__main__":
    raise SystemExit(main())
