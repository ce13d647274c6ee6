"""A search space as arrays: places in the unit cube, launches, work. Knows nothing of what trials showed.

Numbers are spread by their logarithm where they span a factor of four or more, as batch sizes do, clocks and narrow
ranges evenly. A word's place only says which word it is.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from tuner.physics import CLOCKS, Work
from tuner.point import OperatingPoint
from tuner.request import WorkloadSpec
from tuner.space import Knob, SearchSpace

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Indices = NDArray[np.intp]

#: Spaces up to this size are looked at whole; of a larger one so many points are drawn at a time.
MAX_POINTS = 8192
#: From this span on a number's logarithm is what counts.
_LOGARITHMIC_SPAN = 4.0


@dataclass(frozen=True)  # no slots: the arrays are made when they are asked for
class Grid:
    """Points of a space, with all arrays in their order."""

    space: SearchSpace
    workload: WorkloadSpec
    points: tuple[OperatingPoint, ...]

    @classmethod
    def of(cls, space: SearchSpace, workload: WorkloadSpec, *, seed: str, near: Iterable[OperatingPoint] = ()) -> Grid:
        """Lay out a space: all of it, or of a large one a draw, with `near` and all that is one step away from it."""
        if space.size <= MAX_POINTS:
            return _whole(space, workload)
        draw = random.Random(seed)
        drawn = (
            OperatingPoint.of({knob.name: draw.choice(knob.values) for knob in space.knobs}) for _ in range(MAX_POINTS)
        )
        known = list(near)
        steps = itertools.chain.from_iterable(_steps_from(point, space) for point in known)
        return cls(space, workload, tuple(dict.fromkeys([*known, *steps, *drawn])))

    def with_points(self, points: Sequence[OperatingPoint]) -> Grid:
        """Return the same space with other points."""
        return Grid(self.space, self.workload, tuple(points))

    @cached_property
    def places(self) -> Array:
        """Places in the unit cube: points x knobs."""
        return np.stack([_places(knob, self.points) for knob in self.space.knobs], axis=1)

    @cached_property
    def is_word(self) -> Flags:
        """Which knobs are words."""
        return np.array([isinstance(knob.values[0], str) for knob in self.space.knobs])

    @cached_property
    def launches(self) -> Indices:
        """A number for each point; those that share one share a launch."""
        return self.numbered([knob.name for knob in self.space.knobs if knob.needs_launch])

    @cached_property
    def work(self) -> Work:
        """What each point asks of the machine."""
        highest = {
            knob.name: max(float(value) for value in knob.values)
            for knob in self.space.knobs
            if not isinstance(knob.values[0], str)
        }
        return Work.of(self.points, self.workload, highest)

    @cached_property
    def index(self) -> dict[OperatingPoint, int]:
        """Where each point stands."""
        return {point: i for i, point in enumerate(self.points)}

    def scaled(self, name: str, numbers: Array) -> Array:
        """Return the places of numbers of a knob, those between its values included."""
        return _scaled(next(knob for knob in self.space.knobs if knob.name == name), numbers)

    def numbered(self, names: Sequence[str]) -> Indices:
        """Return a number for each point, the same for points that have the same values of these knobs."""
        numbers: dict[tuple[object, ...], int] = {}
        keys = (tuple(chosen[name] for name in names) for chosen in (point.as_dict() for point in self.points))
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.intp)


@lru_cache(maxsize=2)
def _whole(space: SearchSpace, workload: WorkloadSpec) -> Grid:
    """Lay out all of a space; asked for before every trial of a job, so kept."""
    return Grid(space, workload, tuple(space.points()))


def _places(knob: Knob, points: Sequence[OperatingPoint]) -> Array:
    values = [point[knob.name] for point in points]
    if isinstance(knob.values[0], str):
        ranks = {value: float(i) for i, value in enumerate(knob.values)}
        return np.array([ranks[value] for value in values])
    return _scaled(knob, np.array([float(value) for value in values]))


def _scaled(knob: Knob, numbers: Array) -> Array:
    lowest, highest = min(map(float, knob.values)), max(map(float, knob.values))
    if knob.name not in CLOCKS and lowest > 0 and highest >= _LOGARITHMIC_SPAN * lowest:
        numbers, lowest, highest = np.log(numbers), float(np.log(lowest)), float(np.log(highest))
    return (numbers - lowest) / ((highest - lowest) or 1.0)


def _steps_from(point: OperatingPoint, space: SearchSpace) -> Iterable[OperatingPoint]:
    """Yield the points that differ from one by the next value of one knob, words by any value."""
    chosen = point.as_dict()
    for knob in space.knobs:
        values = knob.values if isinstance(knob.values[0], str) else tuple(sorted(knob.values, key=float))
        at = values.index(chosen[knob.name])
        others = values if isinstance(knob.values[0], str) else values[max(0, at - 1) : at + 2]
        yield from (OperatingPoint.of({**chosen, knob.name: value}) for value in others if value != chosen[knob.name])
