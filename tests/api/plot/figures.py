"""Figures of a job as /v1/jobs/{job}/figures answers them, of a few trials that differ in what charts tell apart."""

from __future__ import annotations

import itertools
import random
from typing import Any

#: state, tokens per joule, latency in ms, max_batch, precision
TRIALS: tuple[tuple[str, float | None, float | None, int, str], ...] = (
    ("complete", 2.0, 40.0, 8, "bf16"),  # the default: beaten
    ("complete", 3.0, 20.0, 8, "fp8"),  # on the front
    ("complete", 5.0, 30.0, 32, "fp8"),  # on the front, tied
    ("complete", 5.1, 30.5, 32, "fp8"),  # a window of the same point
    ("infeasible", 6.0, 90.0, 64, "fp8"),
    ("invalid", 4.0, 25.0, 16, "bf16"),
    ("failed", None, None, 128, "bf16"),
    ("running", None, None, 4, "bf16"),
)


def make_figures(**changes: Any) -> dict[str, Any]:
    """Return the figures of TRIALS, with limits of 50 ms on the axis and 400 ms beside it."""
    column = [list(values) for values in zip(*TRIALS, strict=True)]
    num = len(TRIALS)
    trials = {
        "number": list(range(num)),
        "attempt": [1] * num,
        "state": column[0],
        "reason": [None if state == "complete" else "sla:tpot_p99_ms" for state in column[0]],
        "detail": [None] * num,
        "role": ["screening"] * num,
        "knobs": {"max_batch": column[3], "precision": column[4]},
        "tok_per_j": column[1],
        "tok_per_j_low": column[1],
        "tok_per_j_high": column[1],
        "output_tok_s": [100.0] * num,
        "mean_power_w": [50.0] * num,
        "latencies_ms": {"tpot_p99_ms": column[2]},
        "latency_low_ms": column[2],
        "latency_high_ms": column[2],
        "mean_clock_mhz": [None] * num,
        "num_finished": [20] * num,
        "window_s": [30.0] * num,
        "device_s": [60.0 * (i + 1) for i in range(num)],
        "hypervolume": [float(i) for i in range(num)],
    }
    front = [_point(2, 5.05, 30.2, low=None, tied=[1]), _point(1, 3.0, 20.0, low=2.5, tied=[])]
    figures = {
        "job": "0" * 32,
        "model": "llama-3.1-8b",
        "is_simulated": True,
        "is_estimate": True,
        "latency_metric": "tpot_p99_ms",
        "sla": {"tpot_p99_ms": 50.0, "ttft_p99_ms": 400.0},
        "knobs": ["max_batch", "precision"],
        "default": 0,
        "metrics": ["tpot_p99_ms"],
        "trials": trials,
        "front": front,
    }
    return {**figures, **changes}


def _point(trial: int, tok_per_j: float, latency_ms: float, *, low: float | None, tied: list[int]) -> dict[str, Any]:
    return {
        "trial": trial,
        "tok_per_j": tok_per_j,
        "tok_per_j_low": low,
        "tok_per_j_high": tok_per_j + 0.5,
        "latency_ms": latency_ms,
        "latency_low_ms": latency_ms - 1,
        "latency_high_ms": None,
        "is_leading": True,
        "tied_with": tied,
    }


def many_rows(count: int) -> list[dict[str, Any]]:
    """Return dots of two precisions, scattered over latencies to 40 ms and 16 tok/J."""
    draw = random.Random(3)
    return [
        {
            "place": place,
            "trial": place,
            "x": draw.uniform(1, 40),
            "y": draw.uniform(1, 16),
            "batch": 8,
            "series": series,
        }
        for place, series in zip(range(count), itertools.cycle(("bf16", "fp8")), strict=False)
    ]
