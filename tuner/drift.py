"""A baseline measured again and again, and what its drift does to the figures between. Pure.

The drift is a straight line through the logarithms of the baseline's figures: a share per unit of time, the same for
every point. The unit is the caller's. Interpolating between neighbouring baselines would follow any course, but
would hand the noise of two single windows on to the points between them and leave no residual to tell how large that
noise is. A line uses all baselines, and what it does not fit shows as uncertainty. Knows nothing of temperatures, nor
of why a baseline drifts.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tuner.measurement import Estimate, mean_estimate

#: The baseline is measured again after so many points.
BASELINE_EVERY = 6
#: A block whose baseline changed by a larger share cannot be mended by a line.
LARGEST_CHANGE = 0.05

T = TypeVar("T")


def interleaved(
    points: Sequence[T],
    baseline: T,
    *,
    every: int = BASELINE_EVERY,
    rng: random.Random,
    group_of: Callable[[T], Hashable] | None = None,
) -> tuple[T, ...]:
    """Return the points in random order, with the baseline first, last and after every `every` of them.

    Points of one group, as those that one launch of a server will do for, stay together. Raises ValueError unless
    `every` is at least 1.
    """
    if every < 1:
        raise ValueError(f"every is {every}; give 1 or more")
    shuffled = rng.sample(points, len(points))
    if group_of is not None:
        places: dict[Hashable, int] = {}
        for point in shuffled:
            places.setdefault(group_of(point), len(places))
        shuffled.sort(key=lambda point: places[group_of(point)])
    order = [baseline]
    for first in range(0, len(shuffled), every):
        order += [*shuffled[first : first + every], baseline]
    return tuple(order)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineDrifted:
    """A block that is refused: its baseline changed by more than LARGEST_CHANGE. Measure it anew in shorter blocks."""

    #: Highest over lowest figure of the baseline, less 1.
    change_share: float
    reason: str = "baseline_drifted"

    @property
    def detail(self) -> str:
        """The same in words."""
        return f"the baseline changed by {self.change_share:.1%} within the block, {LARGEST_CHANGE:.0%} is allowed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How the baseline of one block drifted."""

    #: The instant whose conditions corrected figures belong to: the mean of the baseline's times, where the line is
    #: known best. It scales all points of the block alike.
    reference: float
    #: The baseline's figure at the reference: its geometric mean.
    level: float
    #: Change of the logarithm of a figure per unit of time.
    log_slope: float
    #: Half width of the slope's 95 % interval; None with two baselines, which any line fits.
    half_width: float | None

    @classmethod
    def fit(cls, times: Sequence[float], values: Sequence[float]) -> Drift | BaselineDrifted:
        """Fit the figures of one block's baseline by least squares, or refuse the block.

        Any change counts towards LARGEST_CHANGE, also one that comes and goes, which no line would show. Raises
        ValueError unless there are two baselines or more, at different times, with finite figures above 0.
        """
        if len(times) != len(values) or len(set(times)) < 2:
            raise ValueError(f"times are {times}; give one for each baseline and at least two different ones")
        if not all(0 < value < math.inf for value in values):
            raise ValueError(f"baselines are {values}; leave out those without a finite figure above 0")
        change_share = max(values) / min(values) - 1
        if change_share > LARGEST_CHANGE:
            return BaselineDrifted(change_share=change_share)
        logs = [math.log(value) for value in values]
        slope, intercept = statistics.linear_regression(times, logs)
        residuals = [log - intercept - slope * time for time, log in zip(times, logs, strict=True)]
        return cls(
            reference=statistics.fmean(times),
            level=math.exp(statistics.fmean(logs)),
            log_slope=slope,
            half_width=_slope_half_width(times, residuals),
        )

    def factor(self, time: float) -> float:
        """Return by what a figure at this instant is multiplied through the drift, against the reference."""
        return math.exp(self.log_slope * (time - self.reference))

    def corrected(self, time: float, figure: Estimate) -> Estimate:
        """Divide the drift out of a figure measured around an instant, and widen its interval by what the fit leaves.

        The two errors are independent, so half widths add in quadrature. Without an interval of the figure or of the
        slope the result has none.
        """
        factor = self.factor(time)
        value = figure.value / factor
        if self.half_width is None:
            return Estimate(value)
        share = math.expm1(self.half_width * abs(time - self.reference))
        low = None if figure.low is None else value - math.hypot(value - figure.low / factor, value * share)
        high = None if figure.high is None else value + math.hypot(figure.high / factor - value, value * share)
        return Estimate(value, low, high)


def _slope_half_width(times: Sequence[float], residuals: Sequence[float]) -> float | None:
    """Return t x s / sqrt(sum of squared distances in time), s from the residuals with n - 2 degrees of freedom."""
    degrees = len(times) - 2
    if degrees < 1:
        return None
    mean = statistics.fmean(times)
    variance = math.fsum(residual**2 for residual in residuals) / degrees
    return _student_t(degrees) * math.sqrt(variance / math.fsum((time - mean) ** 2 for time in times))


def _student_t(degrees: int) -> float:
    """Return the 97.5 % quantile: the half width that `mean_estimate` gives samples whose mean has standard error 1."""
    count = degrees + 1
    far = math.sqrt(count * (count - 1) / 2)
    half_width = mean_estimate([far, -far, *[0.0] * (count - 2)]).high
    return math.inf if half_width is None else half_width
