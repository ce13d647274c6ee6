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
from tuner.request import Budget, Limit, TuneRequest
from tuner.search import Measure, Proposal, Search
from tuner.space import SearchSpace
from tuner.trial import Trial

#: 4 x 3 points with a trade-off: larger batches give more tokens per joule and take longer.
SPACE = make_space(max_batch=(8, 1, 2, 4, 16), precision=("fp32", "bf16", "int8"))
SMALL = make_space(max_batch=(8, 16), precision=("fp32", "int8"))
#: A space whose lists change from one night to the next.
NIGHT = make_space(max_batch=(8, 16, 32), precision=("fp32", "int8"))
#: Its limit is missed by large batches.
JOB = make_request(budget=Budget(trials=7), sla=(Limit(metric="ttft_p99_ms", bound_ms=40.0),), seed=3)


def show(point: OperatingPoint) -> Measurement:
    """What a made-up server shows at a point."""
    batch = float(point.as_dict().get("max_batch", 8))
    speed = {"fp32": 1.0, "bf16": 1.5, "int8": 2.0}[str(point.as_dict().get("precision", "fp32"))]
    return measured(speed * batch / (batch + 4), 20 + 3 * batch / speed)


def measure_for(request: TuneRequest, show: Callable[[OperatingPoint], Measurement] = show) -> Measure:
    """Measure by `show` and judge by the request's limits, as the bench does."""

    def measure(proposal: Proposal) -> Trial:
        number, point = proposal.number, proposal.point
        judged = verdict(request, shown := show(point))
        return make_trial(
            number=number,
            point=point,
            state=judged.state,
            reason=judged.reason,
            measurement=shown,
            started_at=START + timedelta(minutes=number),
            finished_at=START + timedelta(minutes=number + 1),
        )

    return measure


def run(request: TuneRequest, space: SearchSpace = SPACE, **changes: Any) -> Search:
    """Run a search to its end."""
    search = Search(request, space, **({"measure": measure_for(request)} | changes))
    for _ in search:
        pass
    return search


def points_of(trials: Sequence[Trial]) -> list[OperatingPoint]:
    return [trial.point for trial in trials]
