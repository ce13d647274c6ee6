"""What one measured window of a point showed, with 95 % intervals. Pure statistics: numbers in, numbers out.

Percentiles interpolate linearly between order statistics (Hyndman and Fan's type 7). Their intervals are those of
order statistics: the ranks r and s between which the percentile lies with 95 % probability under the binomial
distribution; a side that the sample is too small to bound is None. Intervals of means are Student's t. The interval
of a rate comes from equal slices of the window taken as repeated measurements.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, pairwise

import numpy as np

from engine.load import LoadReport
from engine.request import FinishReason, RequestRecord
from engine.settings import EngineInfo
from probes.device import Reading
from tuner.request import LATENCIES, STATISTICS

CONFIDENCE = 0.95
#: Why a window of an engine that imitates a precision counts for nothing.
EMULATED = "emulated"
#: Slices of a window whose rates are taken as repeats.
NUM_SLICES = 10
#: 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom (any table; scipy.stats.t.ppf gives the same).
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_Z_975 = 1.96

#: A run of figures: 500,000 token times are 4 MB so, and each step over them takes a millisecond.
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
_Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


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
class TaskScore:
    """What a precision scores on one lm-eval task, and what the reference does."""

    task: str
    #: Of which more is better: acc, ...
    metric: str
    score: float
    #: Above 0.
    reference_score: float
    num_documents: int
    #: Documents that were left out because they do not fit into the engine's context.
    num_too_long: int = 0

    @property
    def share(self) -> float:
        """The score over the reference's."""
        return self.score / self.reference_score


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How a precision's output compares with that of a wider one on the job's own prompts.

    What was stored before there were prompts (`num_prompts` 0) is of one fixed text, with fp32 as the reference.
    """

    #: Tokens of the reference's completions whose probability was asked.
    num_tokens: int
    #: Of those tokens.
    perplexity: float
    #: Perplexity over what the reference gives its own completions; 1 is no loss.
    perplexity_ratio: float
    #: Share of positions at which both find the same most likely token, 0 to 1; None where the engine names none.
    top1_agreement: float | None
    #: Mean KL divergence of the reference's next-token distribution from this one's, in nats, over the whole
    #: vocabulary; None where the engine shows no distributions.
    kl: float | None = None
    #: Positions that agreement and divergence are told from, at the ends of so many prompts of the job.
    num_positions: int = 0
    num_prompts: int = 0
    #: The precision that this one is compared with.
    reference: str = "fp32"
    #: What keys and values were stored in.
    kv_precision: str = "auto"
    #: Perplexity on the user's text file, and the tokens of it that were scored; None without one.
    text_perplexity: float | None = None
    num_text_tokens: int = 0
    #: One of each of the job's tasks; empty without any.
    tasks: tuple[TaskScore, ...] = ()
    #: None of what was stored before it was noted.
    measured_at: datetime | None = None
    #: Whether an earlier job measured it.
    is_reused: bool = False


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
    #: The most sequences that ran at once while the window was open: below the batch size, that does not bind. None
    #: where it was not counted.
    peak_running: int | None = None
    #: Why the window ended before its time: the limit it certainly misses, as in `sla:ttft_p99_ms`, or `dominated`.
    #: Its figures are of what it showed until then. None for a whole window.
    cut_by: str | None = None
    #: Gaps between pieces of a stream that carried tokens, where pieces had several: no gap between tokens is known
    #: there, and `itl` has no samples. None where every token came by itself.
    inter_chunk: Distribution | None = None
    #: Output tokens of a piece on average; None likewise.
    tokens_per_chunk: float | None = None
    #: Requests that failed, by kind, as in ("timeout", 3).
    failures: tuple[tuple[str, int], ...] = ()
    #: What is odd about requests that count, by name, as in ("hidden_reasoning", 12).
    remarks: tuple[tuple[str, int], ...] = ()
    #: What the client and the server say of the load; None where nothing lies between engine and load.
    load: LoadReport | None = None
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


def distribution(samples_ms: Sequence[float] | Floats) -> Distribution:
    """Summarise latency samples in milliseconds."""
    if len(samples_ms) == 0:
        return Distribution(count=0)
    ordered = np.sort(np.asarray(samples_ms, dtype=np.float64))
    return Distribution(
        count=len(ordered),
        mean=mean_estimate(ordered),
        p50=percentile_estimate(ordered, 0.50),
        p90=percentile_estimate(ordered, 0.90),
        p95=percentile_estimate(ordered, 0.95),
        p99=percentile_estimate(ordered, 0.99),
    )


def mean_estimate(samples: Sequence[float] | Floats) -> Estimate:
    """Mean with Student's t interval; no interval from one sample."""
    values = np.asarray(samples, dtype=np.float64)
    count = len(values)
    rough = values.mean()
    deviations = values - rough
    mean = float(rough + deviations.mean())  # with what rounding took from a long sum
    if count < 2:
        return Estimate(mean)
    variance = float(np.square(deviations).sum()) / (count - 1)
    half = (_T_975[count - 2] if count - 1 <= len(_T_975) else _Z_975) * math.sqrt(variance / count)
    return Estimate(mean, mean - half, mean + half)


def percentile_estimate(ordered: Floats, share: float) -> Estimate:
    """Percentile of sorted samples with the interval of order statistics; no interval from one sample."""
    count = len(ordered)
    value = _interpolated(ordered, share)
    if count < 2:  # it would bound the p99 from below, with no width
        return Estimate(value)
    low_rank, high_rank = _order_statistic_ranks(count, share)
    return Estimate(
        value,
        None if low_rank is None else min(value, float(ordered[low_rank - 1])),
        None if high_rank is None else max(value, float(ordered[high_rank - 1])),
    )


def slice_rates(times_s: Sequence[float] | Floats, start_s: float, end_s: float) -> list[float]:
    """Events per second in each of NUM_SLICES equal slices of [start_s, end_s), for times within it."""
    times = np.asarray(times_s, dtype=np.float64)
    inner = np.linspace(start_s, end_s, NUM_SLICES + 1)[1:-1]
    before = [0, *(int(np.count_nonzero(times < edge_s)) for edge_s in inner), len(times)]
    return [float(after - count) * NUM_SLICES / (end_s - start_s) for count, after in pairwise(before)]


def _interpolated(ordered: Floats, share: float) -> float:
    """Return what numpy.quantile does, to the last bit, without its sorting what is sorted."""
    whole, part = divmod((len(ordered) - 1) * share, 1.0)
    lower = float(ordered[int(whole)])
    upper = float(ordered[min(int(whole) + 1, len(ordered) - 1)])
    return lower + (upper - lower) * part if part < 0.5 else upper - (upper - lower) * (1 - part)


def _order_statistic_ranks(count: int, share: float) -> tuple[int | None, int | None]:
    """Largest rank r with P(X < r) <= 2.5 % and smallest s with P(X >= s) <= 2.5 %, X ~ Binomial(count, share).

    P(x_(r) > percentile) = P(X < r) and P(x_(s) < percentile) = P(X >= s), so each side errs with at most 2.5 %.
    """
    tail = (1 - CONFIDENCE) / 2
    first, cumulative = _binomial_cumulative(count, share)
    below = np.nonzero(cumulative <= tail)[0]  # P(X <= k) <= tail: rank k + 1 is safe
    low = first + int(below[-1]) + 1 if len(below) else None
    enough = np.nonzero(cumulative >= 1 - tail)[0]  # P(X <= k) >= 1 - tail: rank k + 1 is safe
    high = first + int(enough[0]) + 1 if len(enough) else None
    return low, (high if high is not None and high <= count else None)


def _binomial_cumulative(count: int, share: float) -> tuple[int, Floats]:
    """P(X <= k) for X ~ Binomial(count, share) from a first k on, which is returned with it, to where it is 1.

    Left out is what lies further from the mean than 12 standard deviations and 60: by Bernstein's inequality less
    than 1e-30. So half a million samples cost some thousand terms, and their sum is the 1 to scale them by.
    """
    reach = 12 * math.sqrt(count * share * (1 - share)) + 60
    first = max(0, math.floor(count * share - reach))
    k = np.arange(first + 1, min(count, math.ceil(count * share + reach)) + 1)
    log_ratios = np.log((count - k + 1) / k) + (math.log(share) - math.log1p(-share))  # of P(X = k) to P(X = k - 1)
    log_terms = np.concatenate([[0.0], np.cumsum(log_ratios)])
    terms = np.exp(log_terms - log_terms.max())
    cumulative: Floats = np.cumsum(terms) / terms.sum()
    return first, cumulative


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
    does. Requests that ended in error count as failed and give no latency. Tokens that a server counted and never
    showed count when the first that it showed does. Where pieces of streams had several tokens, the gaps between
    pieces are told apart from the gaps between tokens, which are not known.
    """
    start_s, end_s = reading.start_s, reading.end_s
    seen = [r for r in records if r.token_times_s and r.token_times_s[-1] >= start_s]  # the others give no sample
    token_times_s = _token_times_s(seen)
    is_inside = (start_s <= token_times_s) & (token_times_s < end_s)
    num_tokens = int(np.count_nonzero(is_inside)) + sum(
        r.num_hidden_tokens for r in seen if start_s <= r.token_times_s[0] < end_s
    )
    served = [r for r in seen if r.finish_reason is not FinishReason.ERROR]
    ended = [r for r in seen if r.token_times_s[-1] < end_s]
    finished = [r for r in ended if r.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)]
    rate = _rate_estimate(token_times_s[is_inside], start_s, end_s, num_tokens)
    chunks = _chunks(served, start_s, end_s)
    energy_j = _usable_energy_j(reading)
    tok_per_j = None if energy_j is None or num_tokens == 0 else _scaled(rate, (end_s - start_s) / energy_j)
    return Measurement(
        window_s=end_s - start_s,
        warmup_s=warmup_s,
        output_tokens=num_tokens,
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
            [1e3 * s for r in served if (s := r.ttft_s) is not None and start_s <= r.token_times_s[0] < end_s]
        ),
        tpot=distribution([1e3 * s for r in finished if (s := r.tpot_s) is not None]),
        itl=distribution(_gaps_ms(seen, token_times_s, is_inside) if chunks is None else ()),
        e2e=distribution([1e3 * s for r in finished if (s := r.e2e_s) is not None]),
        reading=reading,
        engine=engine,
        inter_chunk=None if chunks is None else chunks.gaps_ms,
        tokens_per_chunk=None if chunks is None else chunks.tokens_per_chunk,
        failures=_counted((r.error or "").partition(":")[0] for r in records if r.finish_reason is FinishReason.ERROR),
        remarks=_counted(note for r in finished for note in r.notes),
        reasons=(*reading.reasons, *((EMULATED,) if engine.is_emulated else ())),
    )


def _usable_energy_j(reading: Reading) -> float | None:
    """Return the energy to divide by: valid, finite and above 0."""
    energy_j = reading.energy_j if reading.is_valid else None
    return energy_j if energy_j is not None and math.isfinite(energy_j) and energy_j > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunks:
    gaps_ms: Distribution
    tokens_per_chunk: float


def _chunks(served: Sequence[RequestRecord], start_s: float, end_s: float) -> _Chunks | None:
    """Return what pieces with several tokens show of a window; None where every token came by itself."""
    streams = [(r.chunk_times_s, r.token_times_s) for r in served if r.chunk_times_s]
    if all(len(chunks) == len(tokens) for chunks, tokens in streams):
        return None
    gaps_ms = [
        1e3 * (late_s - early_s)
        for chunks, _ in streams
        for early_s, late_s in pairwise(chunks)
        if start_s <= late_s < end_s
    ]
    num_chunks = sum(len(chunks) for chunks, _ in streams)
    num_tokens = sum(len(tokens) for _, tokens in streams)
    return _Chunks(gaps_ms=distribution(gaps_ms), tokens_per_chunk=num_tokens / num_chunks)


def _counted(names: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Return names with how often they came, the most frequent first."""
    return tuple(Counter(names).most_common())


def _rate_estimate(times_s: Floats, start_s: float, end_s: float, num_tokens: int) -> Estimate:
    """Return the tokens a second; tokens without a time of their own are in the value alone."""
    spread = mean_estimate(slice_rates(times_s, start_s, end_s))
    low = None if spread.low is None else max(0.0, spread.low)  # there are no fewer than no tokens
    value = num_tokens / (end_s - start_s)
    return Estimate(value, low, None if spread.high is None else max(value, spread.high))


def _token_times_s(records: Sequence[RequestRecord]) -> Floats:
    """Return the token times of all records, one after the other."""
    count = sum(len(record.token_times_s) for record in records)
    return np.fromiter(chain.from_iterable(record.token_times_s for record in records), np.float64, count)


def _gaps_ms(records: Sequence[RequestRecord], token_times_s: Floats, is_inside: _Flags) -> Floats:
    """Return the gaps before those tokens inside the window that are not the first of a request, failed ones aside.

    Each record has tokens.
    """
    lengths = [len(record.token_times_s) for record in records]
    is_served = np.array([record.finish_reason is not FinishReason.ERROR for record in records], dtype=np.bool_)
    is_later = np.repeat(is_served, lengths)
    is_later[np.cumsum([0, *lengths])[:-1]] = False
    gaps_ms: Floats = 1e3 * np.diff(token_times_s)
    return gaps_ms[(is_later & is_inside)[1:]]


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
