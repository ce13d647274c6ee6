"""What one measured window of a point showed, with 95 % intervals. Pure statistics: numbers in, numbers out.

Percentiles interpolate linearly between order statistics (Hyndman and Fan's type 7). Their intervals are those of
order statistics: the ranks r and s between which the percentile lies with 95 % probability under the binomial
distribution; a side that the sample is too small to bound is None. Intervals of means are Student's t. The interval
of a rate comes from equal slices of the window taken as repeated measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.request import FinishReason, RequestRecord
from engine.settings import EngineInfo
from probes.device import Reading
from tuner.request import LATENCIES, STATISTICS

CONFIDENCE = 0.95
#: Slices of a window whose rates are taken as repeats.
NUM_SLICES = 10
#: 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom (any table; scipy.stats.t.ppf gives the same).
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_Z_975 = 1.96


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval; a bound that the data cannot give is None."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A latency in milliseconds over `count` samples; the figures are None without samples."""

    count: int
    mean: Estimate | None = None
    p50: Estimate | None = None
    p90: Estimate | None = None
    p95: Estimate | None = None
    p99: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How a precision's output compares with fp32 on the job's own text."""

    num_tokens: int
    perplexity: float
    #: Perplexity over that of fp32; 1 is no loss.
    perplexity_ratio: float
    #: Share of positions at which both find the same most likely token, 0 to 1.
    top1_agreement: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One window. Energy figures are None when the reading has no usable energy, never 0."""

    window_s: float
    warmup_s: float
    output_tokens: int
    prompt_tokens: int
    num_finished: int
    num_failed: int
    num_preemptions: int
    #: Mean sequences running over the window's steps.
    mean_running: float
    output_tok_s: Estimate
    tok_per_j: Estimate | None
    j_per_tok: Estimate | None
    mean_power_w: float | None
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    e2e: Distribution
    reading: Reading
    engine: EngineInfo
    quality: Quality | None = None
    #: The host CPU's energy over the same window beside a GPU's, where it is measured; never added to it.
    host: Reading | None = None
    #: Mean power with the model loaded and no requests, once a job; never subtracted. None when not measured.
    idle_power_w: float | None = None
    #: Version of the device's driver: figures from before and after an update are not compared.
    driver: str | None = None
    #: Why the window must not be used; empty means valid.
    reasons: tuple[str, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Whether the figures may be used."""
        return not self.reasons

    def latency(self, metric: str) -> Estimate | None:
        """Return a latency figure by name, as in `ttft_p99_ms`; None when the window has no sample of it."""
        latency, statistic, _ = metric.rsplit("_", 2)
        if latency not in LATENCIES or statistic not in STATISTICS:
            raise KeyError(metric)
        figure: Estimate | None = getattr(getattr(self, latency), statistic)
        return figure


def distribution(samples_ms: Sequence[float]) -> Distribution:
    """Summarise latency samples in milliseconds."""
    if not samples_ms:
        return Distribution(count=0)
    ordered = np.sort(np.asarray(samples_ms, dtype=np.float64))
    return Distribution(
        count=len(ordered),
        mean=mean_estimate(ordered.tolist()),
        p50=percentile_estimate(ordered, 0.50),
        p90=percentile_estimate(ordered, 0.90),
        p95=percentile_estimate(ordered, 0.95),
        p99=percentile_estimate(ordered, 0.99),
    )


def mean_estimate(samples: Sequence[float]) -> Estimate:
    """Mean with Student's t interval; no interval from one sample."""
    count = len(samples)
    mean = math.fsum(samples) / count
    if count < 2:
        return Estimate(mean)
    variance = math.fsum((x - mean) ** 2 for x in samples) / (count - 1)
    half = (_T_975[count - 2] if count - 1 <= len(_T_975) else _Z_975) * math.sqrt(variance / count)
    return Estimate(mean, mean - half, mean + half)


def percentile_estimate(ordered: np.ndarray[tuple[int], np.dtype[np.float64]], share: float) -> Estimate:
    """Percentile of sorted samples with the interval of order statistics; no interval from one sample."""
    count = len(ordered)
    value = float(np.quantile(ordered, share))
    if count < 2:  # it would bound the p99 from below, with no width
        return Estimate(value)
    low_rank, high_rank = _order_statistic_ranks(count, share)
    return Estimate(
        value,
        None if low_rank is None else min(value, float(ordered[low_rank - 1])),
        None if high_rank is None else max(value, float(ordered[high_rank - 1])),
    )


def slice_rates(times_s: Sequence[float], start_s: float, end_s: float) -> list[float]:
    """Events per second in each of NUM_SLICES equal slices of [start_s, end_s)."""
    counts, _ = np.histogram(np.asarray(times_s), bins=NUM_SLICES, range=(start_s, end_s))
    return [float(count) * NUM_SLICES / (end_s - start_s) for count in counts]


def _order_statistic_ranks(count: int, share: float) -> tuple[int | None, int | None]:
    """Largest rank r with P(X < r) <= 2.5 % and smallest s with P(X >= s) <= 2.5 %, X ~ Binomial(count, share).

    P(x_(r) > percentile) = P(X < r) and P(x_(s) < percentile) = P(X >= s), so each side errs with at most 2.5 %.
    """
    tail = (1 - CONFIDENCE) / 2
    cumulative = np.cumsum(_binomial_pmf(count, share))
    below = np.nonzero(cumulative <= tail)[0]  # P(X <= k) <= tail: rank k + 1 is safe
    low = int(below[-1]) + 1 if len(below) else None
    enough = np.nonzero(cumulative >= 1 - tail)[0]  # P(X <= k) >= 1 - tail: rank k + 1 is safe
    high = int(enough[0]) + 1 if len(enough) else None
    return low, (high if high is not None and high <= count else None)


def _binomial_pmf(count: int, share: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    k = np.arange(count + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])
    log_pmf = (
        log_factorial[count] - log_factorial[k] - log_factorial[count - k]
        + k * math.log(share) + (count - k) * math.log1p(-share)
    )  # fmt: skip
    pmf: np.ndarray[tuple[int], np.dtype[np.float64]] = np.exp(log_pmf)
    return pmf


def summarise(
    records: Sequence[RequestRecord],
    reading: Reading,
    *,
    engine: EngineInfo,
    warmup_s: float,
    mean_running: float,
    prompt_tokens: int,
) -> Measurement:
    """Turn the records of a run and the reading of its window into a Measurement.

    A token counts when its time lies in the window [reading.start_s, reading.end_s). A TTFT counts when the first
    token does, TPOT and end-to-end latency when the request ended (not cancelled) there, an ITL when its later token
    does. Requests that ended in error count as failed and give no latency.
    """
    start_s, end_s = reading.start_s, reading.end_s
    token_times = [t for record in records for t in record.token_times_s if start_s <= t < end_s]
    served = [r for r in records if r.finish_reason is not FinishReason.ERROR]
    ended = [r for r in records if r.token_times_s and start_s <= r.token_times_s[-1] < end_s]
    finished = [r for r in ended if r.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)]
    rate = _rate_estimate(token_times, start_s, end_s)
    energy_j = _usable_energy_j(reading)
    tok_per_j = None if energy_j is None or not token_times else _scaled(rate, (end_s - start_s) / energy_j)
    return Measurement(
        window_s=end_s - start_s,
        warmup_s=warmup_s,
        output_tokens=len(token_times),
        prompt_tokens=prompt_tokens,
        num_finished=len(finished),
        num_failed=sum(1 for r in records if r.finish_reason is FinishReason.ERROR),
        num_preemptions=sum(r.num_preemptions for r in ended),
        mean_running=mean_running,
        output_tok_s=rate,
        tok_per_j=tok_per_j,
        j_per_tok=None if tok_per_j is None else _inverse(tok_per_j),
        mean_power_w=None if energy_j is None else reading.mean_power_w,
        ttft=distribution(
            [1e3 * r.ttft_s for r in served if r.ttft_s is not None and start_s <= r.token_times_s[0] < end_s]
        ),
        tpot=distribution([1e3 * r.tpot_s for r in finished if r.tpot_s is not None]),
        itl=distribution(_gaps_ms(served, start_s, end_s)),
        e2e=distribution([1e3 * r.e2e_s for r in finished if r.e2e_s is not None]),
        reading=reading,
        engine=engine,
        reasons=tuple(reading.reasons),
    )


def _usable_energy_j(reading: Reading) -> float | None:
    """Return the energy to divide by: valid, finite and above 0."""
    energy_j = reading.energy_j if reading.is_valid else None
    return energy_j if energy_j is not None and math.isfinite(energy_j) and energy_j > 0 else None


def _rate_estimate(times_s: Sequence[float], start_s: float, end_s: float) -> Estimate:
    spread = mean_estimate(slice_rates(times_s, start_s, end_s))
    low = None if spread.low is None else max(0.0, spread.low)  # there are no fewer than no tokens
    return Estimate(len(times_s) / (end_s - start_s), low, spread.high)


def _gaps_ms(records: Sequence[RequestRecord], start_s: float, end_s: float) -> list[float]:
    return [
        1e3 * (later - earlier)
        for record in records
        for earlier, later in zip(record.token_times_s, record.token_times_s[1:], strict=False)
        if start_s <= later < end_s
    ]


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    low, high = estimate.low, estimate.high
    return Estimate(
        estimate.value * factor,
        None if low is None else low * factor,
        None if high is None else high * factor,
    )


def _inverse(estimate: Estimate) -> Estimate:
    low, high = estimate.low, estimate.high
    return Estimate(1 / estimate.value, 1 / high if high else None, 1 / low if low else None)
