"""How close simulated accelerators come to published measurements of LLM serving, in percent.

Reads operating points (see `published_points`) and predicts tokens/s, watts, joules per token and the median gap
between tokens of each:

- in-sample: with coefficients fitted to all rows of that GPU;
- leave-one-model-out: with coefficients fitted to the rows of all other models. "Model" is the base model: its
  precisions, variants and tasks are left out together.

Coefficients are fitted to the mean step of each row. What they predict is shown by the simulated engine that serves the
row's load on the simulated device, or with --formula by the mean step again, which takes seconds instead of minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.machine import finish
from benchmarks.published_points import COLUMNS, GPUS, Point, Row, read_rows, steps_of
from benchmarks.served_points import NotServed, serve
from probes.simulated.accelerators import ACCELERATORS, Accelerator
from probes.simulated.coefficients import PRIOR, Coefficients
from probes.simulated.fit import Observation, fit
from probes.simulated.response import Response

#: From this share of steps without prompts on, the median gap is one of them.
MOSTLY = 0.6
#: Lightly loaded floors that fits start from: H100 and H200 read out at 110 to 131 W; B200 at 241 W with kernels.
FLOOR_W = {"h100-sxm": 125.0, "b200": 210.0}
#: How often coefficients and waits are fitted in turn.
ROUNDS = 3
#: Known better than a fit's usual: the floor was read out, and what well-tuned kernels reach is no secret. The rows
#: alone would trade these for one another.
SPREADS = {"static_w": 0.03, "gemm_16_factor": 0.07, "weight_factor": 0.1}
#: The waits found with the coefficients that ship.
SHIPPED_WAITS = {"packed gpqa": 0.0194, "packed lm-arena-chat": 0.0065}
FIGURES = ("tok_s", "power", "j_per_tok", "itl")


class Model(NamedTuple):
    """What was fitted."""

    coefficients: Coefficients
    #: Seconds that a step waits for a host that others keep busy, by `Row.host`.
    waits: Mapping[str, float]


def observations(rows: Iterable[Row], waits: Mapping[str, float]) -> list[Observation]:
    """Turn rows into what `fit` takes: mean step and power, and the step without prompts where the median is one."""
    found = []
    for row in rows:
        steps, wait_s = steps_of(row), waits.get(row.host, 0.0)
        share, decode = steps[0]
        watts = row.power_w / row.num_gpus
        found.append(Observation(work=decode, seconds=row.step_s, power_w=watts, host_s=wait_s, mix=steps))
        if share >= MOSTLY:
            found.append(Observation(work=decode, seconds=row.itl_ms / 1000, host_s=wait_s))
    return found


def fitted(rows: Sequence[Row], accelerator: Accelerator) -> Model:
    """Fit coefficients and the waits for busy hosts, in turn.

    Rows of several replicas are left out: one replica's prompts hold all others up, which the response does not know.
    """
    rows = [row for row in rows if row.data_parallel == 1]
    start = replace(PRIOR, static_w=FLOOR_W[accelerator.key], regulated_share=accelerator.coefficients.regulated_share)
    waits: dict[str, float] = {}
    for _ in range(ROUNDS if any(row.host for row in rows) else 1):
        model = Model(fit(observations(rows, waits), accelerator, start=start, spreads=SPREADS).coefficients, waits)
        waits = _waits(rows, Predictor(accelerator, Model(model.coefficients, {})))
    return Model(model.coefficients, waits)


def _waits(rows: Iterable[Row], predict: Predictor) -> dict[str, float]:
    """Return the median time by host that the median gap is longer than predicted."""
    longer: dict[str, list[float]] = {}
    for row in rows:
        if row.host:
            longer.setdefault(row.host, []).append((row.itl_ms - predict(row).itl_ms) / 1000)
    return {host: max(0.0, statistics.median(seconds)) for host, seconds in longer.items()}


#: Makes what predicts a row from an accelerator and what was fitted.
MakePredictor = Callable[[Accelerator, Model], Callable[[Row], Point]]


class Predictor:
    """The steady state of a row, by coefficients: every kind of step at the clock that the power limit leaves it."""

    def __init__(self, accelerator: Accelerator, model: Model) -> None:
        self._accelerator = accelerator
        self._response = Response(accelerator, model.coefficients)
        self._static_w = model.coefficients.static_w
        self._waits = model.waits

    def __call__(self, row: Row) -> Point:
        """Predict a row from its layout, batch and lengths; its measured results are not looked at."""
        top_mhz, limit_w = self._accelerator.clocks_mhz[-1], self._accelerator.tdp_w
        wait_s = self._waits.get(row.host, 0.0)
        seconds = joules = 0.0
        gaps: list[tuple[float, float]] = []
        for share, work in steps_of(row):
            step_s, watts, _ = self._response.settle(
                work, clock_cap_mhz=top_mhz, power_cap_w=limit_w, from_clock_mhz=top_mhz
            )
            seconds += share * (step_s + wait_s)
            joules += share * (step_s * watts + wait_s * self._static_w)
            gaps.append((step_s + wait_s, share))
        return Point(
            tok_s=row.batch / seconds,
            power_w=row.num_gpus * joules / seconds,
            itl_ms=1000 * _middle(gaps),
            batch=row.batch,
        )


class Server:
    """A row as the simulated engine serves it on the simulated device."""

    def __init__(self, accelerator: Accelerator, model: Model) -> None:
        self._accelerator = accelerator
        self._model = model

    def __call__(self, row: Row) -> Point:
        """Serve the row's load; raise NotServed where that is not possible."""
        wait_s = self._model.waits.get(row.host, 0.0)
        return serve(row, self._accelerator, self._model.coefficients, wait_s)


def _middle(gaps: list[tuple[float, float]]) -> float:
    """Return the mean of what lies between the 45th and the 55th percentile: a median without jumps."""
    below, total = 0.0, 0.0
    for gap, share in sorted(gaps):
        total += gap * max(0.0, min(0.55, below + share) - max(0.45, below))
        below += share
    return total / 0.1


def errors(row: Row, predict: Callable[[Row], Point]) -> dict[str, float]:
    """Return relative errors in percent, by figure; of a row that cannot be served, nothing."""
    try:
        point = predict(row)
    except NotServed as failure:
        print(f"{row.model} {row.task} x{row.num_gpus}, {row.max_num_seqs} sequences: {failure}", file=sys.stderr)
        return {}
    measured, predicted = row.power_w / row.tok_s, point.power_w / point.tok_s
    return {
        "tok_s": 100 * (point.tok_s / row.tok_s - 1),
        "power": 100 * (point.power_w / row.power_w - 1),
        "j_per_tok": 100 * (predicted / measured - 1),
        "itl": 100 * (point.itl_ms / row.itl_ms - 1),
    }


def leave_one_out(rows: Sequence[Row], accelerator: Accelerator, predictor: MakePredictor) -> list[dict[str, float]]:
    """Return the errors of every row by coefficients that its base model had no part in."""
    found: list[dict[str, float]] = [{} for _ in rows]
    for left_out in sorted({row.base_model for row in rows}):
        predict = predictor(accelerator, fitted([row for row in rows if row.base_model != left_out], accelerator))
        for index, row in enumerate(rows):
            if row.base_model == left_out:
                found[index] = errors(row, predict)
    return found


def report(rows: Sequence[Row], found: Sequence[Mapping[str, float]], title: str) -> None:
    """Print medians and 90th percentiles of the absolute errors, by model and for dense and experts."""
    print(f"\n{title}: median / 90th percentile of absolute errors in percent; joules' bias")
    print(f"{'':<44} {'rows':>4} " + " ".join(f"{name:>13}" for name in FIGURES) + f" {'bias':>7}")
    groups: dict[str, list[Mapping[str, float]]] = {}
    for row, row_errors in zip(rows, found, strict=True):
        if not row_errors:
            continue
        kind = "all experts" if row.has_experts else "all dense"
        for name in (f"{row.model.rpartition('/')[2]} {row.task} x{row.num_gpus}", kind):
            groups.setdefault(name, []).append(row_errors)
    for name in sorted(groups, key=lambda name: (name.startswith("all "), name)):
        members = groups[name]
        cells = [f"{_median(members, figure):5.1f} / {_p90(members, figure):5.1f}" for figure in FIGURES]
        bias = statistics.median(row_errors["j_per_tok"] for row_errors in members)
        print(f"{name[-44:]:<44} {len(members):>4} " + " ".join(f"{cell:>13}" for cell in cells) + f" {bias:>+7.1f}")


def figures_of(gpu: str, rows: Sequence[Row], found: Sequence[Mapping[str, float]], prefix: str) -> dict[str, float]:
    """Return the figures of the JSON line: medians by GPU and kind of model."""
    figures = {}
    for kind, wanted in (("dense", False), ("moe", True)):
        members = [one for row, one in zip(rows, found, strict=True) if one and row.has_experts is wanted]
        if members:
            for figure in ("j_per_tok", "itl"):
                figures[f"{prefix}{gpu.lower()}_{kind}_{figure}_median_err_pct"] = _median(members, figure)
    return figures


def _median(members: Sequence[Mapping[str, float]], figure: str) -> float:
    return statistics.median(abs(one[figure]) for one in members)


def _p90(members: Sequence[Mapping[str, float]], figure: str) -> float:
    return float(np.quantile([abs(one[figure]) for one in members], 0.9))


def main() -> None:
    """Print the tables and the JSON line; end with 2 where no points were given."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--points", type=Path, help="CSV of operating points, with columns " + ", ".join(COLUMNS))
    parser.add_argument("--gpu", choices=sorted(GPUS), help="only this GPU's rows")
    parser.add_argument("--shipped", action="store_true", help="judge the coefficients that ship; fit nothing")
    parser.add_argument("--formula", action="store_true", help="predict by the mean step instead of serving the load")
    parser.add_argument("--no-waits", action="store_true", help="learn no waits for busy hosts (Row.host)")
    arguments = parser.parse_args()
    predictor: MakePredictor = Predictor if arguments.formula else Server
    if arguments.points is None or not arguments.points.is_file():
        print("give --points FILE.csv: published operating points, with columns " + ", ".join(COLUMNS), file=sys.stderr)
        raise SystemExit(2)
    all_rows = [replace(row, may_wait=not arguments.no_waits) for row in read_rows(arguments.points)]
    figures: dict[str, float] = {}
    experts: list[Mapping[str, float]] = []
    for gpu in [arguments.gpu] if arguments.gpu else sorted(GPUS):
        accelerator, rows = ACCELERATORS[GPUS[gpu]], [row for row in all_rows if row.gpu == gpu]
        model = Model(accelerator.coefficients, SHIPPED_WAITS) if arguments.shipped else fitted(rows, accelerator)
        print(f"\n{gpu}: {len(rows)} rows; waits for busy hosts in ms: {_in_ms(model.waits)}")
        predict = predictor(accelerator, model)
        found = [errors(row, predict) for row in rows]
        report(rows, found, f"{gpu}, {'shipped coefficients' if arguments.shipped else 'in-sample'}")
        figures |= figures_of(gpu, rows, found, "insample_")
        if not arguments.shipped:
            found = leave_one_out(rows, accelerator, predictor)
            report(rows, found, f"{gpu}, leave-one-model-out")
            figures |= figures_of(gpu, rows, found, "")
            experts += [one for row, one in zip(rows, found, strict=True) if one and row.has_experts]
    if experts:
        figures["moe_j_per_tok_median_err_pct"] = _median(experts, "j_per_tok")
    finish("simulation_fidelity", figures)


def _in_ms(waits: Mapping[str, float]) -> dict[str, float]:
    return {host: round(1000 * wait_s, 1) for host, wait_s in waits.items()}


if __name__ == "__main__":
    main()
