"""The figures of all trials of a job as columns, for charts and tables of thousands of trials. Pure.

Columns pass through as they were read, without a model of pydantic or an object a trial in between: ten thousand trials
take a fraction of a second so. `api.figures_schemas` describes the form. Knows nothing of where figures are kept, nor
of HTTP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from api.running_front import Repeat, Shown, running_hypervolume
from db.figures import rounded
from db.job import Job
from db.trial_figures import TrialFigures
from probes.device import Method
from tuner.knobs import SIMULATED
from tuner.trial import OUTCOMES, TrialState

#: Latencies that are told besides those that the job's limits and its front speak of.
TOLD = ("ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p90_ms", "tpot_p99_ms", "e2e_p50_ms",
        "e2e_p99_ms")  # fmt: skip
_ESTIMATES = (Method.ESTIMATE, Method.SIMULATED)
_MEASURED = (TrialState.COMPLETE, TrialState.INFEASIBLE)
_OF_A_POINT = ("gain_over_default", "num_windows", "interval_of", "is_leading", "tied_with", "mean_power_w")


def figures(job: Job, found: TrialFigures, front: Mapping[str, Any], *, after: int = -1) -> dict[str, Any]:
    """Return what `FiguresOut` describes of the trials with a larger number than `after`.

    `front` is the job's front as it is shown. Sums over device time and the hypervolume are those of all trials.
    """
    metric, limits = job.request.latency_metric, {limit.metric: limit.bound_ms for limit in job.request.sla}
    others = (name for name in (*limits, *TOLD) if any(figure is not None for figure in found.figures[name]))
    metrics = list(dict.fromkeys([metric, *others]))
    columns = _columns(found, metric, metrics, _knob_names(job, found))
    columns["device_s"] = _unless_running(found, accumulate(seconds or 0.0 for seconds in found.device_s))
    columns["hypervolume"] = _unless_running(
        found, running_hypervolume(_windows(found, metric, limits, front), front["latency_reference_ms"])
    )
    first = next((place for place, number in enumerate(found.number) if number > after), len(found.number))
    return {
        "job": job.id,
        "model": job.request.model,
        "state": job.state.value,
        "is_simulated": job.request.engine == SIMULATED,
        "is_estimate": _is_estimate(job, found),
        "latency_metric": metric,
        "latency_reference_ms": front["latency_reference_ms"],
        "sla": limits,
        "knobs": list(columns["knobs"]),
        "default": _default(found),
        "metrics": metrics,
        "next_after": _next_after(found),
        "trials": {name: _behind(column, first) for name, column in columns.items()},
        "front": [_front_point(point) for point in front["points"]],
    }


def _columns(found: TrialFigures, metric: str, metrics: Sequence[str], knobs: Sequence[str]) -> dict[str, Any]:
    of = found.figures
    return {
        "number": found.number,
        "attempt": found.attempt,
        "state": found.state,
        "reason": found.reason,
        "detail": found.detail,
        "role": found.role,
        "knobs": {name: found.knobs.get(name, [None] * len(found.number)) for name in knobs},
        "tok_per_j": of["tok_per_j"],
        "tok_per_j_low": of["tok_per_j_low"],
        "tok_per_j_high": of["tok_per_j_high"],
        "output_tok_s": of["output_tok_s"],
        "mean_power_w": [rounded(power_w) for power_w in found.mean_power_w],
        "latencies_ms": {name: of[name] for name in metrics},
        "latency_low_ms": of[f"{metric}_low"],
        "latency_high_ms": of[f"{metric}_high"],
        "mean_clock_mhz": of["clock_mhz"],
        "num_finished": of["num_finished"],
        "window_s": [rounded(window_s) for window_s in found.window_s],
        "host_power_w": of["host_w"],
        "perplexity_ratio": of["perplexity_ratio"],
        "finished_at": [None if at is None else at.isoformat() for at in found.finished_at],
    }


def _behind(column: Any, first: int) -> Any:
    """Return a column, or each of a mapping of columns, from a place on."""
    if isinstance(column, Mapping):
        return {name: inner[first:] for name, inner in column.items()}
    return column[first:]


def _knob_names(job: Job, found: TrialFigures) -> list[str]:
    return list(dict.fromkeys([*(knob.name for knob in job.request.knobs), *found.knobs]))


def _is_estimate(job: Job, found: TrialFigures) -> bool:
    newest = next((method for method in reversed(found.method) if method is not None), None)
    return job.request.engine == SIMULATED or newest in _ESTIMATES


def _default(found: TrialFigures) -> int | None:
    """Return the first trial that came to an outcome."""
    outcomes = (number for number, state in zip(found.number, found.state, strict=True) if state in OUTCOMES)
    return next(outcomes, None)


def _next_after(found: TrialFigures) -> int:
    """Return the number below that of the first attempt that still runs; without one the last number of all."""
    running = (number for number, state in zip(found.number, found.state, strict=True) if state == TrialState.RUNNING)
    first = next(running, None)
    return first - 1 if first is not None else max(found.number, default=-1)


def _unless_running(found: TrialFigures, sums: Any) -> list[float | None]:
    return [
        None if state == TrialState.RUNNING else round(value, 6) for state, value in zip(found.state, sums, strict=True)
    ]


def _windows(
    found: TrialFigures, metric: str, limits: Mapping[str, float], front: Mapping[str, Any]
) -> list[Shown | None]:
    """Return what each trial showed that may stand on a front, limits aside; None for the others.

    Where a job was resumed on another device or version, only trials of the front's origin count.
    """
    of = found.figures
    places = [
        place
        for place, (state, tok_per_j, latency_ms) in enumerate(
            zip(found.state, of["tok_per_j"], of[metric], strict=True)
        )
        if state in _MEASURED and tok_per_j is not None and latency_ms is not None
    ]
    origin = _origin(found, places, front)
    places = [place for place in places if of["origin"][place] == origin]
    num_windows = Counter(found.point[place] for place in places)
    windows: list[Shown | None] = [None] * len(found.number)
    for place in places:
        is_repeated = num_windows[found.point[place]] > 1
        if is_repeated or of["cut_by"][place] is None:
            windows[place] = Shown(
                point=found.point[place],
                tok_per_j=of["tok_per_j"][place],
                latency_ms=of[metric][place],
                is_inside=found.state[place] == TrialState.COMPLETE,
                repeat=_repeat(found, place, limits) if is_repeated else None,
            )
    return windows


def _origin(found: TrialFigures, places: Sequence[int], front: Mapping[str, Any]) -> str | None:
    """Return what the windows of the front's points share; without one it is that of the newest."""
    on_front = {point["trial"] for point in front["points"]}
    of_front = (place for place in places if found.number[place] in on_front)
    place = next(of_front, places[-1] if places else None)
    return None if place is None else found.figures["origin"][place]


def _repeat(found: TrialFigures, place: int, limits: Mapping[str, float]) -> Repeat:
    of = found.figures
    shares = tuple(_share(of[name][place], bound_ms) for name, bound_ms in limits.items())
    return Repeat(
        session=found.session[place] or found.reused_from[place] or "unknown",
        shares=shares,
        is_out=found.state[place] != TrialState.COMPLETE and not any(share > 1 for share in shares),
        is_cut=of["cut_by"][place] is not None,
    )


def _share(latency_ms: float | None, bound_ms: float) -> float:
    """Return a latency over its bound; one without samples counts as missed by the whole bound, as in a verdict."""
    return 2.0 if latency_ms is None else latency_ms / bound_ms


def _front_point(point: Mapping[str, Any]) -> dict[str, Any]:
    tok_per_j, latency_ms = point["tok_per_j"], point["latency_ms"]
    return {
        "trial": point["trial"],
        "tok_per_j": tok_per_j["value"],
        "tok_per_j_low": tok_per_j["low"],
        "tok_per_j_high": tok_per_j["high"],
        "latency_ms": latency_ms["value"],
        "latency_low_ms": latency_ms["low"],
        "latency_high_ms": latency_ms["high"],
        "output_tok_s": point["output_tok_s"]["value"],
        **{name: point[name] for name in _OF_A_POINT},
    }
