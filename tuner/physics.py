"""A small physical model of a served step: bytes, arithmetic, f V^2. Fitted anew to a job's trials, never trusted.

A step reads the weights once and each running sequence's keys and values, computes for each sequence, and costs
something fixed; what depends on the clock is divided by it. As many sequences run at once as may, or as many as arrive
while one is served (Little's law); where more would arrive than may run, they queue. Energy is power that flows all
the time, plus energy per byte, plus energy per operation that grows with the square of the voltage (CMOS: P = a f V^2
+ leakage), and voltage about with the clock. Each part is known up to a factor; the factors are 0 or more and found by
least squares on relative errors, drawn to equal shares. So the model needs no data sheet and says something sensible
from the first trial on. Knows nothing of caches, graphs, kernels or bursts: `tuner.surrogate` learns what it gets
wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probes.settings import CPU_CLOCK_CAP, SM_CLOCK_CAP
from tuner.point import OperatingPoint
from tuner.request import KnobValue, WorkloadSpec
from tuner.workload import trace_of

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

#: Bits of a number in memory. A word that is missing here counts as 16.
BITS = {"fp32": 32.0, "bf16": 16.0, "fp16": 16.0, "fp8": 8.0, "int8": 8.0, "int4": 4.0, "nvfp4": 4.5, "mxfp4": 4.25}
#: Knobs that are clocks; the first of them that a job searches is the clock.
CLOCKS = (SM_CLOCK_CAP, CPU_CLOCK_CAP)
#: How far a part's share may lie from an equal one, and a figure from the model, as standard deviations.
SHARE_DEVIATION = 1.0
FIGURE_DEVIATION = 0.05
#: How long a queue counts as at most.
_LONGEST_QUEUE = 20.0
#: Sequences that run at once on average, at least.
_LEAST_RUNNING = 0.1
TOK_PER_J = "tok_per_j"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a workload asks for on average."""

    prompt_tokens: float
    output_tokens: float
    #: Infinite where requests are kept in flight instead.
    requests_per_s: float
    concurrency: float | None

    @classmethod
    def of(cls, workload: WorkloadSpec) -> Demand:
        """Take the means of ranges or of the trace. Raises InvalidRequest for a trace that cannot be read."""
        if workload.trace_file is not None:
            trace = trace_of(workload)
            return cls(
                prompt_tokens=float(np.mean(trace.prompt_tokens)),
                output_tokens=float(np.mean(trace.output_tokens)),
                requests_per_s=len(trace.offsets_s) / (trace.period_s * workload.time_scale),
                concurrency=None,
            )
        return cls(
            prompt_tokens=sum(workload.prompt_tokens) / 2,
            output_tokens=sum(workload.output_tokens) / 2,
            requests_per_s=np.inf if workload.rate_per_s is None else workload.rate_per_s,
            concurrency=workload.concurrency,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What points ask of a machine, in relative units; an entry a point."""

    #: Sequences that a replica may run at once, and output tokens a second that come to it.
    max_batch: Array
    arriving_tok_s: Array
    #: Bits of a weight and of a cached number, over how many devices they are spread.
    weight_bits: Array
    kv_bits: Array
    #: Clock as a share of the highest that is tried.
    clock: Array
    #: Tokens of a prompt that one step may compute, and steps that a prompt takes.
    chunk: Array
    num_chunks: Array

    @classmethod
    def of(cls, points: Sequence[OperatingPoint], workload: WorkloadSpec, highest: Mapping[str, float]) -> Work:
        """Read the work of points. `highest` gives the largest value of each knob that is a number."""
        chosen = [point.as_dict() for point in points]
        demand = Demand.of(workload)
        devices = _numbers(chosen, "tensor_parallel") * _numbers(chosen, "pipeline_parallel")
        replicas = _numbers(chosen, "data_parallel")
        in_flight = np.inf if demand.concurrency is None else demand.concurrency / replicas
        chunk = np.minimum(_numbers(chosen, "prefill_chunk", demand.prompt_tokens), demand.prompt_tokens)
        clock = next((name for name in CLOCKS if name in highest), None)
        return cls(
            max_batch=np.minimum(_numbers(chosen, "max_batch", 8.0), in_flight),
            arriving_tok_s=demand.requests_per_s * demand.output_tokens / replicas,
            weight_bits=_bits(chosen, "precision") / devices,
            kv_bits=_bits(chosen, "kv_precision") / devices,
            clock=np.ones(len(points)) if clock is None else _numbers(chosen, clock, highest[clock]) / highest[clock],
            chunk=chunk,
            num_chunks=np.ceil(demand.prompt_tokens / chunk),
        )

    def at(self, rows: Indices) -> Work:
        """Return the work of some of the points."""
        return Work(**{field.name: getattr(self, field.name)[rows] for field in dataclasses.fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalModel:
    """The model with the factors that fit a job's trials best; each array holds those of one figure's parts."""

    step: Array
    tok_per_j: Array
    latencies: Mapping[str, Array]

    @classmethod
    def fit(
        cls, work: Work, *, log_step_ms: Array, log_tok_per_j: Array, log_latencies: Mapping[str, Array]
    ) -> PhysicalModel:
        """Fit what was measured at the points of `work`.

        `log_step_ms` is the logarithm of the time between two tokens of a sequence, `log_latencies` those of other
        latencies by name, each in any unit.
        """
        step_ms = np.exp(log_step_ms)
        batch = _running(work, step_ms)
        return cls(
            step=_factors(_step_parts(work, batch), step_ms),
            tok_per_j=_factors(_energy_parts(work, batch, step_ms), np.exp(-log_tok_per_j)),
            latencies={
                name: _factors(_latency_parts(work, batch, step_ms), np.exp(logs))
                for name, logs in log_latencies.items()
            },
        )

    def means(self, work: Work) -> dict[str, Array]:
        """Return the logarithms of the figures at the points of `work`, by the names given to `fit`."""
        batch = _agreed_batch(work, self.step)
        step_ms = _sum(_step_parts(work, batch), self.step)
        latencies = _latency_parts(work, batch, step_ms)
        means = {name: np.log(_sum(latencies, factors)) for name, factors in self.latencies.items()}
        return {TOK_PER_J: -np.log(_sum(_energy_parts(work, batch, step_ms), self.tok_per_j)), **means}


def _numbers(chosen: Sequence[Mapping[str, KnobValue]], name: str, default: float = 1.0) -> Array:
    return np.array([float(one.get(name, default)) for one in chosen], dtype=np.float64)


def _bits(chosen: Sequence[Mapping[str, KnobValue]], name: str) -> Array:
    return np.array([BITS.get(str(one.get(name)), 16.0) for one in chosen], dtype=np.float64)


def _running(work: Work, step_ms: Array) -> Array:
    """Return the sequences that run at once: all that may, or as many as arrive while one is served."""
    return np.minimum(work.max_batch, np.maximum(work.arriving_tok_s * step_ms / 1e3, _LEAST_RUNNING))


def _agreed_batch(work: Work, factors: Array) -> Array:
    """Return the batch that arrivals and speed agree on: as many run as arrive during a step of so many.

    A step grows with its batch along a line, so there is one such batch, or none where more arrive than can be served.
    """
    fixed_ms = _step_parts(work, np.zeros(len(work.clock))) @ factors
    each_ms = _step_parts(work, np.ones(len(work.clock))) @ factors - fixed_ms
    is_open = np.isfinite(work.arriving_tok_s)
    arriving = np.where(is_open, work.arriving_tok_s, 0.0) / 1e3
    idle = 1.0 - arriving * each_ms
    is_served = is_open & (idle > 0)
    agreed = np.where(is_served, arriving * fixed_ms / np.where(is_served, idle, 1.0), np.inf)
    return np.minimum(np.minimum(work.max_batch, 1e6), np.maximum(agreed, _LEAST_RUNNING))


def _step_parts(work: Work, batch: Array) -> Array:
    """Return the parts of a step's time: weights, cache, arithmetic by width and count, fixed by clock and as such."""
    one = np.ones(len(batch))
    narrow = work.weight_bits / 16
    parts = [work.weight_bits, batch * work.kv_bits, batch * narrow / work.clock, batch / work.clock, one / work.clock]
    return np.stack([*parts, one], axis=1)


def _latency_parts(work: Work, batch: Array, step_ms: Array) -> Array:
    """Return the parts of a step, of one with a whole chunk, of a prompt's chunks, and of waiting for a place."""
    narrow = work.weight_bits / 16
    busy = np.minimum(work.arriving_tok_s * step_ms / 1e3 / work.max_batch, 1.0 - 1.0 / _LONGEST_QUEUE)
    queued = np.where(np.isfinite(work.arriving_tok_s), busy / (1.0 - busy), 0.0)
    parts = [
        work.chunk * narrow / work.clock,
        work.chunk / work.clock,
        work.num_chunks * step_ms,
        batch * work.num_chunks * work.chunk / work.clock,
        queued * step_ms,
    ]
    return np.concatenate([_step_parts(work, batch), np.stack(parts, axis=1)], axis=1)


def _energy_parts(work: Work, batch: Array, step_ms: Array) -> Array:
    """Return the parts of a token's joules: of time, of bytes and of operations, each at low and at high voltage."""
    narrow = work.weight_bits / 16
    square = work.clock**2
    parts = [step_ms, step_ms * work.clock * square, work.weight_bits, batch * work.kv_bits]
    parts += [batch * narrow, batch * narrow * square]
    return np.stack(parts, axis=1) / batch[:, None]


def _factors(parts: Array, figures: Array) -> Array:
    """Find factors of 0 or more so that figures are about parts @ factors, errors relative to the figures."""
    from scipy.optimize import nnls  # takes long to load, and the service need not wait for it at its start

    scale = float(np.exp(np.mean(np.log(figures))))
    used = np.any(parts > 0, axis=0)
    usual = np.array([float(np.mean(column[column > 0])) if any(column > 0) else 1.0 for column in parts.T])
    equal = np.where(used, scale / (used.sum() * usual), 0.0)
    rows = parts * equal / figures[:, None] / FIGURE_DEVIATION
    drawn = np.eye(parts.shape[1]) / SHARE_DEVIATION
    wanted = np.concatenate([np.full(len(figures), 1.0 / FIGURE_DEVIATION), drawn.sum(axis=1)])
    shares, _ = nnls(np.concatenate([rows, drawn]), wanted)
    factors: Array = equal * shares
    return factors


def _sum(parts: Array, factors: Array) -> Array:
    total: Array = np.maximum(parts @ factors, 1e-12)
    return total
