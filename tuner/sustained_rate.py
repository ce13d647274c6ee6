"""The highest rate of arrivals that keeps every limit, as an interval that is valid under noise. Pure.

Rates are bracketed by factors and then bisected. At each rate windows are run until the exact binomial test
(`tuner.sequential.judge`, with its design effect) says that all limits hold, or that one is missed, or until the rate
has had its windows: then it is undecided, and stays between the two ends. The result is the highest rate shown to
hold with the lowest shown not to hold.

Error control. That a rate holds is said when every limit is shown to be met, which is wrong with no more than the
chance of one test (an intersection-union test); that it does not, when one limit is shown to be missed or the queue to
grow, for which the chance is divided by the number of limits and one. Either is divided by the looks that a search can
take in all, `max_rates` times `max_windows`, so that by the union bound all statements together are wrong with a chance
of ALPHA at most, whichever rates the search chose on the way and whenever it stopped. Nothing is said on a single
window's word.

What that rests on: latencies only rise with the rate; windows of one rate differ by chance alone; requests of
different slices of a window are as good as independent, or windows differ by as much as their slices say.
A queue that grew through a whole window is told apart: where it does so in every window, the rate does not hold
whatever its latencies were so far. Knows nothing of engines: the windows are the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tuner.errors import InvalidRequest
from tuner.request import MAX_RATE_PER_S, Limit
from tuner.sequential import Count, ShareVerdict, design_effect, is_testable, judge

#: Chance that anything a search says of any rate is wrong.
ALPHA = 0.05
#: Nothing is said of a rate after fewer windows.
FEWEST_WINDOWS = 2
#: Chance that a queue which does not grow seems to by the rule of `tuner.window`: three standard deviations of Poisson
#: arrivals, or 2.1 where service is as irregular as they are; one-sided.
OVERLOAD_CHANCE = 0.02
#: A bracket grows by this factor.
BRACKET_FACTOR = 2.0

_ALLOWED = {"p50": 0.50, "p90": 0.10, "p95": 0.05, "p99": 0.01}


class RateState(StrEnum):
    """What is known of a rate."""

    HOLDS = "holds"
    #: One limit is missed, or the queue only grows.
    MISSED = "missed"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateWindow:
    """One window at a rate."""

    #: By metric, the requests of each slice of the window with those over the bound.
    slices: Mapping[str, tuple[Count, ...]]
    #: Whether requests came faster than they were served.
    is_overloaded: bool = False
    #: Why it says nothing, though it was run; None where it does.
    unusable: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateTried:
    """What all windows of a rate showed."""

    rate_per_s: float
    state: RateState
    num_windows: int
    #: Requests counted, of the limit with the fewest.
    num_requests: int
    #: Share of requests over the bound, by metric.
    over: Mapping[str, float]
    #: The limit that is missed, `overloaded`, or why windows were of no use; None where there is nothing to tell.
    because: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainedRate:
    """The answer of a search."""

    #: Highest rate shown to hold; None when none was.
    holds_per_s: float | None
    #: Lowest rate shown not to hold; None when none was.
    missed_per_s: float | None
    #: In the order in which they were first tried.
    tried: tuple[RateTried, ...]
    #: `resolved`: the ends are as close as asked. `undecided`: what lies between would take more windows. Else the
    #: bound of the rule that ended the search: `max_rates`, `lowest_rate`, `highest_rate`.
    ended_because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRule:
    """How a search goes about."""

    #: Requests a second that are tried first.
    first_per_s: float
    #: The search ends when its ends, or each end and the nearest undecided rate, are so close: as a share.
    tolerance: float = 0.05
    #: Rates that are tried at most, and windows at each.
    max_rates: int = 16
    max_windows: int = 4
    #: Between these.
    lowest_per_s: float = 0.01
    highest_per_s: float = MAX_RATE_PER_S

    def __post_init__(self) -> None:
        """Refuse what no search could be made of, naming field and value."""
        if not self.lowest_per_s <= self.first_per_s <= self.highest_per_s:
            allowed = f"give requests a second from {self.lowest_per_s:g} to {self.highest_per_s:g}"
            raise InvalidRequest("first_per_s", self.first_per_s, allowed)
        if not 0.001 <= self.tolerance <= 1:
            raise InvalidRequest("tolerance", self.tolerance, "give a share from 0.001 to 1, as in 0.05")
        if not 2 <= self.max_rates <= 100:
            raise InvalidRequest("max_rates", self.max_rates, "give 2 to 100")
        if not FEWEST_WINDOWS <= self.max_windows <= 100:
            raise InvalidRequest("max_windows", self.max_windows, f"give {FEWEST_WINDOWS} to 100")


#: Runs a window at a rate; the number is the window's at that rate, from 0.
MeasureWindow = Callable[[float, int], RateWindow]


def find_sustained_rate(
    measure: MeasureWindow,
    limits: Sequence[Limit],
    rule: RateRule,
    *,
    on_window: Callable[[RateTried], None] = lambda tried: None,
) -> SustainedRate:
    """Search the highest rate that keeps every limit; `on_window` hears what is known after each window.

    Raises InvalidRequest without limits, or for one that is no percentile of something each request gives one of.
    """
    _require_testable(limits)
    search = _Search(rule)
    while (rate_per_s := search.next_rate()) is not None:
        search.note(_decide(measure, limits, rule, rate_per_s, on_window))
    return search.result()


def _require_testable(limits: Sequence[Limit]) -> None:
    if not limits:
        raise InvalidRequest("sla", [], "a highest rate needs a limit, as in ttft_p99_ms<=2000")
    for limit in limits:
        if not is_testable(limit.metric):
            remedy = (
                "give percentiles of ttft, tpot or e2e: of those each request gives one, so that they can be tested"
            )
            raise InvalidRequest(f"sla.{limit.metric}", limit.bound_ms, remedy)


def _decide(
    measure: MeasureWindow,
    limits: Sequence[Limit],
    rule: RateRule,
    rate_per_s: float,
    on_window: Callable[[RateTried], None],
) -> RateTried:
    """Run windows at a rate until something can be said of it, or it has had all of its own."""
    seen = _Seen(limits=limits, alpha=ALPHA / (rule.max_rates * rule.max_windows))
    tried = seen.tried(rate_per_s)
    for number in range(rule.max_windows):
        seen.windows.append(measure(rate_per_s, number))
        tried = seen.tried(rate_per_s)
        on_window(tried)
        if tried.state is not RateState.UNDECIDED:
            break
    return tried


@dataclass(slots=True, kw_only=True)
class _Seen:
    """The windows of one rate."""

    limits: Sequence[Limit]
    #: Chance of a wrong statement at one look.
    alpha: float
    windows: list[RateWindow] = field(default_factory=list)

    def tried(self, rate_per_s: float) -> RateTried:
        """Judge what there is."""
        usable = [window for window in self.windows if window.unusable is None]
        totals = {limit.metric: _total(_joined(usable, limit.metric)) for limit in self.limits}
        state, because = self._judged(usable) if len(usable) >= FEWEST_WINDOWS else (RateState.UNDECIDED, None)
        unusable = [window.unusable for window in self.windows if window.unusable is not None]
        return RateTried(
            rate_per_s=rate_per_s,
            state=state,
            num_windows=len(self.windows),
            num_requests=min(total.num for total in totals.values()),
            over={metric: total.num_over / total.num for metric, total in totals.items() if total.num},
            because=because or (unusable[-1] if unusable else None),
        )

    def _judged(self, usable: Sequence[RateWindow]) -> tuple[RateState, str | None]:
        alpha_missed = self.alpha / (len(self.limits) + 1)  # the queue is one more reason to say so
        is_overloaded = all(window.is_overloaded for window in usable)
        if is_overloaded and OVERLOAD_CHANCE ** len(usable) <= alpha_missed:
            return RateState.MISSED, "overloaded"
        for limit in self.limits:
            if self._verdict(usable, limit, alpha_missed) is ShareVerdict.MISSED:
                return RateState.MISSED, limit.metric
        if any(window.is_overloaded for window in usable):
            return RateState.UNDECIDED, "overloaded"
        if all(self._verdict(usable, limit, self.alpha) is ShareVerdict.MET for limit in self.limits):
            return RateState.HOLDS, None
        return RateState.UNDECIDED, None

    def _verdict(self, usable: Sequence[RateWindow], limit: Limit, alpha: float) -> ShareVerdict:
        """Judge one limit; where windows differ by more than their slices say, each window counts as a slice."""
        slices = _joined(usable, limit.metric)
        windows = [_total(window.slices.get(limit.metric, ())) for window in usable]
        clusters = max((slices, windows), key=design_effect)
        return judge(clusters, _ALLOWED[limit.metric.rsplit("_", 2)[1]], alpha)


def _joined(windows: Sequence[RateWindow], metric: str) -> list[Count]:
    return [one for window in windows for one in window.slices.get(metric, ())]


def _total(counts: Sequence[Count]) -> Count:
    return Count(sum(one.num for one in counts), sum(one.num_over for one in counts))


class _Search:
    """Which rate comes next, by what is known of those before."""

    def __init__(self, rule: RateRule) -> None:
        self._rule = rule
        self._tried: list[RateTried] = []
        self._ended_because = "resolved"

    def note(self, tried: RateTried) -> None:
        """Take what a rate showed."""
        self._tried.append(tried)

    def next_rate(self) -> float | None:
        """Return the rate to try next; None when the search is over."""
        if not self._tried:
            return self._rule.first_per_s
        if len(self._tried) >= self._rule.max_rates:
            self._ended_because = "max_rates"
            return None
        if self._missed is None:
            return self._beyond(self._rule.highest_per_s, max, BRACKET_FACTOR)
        if self._holds is None:
            return self._beyond(self._rule.lowest_per_s, min, 1 / BRACKET_FACTOR)
        return self._within(self._holds, self._missed)

    def result(self) -> SustainedRate:
        """Return the two ends."""
        return SustainedRate(
            holds_per_s=self._holds,
            missed_per_s=self._missed,
            tried=tuple(self._tried),
            ended_because=self._ended_because,
        )

    @property
    def _holds(self) -> float | None:
        return max(self._rates(RateState.HOLDS), default=None)

    @property
    def _missed(self) -> float | None:
        return min(self._rates(RateState.MISSED), default=None)

    def _rates(self, state: RateState) -> list[float]:
        return [tried.rate_per_s for tried in self._tried if tried.state is state]

    def _beyond(self, end_per_s: float, furthest: Callable[[list[float]], float], factor: float) -> float | None:
        """Return a rate further out than all so far; None where the last was the end of what may be tried."""
        last = furthest([tried.rate_per_s for tried in self._tried])
        if last == end_per_s:
            self._ended_because = "highest_rate" if factor > 1 else "lowest_rate"
            return None
        return min(last * factor, end_per_s) if factor > 1 else max(last * factor, end_per_s)

    def _within(self, holds: float, missed: float) -> float | None:
        """Return the middle of the wider gap beside the undecided rates; None when both are narrow."""
        between = [rate for rate in self._rates(RateState.UNDECIDED) if holds < rate < missed]
        gaps = (
            [
                (
                    holds,
                    min(between),
                ),
                (max(between), missed),
            ]
            if between
            else [(holds, missed)]
        )
        low, high = max(gaps, key=lambda gap: gap[1] / gap[0])
        if high / low > 1 + self._rule.tolerance:
            return math.sqrt(low * high)
        self._ended_because = "undecided" if between else "resolved"
        return None
