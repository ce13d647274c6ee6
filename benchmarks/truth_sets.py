"""Landscapes with known truth for judging searches: every point of a grid, simulated without noise.

Each landscape is a job as a user would submit it, with a grid of 5,000 points or more instead of a budget. All points
are measured by the bench that real jobs use, each stored with its outcome and its figures; the front and its
hypervolume up to the latency limit are the truth that a search is to find. SIMULATED throughout: what is true here is
true of the model in probes/simulated, not of a GPU.

    python -m benchmarks.truth_sets                 # make all four again: 20,600 points
    python -m benchmarks.truth_sets --check 40      # measure 40 points of each anew and compare with what is stored
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from benchmarks.machine import finish
from engine.simulated.engine import VERSION as ENGINE_VERSION
from engine.simulated.shapes import load_shape
from probes.simulated.names import open_simulated
from tuner.bench import Bench, Outcome
from tuner.pareto import ObjectivePair, hypervolume, non_dominated
from tuner.point import OperatingPoint
from tuner.request import KnobRange, KnobValue, Limit, TuneRequest, WindowRule, WorkloadSpec
from tuner.simulation import Simulation
from tuner.space import SearchSpace, search_space

FOLDER = Path(__file__).parent / "truth"
#: Figures of each point, by the names of measurements; NaN where a point has none.
LATENCIES = ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "itl_p99_ms", "e2e_p99_ms")
FIGURES = ("output_tok_s", "mean_power_w", "tok_per_j", *LATENCIES)
#: Windows of a simulation without noise need no long warm-up; these are virtual seconds.
_WINDOW = WindowRule(
    warmup_s=6, max_warmup_s=30, window_s=16, min_requests=30, max_window_s=60, idle_s=0, stops_early=False
)
_CHUNK = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """A job whose every point is to be known."""

    name: str
    request: TuneRequest
    #: A trace that the request replays, made by `_coding_trace`: so many requests; 0 for none.
    trace_requests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What is stored of a landscape. Arrays are in the order of `points`."""

    name: str
    knobs: dict[str, list[KnobValue]]
    sla_ms: dict[str, float]
    latency_metric: str
    states: list[str]
    figures: dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]]
    #: Indices of the front's points, fastest first.
    front: list[int]
    hypervolume: float
    latency_reference_ms: float
    made_by: str

    def points(self) -> list[OperatingPoint]:
        """Return every point, the last knob changing fastest."""
        grid: list[dict[str, KnobValue]] = [{}]
        for name, values in self.knobs.items():
            grid = [chosen | {name: value} for chosen in grid for value in values]
        return [OperatingPoint.of(chosen) for chosen in grid]


def main() -> int:
    """Make the truth sets, or check points of those there are."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--landscape", choices=[one.name for one in landscapes()], help="only this one")
    parser.add_argument("--check", type=int, metavar="N", help="measure N points of each anew and compare")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: cores)")
    arguments = parser.parse_args()
    chosen = [one for one in landscapes() if arguments.landscape in (None, one.name)]
    figures: dict[str, float] = {}
    for landscape in chosen:
        if arguments.check:
            figures[f"{landscape.name}_worst_difference_pct"] = check(landscape, arguments.check)
        else:
            truth = make(landscape, arguments.workers)
            figures[f"{landscape.name}_points"] = len(truth.states)
            figures[f"{landscape.name}_front"] = len(truth.front)
            figures[f"{landscape.name}_hypervolume"] = truth.hypervolume
    finish("truth_sets", figures)
    return 0


def landscapes() -> tuple[Landscape, ...]:
    """Return the four: a small model in chat, a large one under Poisson arrivals, experts, and long prompts of code."""
    return (
        Landscape(
            name="h100-8b-chat",
            request=_request(
                "llama-3.1-8b",
                "simulated:h100-sxm",
                WorkloadSpec(prompt_tokens=(100, 500), output_tokens=(100, 500)),
                sla={"ttft_p99_ms": 500, "tpot_p99_ms": 30},
                max_batch=(8, 16, 32, 64, 96, 128, 192, 256, 384, 512),
                prefill_chunk=(512, 1024, 2048, 4096, 8192),
                precision=("bf16", "fp8"),
                kv_precision=("auto", "fp8"),
                sm_clock_cap_mhz=tuple(range(780, 1981, 50)),
            ),
        ),
        Landscape(
            name="h200x4-70b-poisson",
            request=_request(
                "llama-3.1-70b",
                "simulated:h200-sxm:4",
                WorkloadSpec(scenario="server", rate_per_s=8.0, prompt_tokens=(100, 700), output_tokens=(100, 500)),
                sla={"ttft_p99_ms": 2000, "tpot_p99_ms": 80},
                tensor_parallel=(4,),
                max_batch=(16, 32, 48, 64, 96, 128, 192, 256, 384, 512),
                prefill_chunk=(512, 1024, 2048, 4096, 8192),
                precision=("bf16", "fp8"),
                policy=("decode_first", "prefill_first"),
                sm_clock_cap_mhz=tuple(range(780, 1981, 50)),
            ),
        ),
        Landscape(
            name="b200-moe",
            request=_request(
                "qwen3-30b-a3b",
                "simulated:b200",
                WorkloadSpec(prompt_tokens=(100, 900), output_tokens=(200, 600)),
                sla={"ttft_p99_ms": 2000, "tpot_p99_ms": 50},
                max_batch=(8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024),
                prefill_chunk=(1024, 2048, 4096, 8192, 16384),
                precision=("bf16", "fp8", "nvfp4"),
                kv_precision=("auto", "fp8"),
                sm_clock_cap_mhz=tuple(range(765, 1966, 75)),
            ),
        ),
        Landscape(
            name="a100-8b-code",
            request=_request(
                "llama-3.1-8b",
                "simulated:a100-sxm-80",
                WorkloadSpec(scenario="trace", trace_file=str(_trace_path())),
                sla={"ttft_p99_ms": 4000, "itl_p99_ms": 500},
                latency="ttft_p99_ms",  # outputs are so short that the gaps between tokens say little
                max_batch=(2, 4, 6, 8, 12, 16, 24, 32, 48, 64),
                prefill_chunk=(256, 512, 1024, 2048, 4096, 8192),
                precision=("bf16", "int8"),
                policy=("decode_first", "prefill_first"),
                sm_clock_cap_mhz=tuple(range(450, 1411, 45)),
            ),
            trace_requests=400,
        ),
    )


def make(landscape: Landscape, num_workers: int) -> Truth:
    """Measure every point, store the truth and return it."""
    points = list(_space(landscape).points())
    chunks = [points[start : start + _CHUNK] for start in range(0, len(points), _CHUNK)]
    started_s = time.monotonic()
    rows: list[tuple[str, list[float]]] = []
    with ProcessPoolExecutor(num_workers) as pool:
        for done in pool.map(partial(measure_all, landscape.name), chunks):
            rows.extend(done)
            print(f"\r{landscape.name}: {len(rows)} of {len(points)} points", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    truth = _truth(landscape, rows)
    store(truth)
    best = max((i for i in truth.front), key=lambda i: float(truth.figures["tok_per_j"][i]))
    print(
        f"{truth.name}: {len(rows)} points in {time.monotonic() - started_s:.0f} s, "
        f"{truth.states.count('complete')} inside the limits, front of {len(truth.front)}, hypervolume "
        f"{truth.hypervolume:.2f} tok/J x ms up to {truth.latency_reference_ms:g} ms; most frugal: {points[best]}"
    )
    return truth


def check(landscape: Landscape, num_points: int) -> float:
    """Measure some points anew; return by how much percent a figure is off at worst, and say so."""
    truth = load(landscape.name)
    chosen = random.Random(0).sample(range(len(truth.states)), num_points)
    points = truth.points()
    worst = 0.0
    for i, (state, values) in zip(chosen, measure_all(landscape.name, [points[i] for i in chosen]), strict=True):
        if state != truth.states[i]:
            print(f"{truth.name}: {points[i]} is {state}, stored as {truth.states[i]}")
            worst = float("inf")
        for name, value in zip(FIGURES, values, strict=True):
            stored = float(truth.figures[name][i])
            if not (np.isnan(stored) and np.isnan(value)):
                worst = max(worst, 100 * abs(value / stored - 1))
    print(f"{truth.name}: {num_points} points measured anew, worst difference of a figure {worst:.2g} %")
    return worst


def measure_all(name: str, points: Sequence[OperatingPoint]) -> list[tuple[str, list[float]]]:
    """Measure points of a landscape; each gives its state (with the reason behind a colon) and its figures."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    landscape = next(one for one in landscapes() if one.name == name)
    simulation = open_landscape(landscape)
    bench = Bench(landscape.request, simulation.device, simulation.open_engine, rig=simulation.open_rig())
    return [_row(bench.measure(point)) for point in points]


def store(truth: Truth) -> None:
    """Write a truth set: the figures as arrays of 32 bits, the rest as JSON beside them."""
    FOLDER.mkdir(exist_ok=True)
    kinds = sorted(set(truth.states))
    meta = {
        name: getattr(truth, name)
        for name in ("name", "knobs", "sla_ms", "latency_metric", "hypervolume", "latency_reference_ms", "made_by")
    }
    meta["states"] = kinds
    meta["front"] = [
        {
            "index": i,
            **truth.points()[i].as_dict(),
            **{name: float(f"{truth.figures[name][i]:.7g}") for name in FIGURES},
        }
        for i in truth.front
    ]
    (FOLDER / f"{truth.name}.json").write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
    codes = np.array([kinds.index(state) for state in truth.states], dtype=np.uint8)
    arrays: dict[str, Any] = {"states": codes, **truth.figures}
    np.savez_compressed(FOLDER / f"{truth.name}.npz", **arrays)


def load(name: str) -> Truth:
    """Read a stored truth set by its landscape's name."""
    meta: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    with np.load(FOLDER / f"{name}.npz") as arrays:
        figures = {figure: arrays[figure] for figure in FIGURES}
        states = [meta["states"][code] for code in arrays["states"]]
    front = [row["index"] for row in meta["front"]]
    return Truth(**meta | {"states": states, "front": front, "figures": figures})


def _request(
    model: str,
    device: str,
    workload: WorkloadSpec,
    *,
    sla: dict[str, float],
    latency: str = "tpot_p99_ms",
    **knobs: tuple[KnobValue, ...],
) -> TuneRequest:
    return TuneRequest(
        model=model,
        engine="simulated",
        device=device,
        workload=workload,
        sla=tuple(Limit(metric=metric, bound_ms=bound_ms) for metric, bound_ms in sla.items()),
        knobs=tuple(KnobRange(name=name, values=values) for name, values in knobs.items()),
        latency_metric=latency,
        window=_WINDOW,
    )


def open_landscape(landscape: Landscape) -> Simulation:
    """Return what a landscape's job runs on, without noise."""
    request = landscape.request
    if landscape.trace_requests:
        _write_coding_trace(_trace_path(), landscape.trace_requests)
    device = open_simulated(request.device, seed=request.seed, noise=0.0)
    return Simulation(device=device, shape=load_shape(request.model))


def _space(landscape: Landscape) -> SearchSpace:
    return search_space(landscape.request, open_landscape(landscape).device)


def _row(outcome: Outcome) -> tuple[str, list[float]]:
    state = outcome.state.value if outcome.reason is None else f"{outcome.state.value}:{outcome.reason}"
    measured = outcome.measurement
    if measured is None:
        return state, [float("nan")] * len(FIGURES)
    estimates = [measured.tok_per_j, *(measured.latency(name) for name in LATENCIES)]
    values = [None if estimate is None else estimate.value for estimate in estimates]
    figures = [measured.output_tok_s.value, measured.mean_power_w, *values]
    return state, [float("nan") if value is None else value for value in figures]


def _truth(landscape: Landscape, rows: Sequence[tuple[str, list[float]]]) -> Truth:
    request, device = landscape.request, open_landscape(landscape).device
    columns = np.array([values for _, values in rows], dtype=np.float32)
    figures = {name: columns[:, i].copy() for i, name in enumerate(FIGURES)}
    complete = [i for i, (state, _) in enumerate(rows) if state == "complete"]
    sla_ms = {limit.metric: limit.bound_ms for limit in request.sla}
    reference_ms = sla_ms[request.latency_metric]
    places = [
        ObjectivePair(float(figures["tok_per_j"][i]), float(figures[request.latency_metric][i])) for i in complete
    ]
    return Truth(
        name=landscape.name,
        knobs={knob.name: list(knob.values) for knob in _space(landscape).knobs},
        sla_ms=sla_ms,
        latency_metric=request.latency_metric,
        states=[state for state, _ in rows],
        figures=figures,
        front=[complete[i] for i in non_dominated(places)],
        hypervolume=hypervolume(places, reference_ms),
        latency_reference_ms=reference_ms,
        made_by=f"benchmarks.truth_sets, engine simulated {ENGINE_VERSION}, {device.info.driver}",
    )


def _trace_path() -> Path:
    return FOLDER / "coding-trace.jsonl"


def _write_coding_trace(path: Path, num_requests: int) -> None:
    """Write a synthetic trace of code completion, the same every time.

    Lengths are lognormal with the medians that Patel et al. (Splitwise, arXiv 2311.18677) give for Azure's coding
    service, 1,500 prompt and 13 output tokens; gaps are exponential, at 2.5 requests a second.
    """
    if path.exists():
        return
    rows = "".join(json.dumps(row) + "\n" for row in _coding_rows(num_requests))
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(rows, encoding="utf-8")
    temporary.replace(path)


def _coding_rows(num_requests: int) -> Iterator[dict[str, int]]:
    draw = random.Random("coding trace")
    time_s = 0.0
    for _ in range(num_requests):
        prompt = min(7000, max(50, int(draw.lognormvariate(7.31, 0.7))))
        output = min(400, max(2, int(draw.lognormvariate(2.8, 1.0))))
        yield {"timestamp": round(1000 * time_s), "input_length": prompt, "output_length": output}
        time_s += draw.expovariate(2.5)


if __name__ == "__main__":
    sys.exit(main())
