"""What cannot matter: points that would repeat a measured one, and points that cannot work. No statistics.

What never bound is as good as any larger value of it. A batch size that was never reached: where at most 60 sequences
ran at once, 128 and 256 are the same server, and at a higher clock even fewer run at once. A power cap that held no
clock down: a higher one holds none down either, and at a lower clock less is drawn. A clock cap that was never
reached: a higher one is not either, and under a lower power cap clocks are lower. So far as a window saw: a longer one
may see more, and a warmer board draws a little more.

A point that ran out of memory rules out all that ask for as much or more in every size. A precision that failed the
quality gate fails it at every clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.errors import NotEnoughMemory
from probes.settings import POWER_CAP, SM_CLOCK_CAP
from tuner.evidence import Evidence, Observation
from tuner.grid import Grid
from tuner.physics import CLOCKS
from tuner.point import OperatingPoint
from tuner.request import KnobValue

Flags = NDArray[np.bool_]

#: Knobs that decide what a model's answers are like.
QUALITY_KNOBS = ("precision", "kv_precision")
#: Knobs that ask for more memory the larger they are.
SIZE_KNOBS = ("max_batch", "prefill_chunk", "data_parallel")
BATCH = "max_batch"
#: A clock cap counts as not reached when it is so much above every clock seen. Boards step clocks by 15 MHz, may show
#: one a step below the cap that holds them, and boost a step more or less with temperature. From 750 MHz up it is one.
CLOCK_MARGIN = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """When the larger values of a knob are all the same."""

    knob: str
    #: Of an observation and the knob's values in ascending order: the least value that did not bind. None for none.
    least_free: Callable[[Observation, Sequence[float]], float | None]
    #: It holds at higher values of these knobs as well, and at lower ones of those.
    upwards: tuple[str, ...] = ()
    downwards: tuple[str, ...] = ()


def merged(grid: Grid, observations: Sequence[Observation]) -> Grid:
    """Return the grid with every value that does not bind replaced by the least of its knob that does not.

    They are the same: of several points that have become one only one can be worth a window. Known of a point from one
    that has the same other knobs, or such as a rule takes in. Every point keeps its place.
    """
    chosen = _chosen(grid)
    columns = {knob.name: [point[knob.name] for point in chosen] for knob in grid.space.knobs}
    changed = {}
    for rule in _RULES:
        folded = _folded(grid, columns, rule, observations)
        if folded is not None:
            columns[rule.knob] = changed[rule.knob] = folded
    if not changed:
        return grid
    points = list(grid.points)
    for i, point in enumerate(chosen):
        now = {name: column[i] for name, column in changed.items()}
        if any(point[name] != value for name, value in now.items()):
            points[i] = OperatingPoint.of(point | now)
    return grid.with_points(points)


def one_of_each(grid: Grid, same: Grid) -> Flags:
    """Return which points to choose from: of those that count as one, one in each launch.

    `same` is the grid as `merged`. The others would only crowd out points that differ.
    """
    if same is grid:
        return np.ones(len(grid.points), dtype=np.bool_)
    firsts: dict[tuple[int, OperatingPoint], int] = {}
    for i, point in enumerate(same.points):
        key = (int(grid.launches[i]), point)
        if key not in firsts or point == grid.points[i]:
            firsts[key] = i
    flags = np.zeros(len(grid.points), dtype=np.bool_)
    flags[list(firsts.values())] = True
    return flags


def allowed(grid: Grid, evidence: Evidence) -> Flags:
    """Return which points may work, as far as failures so far tell for certain."""
    names = [knob.name for knob in grid.space.knobs]
    fails = np.zeros(len(grid.points), dtype=np.bool_)
    judged = [name for name in QUALITY_KNOBS if name in names]
    for point in evidence.refused:
        fails |= _agreeing(grid, point, judged)
    sizes = [name for name in SIZE_KNOBS if name in names]
    launched = [knob.name for knob in grid.space.knobs if knob.needs_launch and knob.name not in sizes]
    for point, reason in evidence.failures.items():
        if reason == NotEnoughMemory.kind:
            fails |= _agreeing(grid, point, launched) & _at_least(grid, point, sizes)
    return ~fails


def _roomy_batch(one: Observation, values: Sequence[float]) -> float | None:
    if one.peak_running is None or one.peak_running >= _number(one.point, BATCH):
        return None
    return min(value for value in values if value > one.peak_running)


def _loose_power_cap(one: Observation, values: Sequence[float]) -> float | None:
    return _number(one.point, POWER_CAP) if one.is_power_capped is False else None


def _unreached_clock_cap(one: Observation, values: Sequence[float]) -> float | None:
    if one.highest_clock_mhz is None:
        return None
    reached_mhz = (1 + CLOCK_MARGIN) * one.highest_clock_mhz
    if _number(one.point, SM_CLOCK_CAP) < reached_mhz:
        return None
    return min(value for value in values if value >= reached_mhz)


#: A faster server has fewer running at once; a slower clock draws less; a lower power cap leaves lower clocks.
_RULES = (
    _Rule(knob=BATCH, least_free=_roomy_batch, upwards=(*CLOCKS, POWER_CAP)),
    _Rule(knob=POWER_CAP, least_free=_loose_power_cap, downwards=(SM_CLOCK_CAP,)),
    _Rule(knob=SM_CLOCK_CAP, least_free=_unreached_clock_cap, downwards=(POWER_CAP,)),
)


def _folded(
    grid: Grid, columns: Mapping[str, Sequence[KnobValue]], rule: _Rule, observations: Sequence[Observation]
) -> list[KnobValue] | None:
    """Return a knob's column with values that cannot bind made one; None where nothing is known of it."""
    knob = next((knob for knob in grid.space.knobs if knob.name == rule.knob), None)
    if knob is None or any(isinstance(value, str) for value in knob.values):
        return None
    by_number = {float(value): value for value in knob.values}
    ascending = sorted(by_number)
    known = [
        (grid.index[one.point], least) for one in observations if (least := rule.least_free(one, ascending)) is not None
    ]
    if not known:
        return None
    upwards = [np.array(columns[name], dtype=np.float64) for name in rule.upwards if name in columns]
    downwards = [np.array(columns[name], dtype=np.float64) for name in rule.downwards if name in columns]
    others = [name for name in columns if name not in (rule.knob, *rule.upwards, *rule.downwards)]
    alike = _numbered([columns[name] for name in others], len(grid.points))
    values = np.array(columns[rule.knob], dtype=np.float64)
    for row, least in known:
        holds = alike == alike[row]
        for column in upwards:
            holds &= column >= column[row]
        for column in downwards:
            holds &= column <= column[row]
        values[holds & (values > least)] = least
    return [by_number[float(value)] for value in values]


def _numbered(columns: Sequence[Sequence[KnobValue]], count: int) -> NDArray[np.intp]:
    """Return a number for each of so many rows, the same for rows that have the same values."""
    numbers: dict[tuple[KnobValue, ...], int] = {}
    rows = zip(*columns, strict=True) if columns else ((),) * count
    return np.array([numbers.setdefault(row, len(numbers)) for row in rows], dtype=np.intp)


def _number(point: OperatingPoint, knob: str) -> float:
    return float(point[knob])


def _agreeing(grid: Grid, point: OperatingPoint, names: Sequence[str]) -> Flags:
    """Return which points of the grid have the same values of these knobs."""
    wanted = point.as_dict()
    return np.array([all(chosen[name] == wanted[name] for name in names) for chosen in _chosen(grid)], dtype=np.bool_)


def _at_least(grid: Grid, point: OperatingPoint, sizes: Sequence[str]) -> Flags:
    wanted = point.as_dict()
    return np.array(
        [all(float(chosen[name]) >= float(wanted[name]) for name in sizes) for chosen in _chosen(grid)], dtype=np.bool_
    )


def _chosen(grid: Grid) -> list[dict[str, KnobValue]]:
    return [point.as_dict() for point in grid.points]
