"""Wattfront's own choice of the next points: what trials and physics say, weighed against device time.

Trials become evidence, evidence surrogates, surrogates an expected gain per second, the best of which is measured next.
Nothing is kept between two questions: the same trials and seed give the same answer, so that a resumed job goes on as
an undisturbed one would. Knows nothing of Optuna or of how points are measured.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from tuner.acquisition import Candidates, Costs, Staircase, best_block
from tuner.evidence import Evidence, Observation
from tuner.grid import Grid
from tuner.knobs import launch_s
from tuner.occupancy import filled_places
from tuner.physics import CLOCKS, TOK_PER_J, PhysicalModel
from tuner.point import OperatingPoint
from tuner.pruning import allowed, merged, one_of_each
from tuner.request import TuneRequest
from tuner.space import SearchSpace
from tuner.surrogate import Surrogate, one_thread
from tuner.trial import Trial, TrialState

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

#: A limit's figure counts up to about this far from its bound, as a logarithm: beyond, how far it is teaches nothing of
#: where the bound is met, and a latency that grows a hundredfold would drown what a surrogate knows of it.
_LIMIT_REACH = 0.5
#: Without a limit on the latency axis the front is wanted up to this factor over the slowest point inside the limits.
_REFERENCE_FACTOR = 1.5
#: How much of the budget may go into points that differ in one knob only from the default, and which clocks those
#: have: about where tokens per joule have been found to be best (arXiv 2605.11999: 50 to 80 % of the highest clock).
OPENING_SHARE = 0.25
CLOCK_SHARES = (0.75, 0.6)
#: How sure a failure's label is, as a standard deviation.
_LABEL_DEVIATION = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Parts of the choice that can be switched off, to see what each is worth."""

    #: Live points are chosen for the launch that is open, and launches for all that they let measure.
    has_blocks: bool = True
    #: The physical model is the surrogates' mean.
    has_physics: bool = True
    #: Points that cannot matter are left out.
    has_pruning: bool = True
    #: What the surrogates are given in place of the physical model's logarithms over the grid.
    distorted: Callable[[Array], Array] = lambda means: means


DEFAULTS = Options()


def next_points(
    request: TuneRequest,
    space: SearchSpace,
    trials: Sequence[Trial],
    *,
    count: int = 1,
    pending: Sequence[OperatingPoint] = (),
    options: Options = DEFAULTS,
) -> tuple[OperatingPoint, ...]:
    """Return the next points to measure, the most promising first; fewer than `count` where no more can matter.

    `pending` are being measured: they count as if they had shown what is expected of them. The default point comes
    first, so that every job has the reference that gains are told against.
    """
    tried = {trial.point for trial in trials} | set(pending)
    begin = [point for point in opening(request, space, trials) if point not in tried]
    if begin and options.has_pruning:
        begin = _not_ruled_out(begin, request, space, trials)
    chosen = begin[:count]
    busy = [*pending, *chosen]
    while len(chosen) < count:
        with one_thread():
            block = _Question(request, space, trials, busy, options).answer()
        if not block:
            break
        chosen += block[: count - len(chosen)]
        busy += block[: count - len(busy) + len(pending)]
    return tuple(chosen[:count])


def opening(request: TuneRequest, space: SearchSpace, trials: Sequence[Trial]) -> tuple[OperatingPoint, ...]:
    """Return the points that every search begins with: the default, and it with one knob changed, for some changes.

    First come lower clocks, if the default is inside the limits: its launch is open, and what a static clock alone is
    worth is what people ask. Then each other word: its effect is seen by itself there. Among points that differ in
    more, a surrogate may take it for another's, and never come back to what it holds to be bad. In a small budget
    there is room for few of them.
    """
    default = space.default_point
    is_feasible = any(trial.point == default and trial.state is TrialState.COMPLETE for trial in trials)
    changed = _slowed(space) if is_feasible else []
    changed += [
        OperatingPoint.of({**default.as_dict(), knob.name: word})
        for knob in space.knobs
        if isinstance(knob.values[0], str)
        for word in knob.values
        if word != default[knob.name]
    ]
    return (default, *changed[: int(OPENING_SHARE * request.budget.trials)])


def _slowed(space: SearchSpace) -> list[OperatingPoint]:
    """Return the default point at the clocks nearest to CLOCK_SHARES of the highest."""
    knob = next((knob for knob in space.knobs if knob.name in CLOCKS), None)
    if knob is None:
        return []
    clocks = [float(value) for value in knob.values]
    nearest = [knob.values[int(np.argmin(np.abs(np.array(clocks) - share * max(clocks))))] for share in CLOCK_SHARES]
    default = space.default_point
    return [
        OperatingPoint.of({**default.as_dict(), knob.name: value})
        for value in dict.fromkeys(nearest)
        if value != default[knob.name]
    ]


def _not_ruled_out(
    points: Sequence[OperatingPoint], request: TuneRequest, space: SearchSpace, trials: Sequence[Trial]
) -> list[OperatingPoint]:
    """Return the points that failures so far leave."""
    evidence = Evidence.of(request, [trial for trial in trials if trial.point in space])
    return list(itertools.compress(points, allowed(Grid(space, request.workload, tuple(points)), evidence)))


class _Question:
    """One question: all that is known, laid out over the grid."""

    def __init__(
        self,
        request: TuneRequest,
        space: SearchSpace,
        trials: Sequence[Trial],
        busy: Sequence[OperatingPoint],
        options: Options,
    ) -> None:
        self._request = request
        self._options = options
        self._busy = list(busy)
        self._seed = f"{request.seed}/{len(trials)}/{len(busy)}"
        self._evidence = Evidence.of(request, [trial for trial in trials if trial.point in space])
        self._tried = self._evidence.tried | set(busy)
        self._grid = Grid.of(space, request.workload, seed=self._seed, near=sorted(self._tried, key=str))
        self._last = busy[-1] if busy else _last_launched(trials)

    def answer(self) -> list[OperatingPoint]:
        """Return a block of points for one launch; empty when nothing is left that could matter."""
        grid, evidence = self._grid, self._evidence
        same = merged(grid, evidence.observations) if self._options.has_pruning else grid
        tried = {same.points[grid.index[point]] for point in self._tried}
        open_ones = np.array([point not in tried for point in same.points])
        if self._options.has_pruning:
            open_ones &= allowed(grid, evidence) & one_of_each(grid, same)
        left = np.nonzero(open_ones)[0]
        if len(left) == 0:
            return []
        if not evidence.observations:
            return [self._guess(left)]
        model = _Model(self._request, same, grid, evidence, self._busy, self._options)
        front, candidates = model.front(), model.candidates(left)
        costs = Costs(
            launch_s=launch_s(self._request.engine) if self._options.has_blocks else 0.0,
            window_s=self._request.window.warmup_s + self._request.window.window_s,
        )
        last = None if self._last is None else grid.index.get(self._last)
        open_launch = None if last is None else int(grid.launches[last])
        block = best_block(front, candidates, costs, open_launch=open_launch, seed=abs(self._request.seed))
        return [grid.points[left[i]] for i in block]

    def _guess(self, left: Indices) -> OperatingPoint:
        """Return any point, rather one that failures so far do not speak against."""
        odds = _soundness(self._grid, self._evidence)[left]
        draw = random.Random(self._seed)
        chances = [draw.random() * float(chance) for chance in odds]
        best = int(left[int(np.argmax(chances))])
        return self._grid.points[best]


def _last_launched(trials: Sequence[Trial]) -> OperatingPoint | None:
    """Return the point whose engine is still open: the last of this job's own, unless it left none behind."""
    last = next((trial for trial in reversed(trials) if trial.reused_from is None), None)
    return None if last is None or last.measurement is None else last.point


class _Model:
    """Surrogates of everything that matters, over one grid."""

    def __init__(
        self,
        request: TuneRequest,
        same: Grid,
        grid: Grid,
        evidence: Evidence,
        busy: Sequence[OperatingPoint],
        options: Options,
    ) -> None:
        self._request = request
        self._grid = grid
        self._evidence = evidence
        observations = evidence.observations
        self._places = filled_places(grid, same, observations)
        self._rows = np.array([grid.index[one.point] for one in observations])
        means = _physical_means(request, same, self._rows, observations) if options.has_physics else {}
        self._means = {name: options.distorted(mean) for name, mean in means.items()}
        self._busy = np.array([grid.index[point] for point in busy], dtype=np.intp)
        self._height = self._surrogate(TOK_PER_J, [one.log_tok_per_j for one in observations])
        self._latency = self._surrogate(request.latency_metric, [one.log_latency_ms for one in observations])

    def front(self) -> Staircase:
        """Return the front so far, with what is expected of points that are being measured."""
        inside = [one for one in self._evidence.observations if one.is_feasible]
        heights = np.exp([one.log_tok_per_j for one in inside])
        latencies = np.exp([one.log_latency_ms for one in inside])
        if len(self._busy):
            heights = np.append(heights, np.exp(self._expected(self._height, TOK_PER_J, self._busy)))
            latencies = np.append(
                latencies, np.exp(self._expected(self._latency, self._request.latency_metric, self._busy))
            )
        return Staircase.of(heights, latencies, self._reference_ms())

    def candidates(self, left: Indices) -> Candidates:
        """Return what is held possible of these points."""
        metric = self._request.latency_metric
        heights = self._height.predict(self._places[left], mean=self._mean(TOK_PER_J, left))
        latencies = self._latency.predict(self._places[left], mean=self._mean(metric, left))

        def sample(chosen: Indices, normals: Array, others: Array) -> tuple[Array, Array]:
            rows = left[chosen]
            return (
                self._height.sample(self._places[rows], normals, mean=self._mean(TOK_PER_J, rows)),
                self._latency.sample(self._places[rows], others, mean=self._mean(metric, rows)),
            )

        return Candidates(
            log_height_mean=heights.mean,
            log_height_deviation=heights.deviation,
            log_latency_mean=latencies.mean,
            log_latency_deviation=latencies.deviation,
            likelihood=self._likelihood(left),
            launches=self._grid.launches[left],
            sample=sample,
        )

    def _likelihood(self, left: Indices) -> Array:
        likelihood = _soundness(self._grid, self._evidence)[left]
        for limit in self._request.sla:
            name = f"sla:{limit.metric}"
            known = [i for i, one in enumerate(self._evidence.observations) if name in one.log_limits]
            if limit.metric == self._request.latency_metric or not known:
                continue
            figures = np.array([self._evidence.observations[i].log_limits[name] for i in known])
            surrogate = self._surrogate(limit.metric, _near(figures), self._rows[known])
            predicted = surrogate.predict(self._places[left], mean=self._mean(limit.metric, left))
            likelihood = likelihood * ndtr(-predicted.mean / predicted.deviation)
        return likelihood

    def _surrogate(self, name: str, figures: Sequence[float] | Array, rows: Indices | None = None) -> Surrogate:
        """Fit a figure at these rows of the grid, or at those of all observations."""
        rows = self._rows if rows is None else rows
        values = np.asarray(figures, dtype=np.float64)
        surrogate = Surrogate.fit(self._places[rows], values, self._grid.is_word, mean=self._mean(name, rows))
        if len(self._busy) == 0:
            return surrogate
        return surrogate.believing(self._places[self._busy], mean=self._mean(name, self._busy))

    def _mean(self, name: str, rows: Indices) -> Array | None:
        mean = self._means.get(name)
        return None if mean is None else mean[rows]

    def _expected(self, surrogate: Surrogate, name: str, rows: Indices) -> Array:
        return surrogate.predict(self._places[rows], mean=self._mean(name, rows)).mean

    def _reference_ms(self) -> float:
        """Return the latency up to which the front counts: the limit on it, or a little beyond what is known."""
        metric = self._request.latency_metric
        bounds = [limit.bound_ms for limit in self._request.sla if limit.metric == metric]
        if bounds:
            return bounds[0]
        inside = [one for one in self._evidence.observations if one.is_feasible] or self._evidence.observations
        return _REFERENCE_FACTOR * math.exp(max(one.log_latency_ms for one in inside))


def _physical_means(
    request: TuneRequest, grid: Grid, rows: Indices, observations: Sequence[Observation]
) -> Mapping[str, Array]:
    """Return the physical model's figures over the grid by name; none until a step was timed."""
    known = [i for i, one in enumerate(observations) if one.log_step_ms is not None]
    if not known:
        return {}
    seen = [observations[i] for i in known]
    latencies = {request.latency_metric: np.array([one.log_latency_ms for one in seen])}
    for metric in (limit.metric for limit in request.sla):
        figures = [one.log_limits.get(f"sla:{metric}") for one in seen]
        if metric not in latencies and None not in figures:
            latencies[metric] = np.array(figures, dtype=np.float64)
    model = PhysicalModel.fit(
        grid.work.at(rows[known]),
        log_step_ms=np.array([one.log_step_ms for one in seen], dtype=np.float64),
        log_tok_per_j=np.array([one.log_tok_per_j for one in seen]),
        log_latencies=latencies,
    )
    means = model.means(grid.work)
    return {name: mean if name in (TOK_PER_J, request.latency_metric) else _near(mean) for name, mean in means.items()}


def _near(log_limits: Array) -> Array:
    """Return logarithms of figures over their bound with those far from 0 drawn in."""
    near: Array = _LIMIT_REACH * np.tanh(log_limits / _LIMIT_REACH)
    return near


def _soundness(grid: Grid, evidence: Evidence) -> Array:
    """Return how likely each point is to give figures at all."""
    if not evidence.failures:
        return np.ones(len(grid.points))
    points = [*(one.point for one in evidence.observations), *evidence.failures]
    rows = np.array([grid.index[point] for point in points])
    labels = np.repeat([1.0, -1.0], [len(evidence.observations), len(evidence.failures)])
    surrogate = Surrogate.fit(grid.places[rows], labels, grid.is_word)
    predicted = surrogate.predict(grid.places)
    odds: Array = ndtr(predicted.mean / np.hypot(predicted.deviation, _LABEL_DEVIATION))
    return odds
