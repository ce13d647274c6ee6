"""When a window may end before its time: a limit is certainly missed, or a rival is certainly better. Pure.

**Limits.** "The p99 is inside its bound" says that at most 1 % of requests are over it, so each request that ended is
a draw, and the exact binomial tail says how unlikely so many over the bound would be if the limit held: LoadGen's rule
for latency percentiles (MLPerf inference policies, "early stopping"). The count is looked at again and again as it
grows; the chance to be wrong, ALPHA a limit, is spent on the looks so that all of them together keep it. Requests that
ran side by side share their steps, so that they are late together: the count is divided by its design effect, the
variance between slices of the window over that of independent draws (Rao and Scott 1992; Korn and Graubard 1998).
A bound counts as exceeded from MARGIN above it on: one run of a point differs from the next by about that much.

**Rivals.** A point is out of the running when a rival is faster than its percentile can be, by that same test, and
needs less energy than its tokens per joule so far can turn out to be.

Only latencies of which each request gives one (TTFT, TPOT, end to end) are tested, and only percentiles: the gaps
between tokens of one request depend on each other, and a mean is no share. Such limits are left to the whole window.
TTFT is counted when its request has ended, since only then its arrival is known. So a window that ends early has seen
more of the short requests than of the long ones; that is true of whole windows, too, but less so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine.request import FinishReason, RequestRecord
from tuner.pareto import ObjectivePair
from tuner.request import Limit

#: Chance of a wrong verdict, over all looks, for each limit and each side of it.
ALPHA = 0.005
#: A window's requests are counted in so many slices of its nominal length ...
SLICES = 32
#: ... and first looked at after so many of them: fewer say nothing of how requests hang together.
FIRST_SLICES = 4
#: ... and after so many requests: two of two may have been late for one reason.
FEWEST = 10
#: The next look comes when the count has grown by this factor.
GROWTH = 1.2
#: By how much a run of a point may differ from the next one without being another point: as a share.
MARGIN = 0.02
#: Looks at rivals, as shares of the nominal window; later where looks at power are late.
RIVAL_LOOKS = (0.25, 0.5, 0.75)
#: Energy so far comes from looks at power, which may be so far from the meter's (its own cross-check allows as much).
POWER_MARGIN = 0.05
#: So many looks at power are needed, and so many standard errors are allowed for: at 7 degrees of freedom Student's t
#: goes beyond that with a chance of 0.1 %.
NUM_POWER_LOOKS = 8
STANDARD_ERRORS = 5.0

#: `Cut.by` where a rival is better.
DOMINATED = "dominated"

_SHARES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
_PER_REQUEST = ("ttft", "tpot", "e2e")


class ShareVerdict(StrEnum):
    """What a count says of "no more than so large a share is over the bound"."""

    MISSED = "missed"
    MET = "met"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Count:
    """Requests, and how many of them were over a bound."""

    num: int = 0
    num_over: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Why a window ended before its time."""

    #: `sla:METRIC` or `dominated`.
    by: str
    #: The same for people, with numbers.
    detail: str


def is_testable(metric: str) -> bool:
    """Tell whether a latency figure is a percentile of something that each request gives one of."""
    latency, statistic, _ = metric.rsplit("_", 2)
    return latency in _PER_REQUEST and statistic in _SHARES


def latency_ms(record: RequestRecord, metric: str, start_s: float) -> float | None:
    """Return what a request that ended adds to a testable figure; None where a summary would not count it either.

    `start_s` is the window's start: a first token before it gives no TTFT.
    """
    if record.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH) or not record.token_times_s:
        return None
    latency = metric.partition("_")[0]
    if latency == "ttft" and record.token_times_s[0] < start_s:
        return None
    seconds: float | None = getattr(record, f"{latency}_s")
    return None if seconds is None else 1e3 * seconds


def chance_of_at_least(num_over: int, num: int, share: float) -> float:
    """P(X >= num_over) for X ~ Binomial(num, share); 1 where that is no more than expected."""
    if num_over <= num * share:
        return 1.0
    log_term = math.lgamma(num + 1) - math.lgamma(num_over + 1) - math.lgamma(num - num_over + 1)
    term = math.exp(log_term + num_over * math.log(share) + (num - num_over) * math.log1p(-share))
    total = 0.0
    for k in range(num_over, num + 1):  # above the mean the terms fall
        total += term
        term *= (num - k) / (k + 1) * share / (1 - share)
        if term < 1e-17 * total:
            break
    return min(1.0, total)


def design_effect(slices: Sequence[Count]) -> float:
    """Return by how much the share over the bound varies more between slices than independent requests would; >= 1.

    The ratio estimator's variance over the binomial one. Where all slices agree to the full, each counts as one draw.
    """
    seen = [one for one in slices if one.num]
    num, num_over = sum(one.num for one in seen), sum(one.num_over for one in seen)
    if num_over == 0 or len(seen) < 2:
        return 1.0
    if num_over == num:
        return num / len(seen)
    share = num_over / num
    spread = sum((one.num_over - share * one.num) ** 2 for one in seen) * len(seen) / (len(seen) - 1)
    return max(1.0, spread / (num * share * (1 - share)))


def judge(slices: Sequence[Count], allowed: float, alpha: float) -> ShareVerdict:
    """Judge whether the share over the bound is certainly above or certainly not above what is allowed.

    Each side errs with `alpha` at most. Counts are divided by their design effect and rounded against a verdict.
    """
    effect = design_effect(slices)
    num, num_over = sum(one.num for one in slices), sum(one.num_over for one in slices)
    if chance_of_at_least(math.floor(num_over / effect), math.ceil(num / effect), allowed) <= alpha:
        return ShareVerdict.MISSED
    met, few = math.ceil(num_over / effect), math.floor(num / effect)
    if chance_of_at_least(few - met, few, 1 - allowed) <= alpha:
        return ShareVerdict.MET
    return ShareVerdict.OPEN


class LimitTest:
    """One limit over one window: counts requests as they end, and looks at the count as it grows."""

    def __init__(self, limit: Limit, *, window_s: float, alpha: float = ALPHA) -> None:
        """Test a limit on a percentile of a per-request latency over a window of that nominal length."""
        self.limit = limit
        self.verdict = ShareVerdict.OPEN
        self._samples = _Samples(limit.metric, window_s / SLICES)
        self._first_s = FIRST_SLICES * window_s / SLICES
        self._alpha = alpha
        self._num_looks = 0
        self._next_num = FEWEST

    @property
    def count(self) -> Count:
        """Requests so far, and those over the bound by more than MARGIN."""
        return self._samples.total(self._bound_ms)

    def add(self, elapsed_s: float, value_ms: float) -> None:
        """Count a request that ended so long after the window's start."""
        self._samples.add(elapsed_s, value_ms)

    def look(self, elapsed_s: float) -> ShareVerdict:
        """Judge anew where the count has grown enough; a verdict once reached stays."""
        is_due = elapsed_s >= self._first_s and self._samples.num >= self._next_num
        if self.verdict is ShareVerdict.OPEN and is_due:
            self._num_looks += 1
            self._next_num = math.ceil(GROWTH * self._samples.num)
            spent = self._alpha / (self._num_looks * (self._num_looks + 1))  # over all looks they add up to alpha
            self.verdict = judge(self._samples.slices(self._bound_ms), self._samples.allowed, spent)
        return self.verdict

    @property
    def _bound_ms(self) -> float:
        return self.limit.bound_ms * (1 + MARGIN)


class RivalTest:
    """Whether a point is certainly behind one of the places that others reached."""

    def __init__(self, latency_metric: str, rivals: Sequence[ObjectivePair], *, window_s: float) -> None:
        """Hold a window of that nominal length against `rivals`, on a testable figure."""
        self._rivals = rivals
        self._samples = _Samples(latency_metric, window_s / SLICES)
        self._looks_s = [share * window_s for share in RIVAL_LOOKS]
        self._alpha = ALPHA / len(RIVAL_LOOKS)
        self._rates: list[float] = []
        self._powers_w: list[float] = []

    def add(self, elapsed_s: float, value_ms: float) -> None:
        """Count a request that ended so long after the window's start."""
        self._samples.add(elapsed_s, value_ms)

    def add_power(self, tok_s: float, power_w: float) -> None:
        """Take one look at power, and the rate of tokens since the look before."""
        self._rates.append(tok_s)
        self._powers_w.append(power_w)

    def look(self, elapsed_s: float) -> ObjectivePair | None:
        """Return a rival that is certainly better on both axes; None while there is none, and between looks."""
        if not self._looks_s or elapsed_s < self._looks_s[0] or len(self._powers_w) < NUM_POWER_LOOKS:
            return None
        self._looks_s = [due_s for due_s in self._looks_s if due_s > elapsed_s]
        most = self._most_tok_per_j()
        frugal = [rival for rival in self._rivals if rival.tok_per_j > most]
        if not frugal:
            return None
        fastest = min(frugal, key=lambda rival: rival.latency_ms)
        slices = self._samples.slices(fastest.latency_ms * (1 + MARGIN))
        is_slower = judge(slices, self._samples.allowed, self._alpha) is ShareVerdict.MISSED
        return fastest if is_slower else None

    def _most_tok_per_j(self) -> float:
        """Return what tokens per joule can be at most, by what was seen; infinity where power is too unsure to tell."""
        rate, rate_error = _mean_and_error(self._rates)
        power_w, power_error_w = _mean_and_error(self._powers_w)
        least_w = (power_w - STANDARD_ERRORS * power_error_w) * (1 - POWER_MARGIN)
        return (rate + STANDARD_ERRORS * rate_error) / least_w if least_w > 0 else math.inf


class EarlyStop:
    """All that may end one window early; `cut` says whether something has."""

    def __init__(
        self, limits: Sequence[Limit], *, window_s: float, latency_metric: str, rivals: Sequence[ObjectivePair] = ()
    ) -> None:
        """Watch these limits, and these rivals on that latency; what cannot be tested is left out."""
        self._tests = [LimitTest(limit, window_s=window_s) for limit in limits if is_testable(limit.metric)]
        is_rivalled = bool(rivals) and is_testable(latency_metric)
        self._rivals = RivalTest(latency_metric, rivals, window_s=window_s) if is_rivalled else None
        self._latency_metric = latency_metric
        self.cut: Cut | None = None

    @property
    def wants_power(self) -> bool:
        """Whether looks at power are of use."""
        return self._rivals is not None

    def add_power(self, tok_s: float, power_w: float) -> None:
        """Take one look at power, and the rate of tokens since the look before."""
        if self._rivals is not None:
            self._rivals.add_power(tok_s, power_w)

    def observe(self, start_s: float, time_s: float, finished: Sequence[RequestRecord]) -> Cut | None:
        """Take the requests that ended in a step of a window that began at `start_s`; return why it can end, if so."""
        elapsed_s = time_s - start_s
        for record in finished:
            self._add(record, start_s, elapsed_s)
        missed = [test for test in self._tests if finished and test.look(elapsed_s) is ShareVerdict.MISSED]
        if missed:
            count, limit = missed[0].count, missed[0].limit
            bound = f"{limit.bound_ms * (1 + MARGIN):.4g} ms ({MARGIN:.0%} above the limit)"
            told = f"{limit.metric}: cut after {elapsed_s:.3g} s, {count.num_over} of {count.num} requests over {bound}"
            self.cut = Cut(by=f"sla:{limit.metric}", detail=told)
        elif self._rivals is not None and (rival := self._rivals.look(elapsed_s)) is not None:
            place = f"{rival.tok_per_j:.4g} tok/J at {rival.latency_ms:.4g} ms"
            self.cut = Cut(by=DOMINATED, detail=f"cut after {elapsed_s:.3g} s: certainly behind {place}")
        return self.cut

    def _add(self, record: RequestRecord, start_s: float, elapsed_s: float) -> None:
        for test in self._tests:
            if (value_ms := latency_ms(record, test.limit.metric, start_s)) is not None:
                test.add(elapsed_s, value_ms)
        if self._rivals is not None:
            value_ms = latency_ms(record, self._latency_metric, start_s)
            if value_ms is not None:
                self._rivals.add(elapsed_s, value_ms)


class _Samples:
    """The latencies of one window, by the slice in which their requests ended."""

    def __init__(self, metric: str, slice_s: float) -> None:
        self.allowed = 1 - _SHARES[metric.rsplit("_", 2)[1]]
        self.num = 0
        self._slice_s = slice_s
        self._values_ms: dict[int, list[float]] = {}

    def add(self, elapsed_s: float, value_ms: float) -> None:
        self.num += 1
        self._values_ms.setdefault(int(elapsed_s / self._slice_s), []).append(value_ms)

    def slices(self, bound_ms: float) -> list[Count]:
        return [Count(len(values), sum(value > bound_ms for value in values)) for values in self._values_ms.values()]

    def total(self, bound_ms: float) -> Count:
        return Count(self.num, sum(one.num_over for one in self.slices(bound_ms)))


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))
