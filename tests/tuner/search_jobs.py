"""Jobs for tests of the search: spaces with a trade-off, a made-up server to measure them, and a run to the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from tests.db.factories import START, make_trial
from tests.tuner.factories import make_request, make_space, measured
from tuner.measurement import Measurement
from tuner.objectives import verdict
from tuner.point import OperatingPoint
from tuner.request import Budget, KnobValue, Limit, TuneRequest
from tuner.search import Measure, Proposal, Search
from tuner.space import SearchSpace
from tuner.trial import Trial, TrialState

#: 5 x 3 points with a trade-off: larger batches give more tokens per joule and take longer.
SPACE = make_space(max_batch=(8, 1, 2, 4, 16), precision=("fp32", "bf16", "int8"))
SMALL = make_space(max_batch=(8, 16), precision=("fp32", "int8"))
#: A space whose lists change from one night to the next.
NIGHT = make_space(max_batch=(8, 16, 32), precision=("fp32", "int8"))
CHANGED: dict[str, dict[str, tuple[KnobValue, ...]]] = {
    "added": {"max_batch": (8, 16, 32, 64), "precision": ("fp32", "int8")},
    "removed": {"max_batch": (16, 32), "precision": ("fp32", "int8")},
    "reordered": {"max_batch": (32, 16, 8), "precision": ("int8", "fp32")},
    "replaced": {"max_batch": (7, 9), "precision": ("bf16",)},
    "knob dropped": {"precision": ("fp32", "int8")},
    "knob added": {"max_batch": (8, 16, 32), "precision": ("fp32",), "prefill_chunk": (32, 64)},
}
#: Its limit is missed by large batches.
JOB = make_request(budget=Budget(trials=7), sla=(Limit(metric="ttft_p99_ms", bound_ms=40.0),), seed=3)


def at(max_batch: int, precision: str = "fp32") -> OperatingPoint:
    return OperatingPoint.of({"max_batch": max_batch, "precision": precision})


def show(point: OperatingPoint) -> Measurement:
    """What a made-up server shows at a point."""
    batch = float(point.as_dict().get("max_batch", 8))
    speed = {"fp32": 1.0, "bf16": 1.5, "int8": 2.0}[str(point.as_dict().get("precision", "fp32"))]
    return measured(speed * batch / (batch + 4), 20 + 3 * batch / speed)


def measure_for(request: TuneRequest, show: Callable[[OperatingPoint], Measurement] = show) -> Measure:
    """Measure by `show` and judge by the request's limits, as the bench does: a launch and a minute for each."""

    def measure(proposal: Proposal) -> Trial:
        judged = verdict(request, shown := show(proposal.point))
        return trial_of(proposal, state=judged.state, reason=judged.reason, measurement=shown)

    return measure


def trial_of(proposal: Proposal, **changes: Any) -> Trial:
    """What came of a proposal, in a minute and a launch of its own."""
    number = proposal.number
    fields: dict[str, Any] = {
        "number": number,
        "point": proposal.point,
        "role": proposal.role,
        "session": f"s{number}",
        "started_at": START + timedelta(minutes=number),
        "finished_at": START + timedelta(minutes=number + 1),
        "device_s": 60.0,
        "device_j": 1000.0,
    }
    return make_trial(**(fields | changes))


def fails(proposal: Proposal) -> Trial:
    """Measure nothing."""
    return trial_of(proposal, state=TrialState.FAILED, reason="engine_died", measurement=None)


def run(request: TuneRequest, space: SearchSpace = SPACE, **changes: Any) -> Search:
    """Run a search to its end."""
    search = Search(request, space, **({"measure": measure_for(request)} | changes))
    for _ in search:
        pass
    return search


def points_of(trials: Sequence[Trial]) -> list[OperatingPoint]:
    return [trial.point for trial in trials]
