"""A made-up server whose every figure is a formula, for jobs that are to be planned."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.errors import NotEnoughMemory
from tests.db.factories import make_trial
from tests.tuner.factories import make_knob, make_request, measured
from tuner.objectives import verdict
from tuner.pareto import ObjectivePair, hypervolume
from tuner.planner import DEFAULTS, Options, next_points
from tuner.point import OperatingPoint
from tuner.request import Limit, TuneRequest
from tuner.space import SearchSpace
from tuner.trial import Trial, TrialState

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
CLOCKS_MHZ = (800, 1000, 1200, 1400, 1600, 1800, 2000)
#: 112 points; a batch of 8 in bf16 at the highest clock is where a job begins.
SPACE = SearchSpace(
    knobs=(
        make_knob("max_batch", BATCHES, default=8),
        make_knob("precision", ("bf16", "fp8")),
        make_knob("sm_clock_cap_mhz", CLOCKS_MHZ, default=2000, needs_launch=False),
    )
)
#: Eight points in two launches.
SMALL = SearchSpace(
    knobs=(
        make_knob("max_batch", (8, 16)),
        make_knob("sm_clock_cap_mhz", (800, 1200, 1600, 2000), default=2000, needs_launch=False),
    )
)
DEFAULT = SPACE.default_point
LIMIT_MS = 30.0
JOB = make_request(sla=(Limit(metric="tpot_p99_ms", bound_ms=LIMIT_MS),))


def point_of(batch: int = 8, clock: int = 2000, precision: str = "bf16") -> OperatingPoint:
    """A point of SPACE: the default one, or what is changed of it."""
    return OperatingPoint.of({"max_batch": batch, "precision": precision, "sm_clock_cap_mhz": clock})


def place_of(point: OperatingPoint) -> ObjectivePair:
    """Where a point lies: a step reads weights and caches and computes, power rises with the cube of the clock."""
    batch, clock = float(point["max_batch"]), float(point["sm_clock_cap_mhz"]) / 2000
    narrow = 0.55 if point.as_dict().get("precision") == "fp8" else 1.0
    step_ms = 8.0 * narrow + 0.04 * batch + (0.15 * batch * narrow + 3.0) / clock
    power_w = 90.0 + 250.0 * clock**3 * (0.4 + 0.6 * batch / (batch + 20)) + 60.0
    return ObjectivePair(1e3 * batch / step_ms / power_w, 1.1 * step_ms)


def trial_of(request: TuneRequest, point: OperatingPoint, number: int = 0) -> Trial:
    """What a window of the made-up server shows."""
    place = place_of(point)
    shown = measured(place.tok_per_j, place.latency_ms, quality=None)
    judged = verdict(request, shown)
    return make_trial(number=number, point=point, state=judged.state, reason=judged.reason, measurement=shown)


def out_of_memory(request: TuneRequest, point: OperatingPoint, number: int = 0) -> Trial:
    """The same, where a batch above 16 does not fit."""
    if float(point["max_batch"]) <= 16:
        return trial_of(request, point, number)
    return failed(point, number, NotEnoughMemory.kind)


def crashing(request: TuneRequest, point: OperatingPoint, number: int = 0) -> Trial:
    """The same, where a batch above 16 ends the engine, and nobody knows why."""
    if float(point["max_batch"]) <= 16:
        return trial_of(request, point, number)
    return failed(point, number, "engine_died")


def failed(point: OperatingPoint, number: int, reason: str) -> Trial:
    return make_trial(number=number, point=point, state=TrialState.FAILED, reason=reason, measurement=None)


def planned(
    num_trials: int,
    *,
    request: TuneRequest = JOB,
    space: SearchSpace = SPACE,
    options: Options = DEFAULTS,
    measure: Callable[[TuneRequest, OperatingPoint, int], Trial] = trial_of,
    seed: int = 0,
) -> list[Trial]:
    """Measure one planned point after the other; fewer where the planner ends."""
    request = replace(request, seed=seed)
    trials: list[Trial] = []
    while len(trials) < num_trials and (points := next_points(request, space, trials, options=options)):
        trials.append(measure(request, points[0], len(trials)))
    return trials


def share(trials: Sequence[Trial]) -> float:
    """The hypervolume that trials found, of all that the space has."""
    best = hypervolume([place_of(point) for point in SPACE.points()], LIMIT_MS)
    found = [place_of(trial.point) for trial in trials if trial.state is TrialState.COMPLETE]
    return hypervolume(found, LIMIT_MS) / best


def num_launches(trials: Sequence[Trial]) -> int:
    """How often the engine was launched: whenever a launch knob changed."""
    launches = [(trial.point["max_batch"], trial.point["precision"]) for trial in trials]
    return 1 + sum(one != other for one, other in itertools.pairwise(launches))
