"""Measured trials as what a fit of a simulated accelerator needs: the mean step, how long it took, what it drew.

A window tells tokens, prompts and the mean number of running requests, but not its steps, so these are worked out: a
running request gets one token a step, but for the steps of all chunks of its prompt except the last. Assumed: lengths
are the means of the workload's, prompts come independently of one another, and those that find no room in the prefill
chunk wait. Requests that come at their own times leave gaps; there the gap between tokens tells what a step takes.
Knows nothing of what is fitted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.errors import InvalidSettings
from engine.settings import EngineSettings, prompt_budget
from engine.simulated.layout import WorkModel
from engine.simulated.machine import MachineLimits
from engine.simulated.shapes import ModelShape
from engine.simulated.work import StepWork
from probes.simulated.accelerators import Accelerator
from probes.simulated.fit import Observation
from tuner.errors import InvalidRequest
from tuner.measurement import Measurement
from tuner.request import TuneRequest, WorkloadSpec
from tuner.space import device_settings_of, settings_of
from tuner.trial import Trial, TrialState
from tuner.workload import trace_of

#: States whose figures hold: a broken limit says nothing against them.
MEASURED = (TrialState.COMPLETE, TrialState.INFEASIBLE)
#: Preempted requests beyond this share of the finished ones: contexts and prompts are not those of the workload.
_MOST_PREEMPTED = 0.05
#: Above so many prompts a step their number is taken to be the same in every step.
_MOST_PROMPTS = 16
#: Where no cap was set and the mean clock is above this share of the highest, the power limit held some kinds of steps
#: at most, and which ones is left to the model; below, the clock was held at about the mean.
_HIGHEST_CLOCK = 0.95
#: Below this share of time at work, the mean clock is not that of the steps.
_ALWAYS_BUSY = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTrials:
    """A job's trials, with the shape of the model that it served."""

    job_id: str
    request: TuneRequest
    shape: ModelShape
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A trial that can be fitted to."""

    job_id: str
    number: int
    observation: Observation
    #: Requests running at once, on average.
    batch: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A trial that cannot, and why."""

    job_id: str
    number: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lengths:
    """Mean tokens of a workload's requests."""

    prompt: float
    output: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """The steps of a window: how many, their kinds with shares that add up to 1, and how long one took."""

    number: float
    mix: tuple[tuple[float, StepWork], ...]
    seconds: float
    #: Share of the window in which there was a step.
    busy: float


def observe(
    jobs: Sequence[JobTrials], accelerator: Accelerator, num_gpus: int
) -> tuple[tuple[Seen, ...], tuple[LeftOut, ...]]:
    """Return the trials that can be fitted to, and those that cannot, in the order given.

    `num_gpus` GPUs of the accelerator's kind are the device. Trials without a measurement are not mentioned.
    """
    limits = MachineLimits(
        num_gpus=num_gpus,
        memory_bytes=accelerator.memory_bytes,
        arithmetics=frozenset(accelerator.flops),
        domain_size=accelerator.domain_size,
    )
    seen: list[Seen] = []
    left_out: list[LeftOut] = []
    for job in jobs:
        for trial in job.trials:
            measurement = trial.measurement
            if measurement is None:
                continue
            try:
                observation = _observation(job, trial, measurement, accelerator, limits)
            except (_Unusable, InvalidSettings, InvalidRequest) as error:
                left_out.append(LeftOut(job_id=job.job_id, number=trial.number, reason=str(error)))
            else:
                batch = measurement.mean_running
                seen.append(Seen(job_id=job.job_id, number=trial.number, observation=observation, batch=batch))
    return tuple(seen), tuple(left_out)


class _Unusable(Exception):
    """Says why a trial tells nothing of a mean step."""


def _observation(
    job: JobTrials, trial: Trial, measurement: Measurement, accelerator: Accelerator, limits: MachineLimits
) -> Observation:
    _require_usable(trial, measurement)
    settings = settings_of(job.request, trial.point, num_gpus=limits.num_gpus)
    if settings.prefill_gpus:
        raise _Unusable("prompts had GPUs of their own: two kinds of steps side by side cannot be told apart")
    # Replicas that share no experts step each by itself: what is seen is one of them, at its share of the load.
    replicas = 1 if settings.expert_parallel else settings.data_parallel
    one = replace(settings, data_parallel=settings.data_parallel // replicas)
    steps = _steps(measurement, job.request.workload, one, WorkModel(job.shape, one, limits), replicas)
    cap_mhz = device_settings_of(trial.point).sm_clock_cap_mhz
    return Observation(
        work=steps.mix[0][1],
        mix=steps.mix,
        seconds=steps.seconds,
        power_w=_busy_power_w(measurement, steps.busy, accelerator, used=settings.num_gpus, there=limits.num_gpus),
        clock_mhz=_clock_mhz(measurement, cap_mhz, steps.busy, accelerator),
    )


def _require_usable(trial: Trial, measurement: Measurement) -> None:
    if trial.state not in MEASURED or not measurement.is_valid:
        raise _Unusable(f"{trial.state.value}: {trial.reason or ', '.join(measurement.reasons)}")
    if not (measurement.output_tokens and measurement.mean_running):
        raise _Unusable("no token came")
    if measurement.num_preemptions > _MOST_PREEMPTED * max(1, measurement.num_finished):
        raise _Unusable(f"{measurement.num_preemptions} requests were preempted and computed anew")


def _steps(
    measurement: Measurement, workload: WorkloadSpec, settings: EngineSettings, work_model: WorkModel, replicas: int
) -> _Steps:
    """Work out a window's steps in one of so many replicas."""
    lengths = _mean_lengths(workload)
    running, num_tokens = measurement.mean_running / replicas, measurement.output_tokens / replicas
    num_prompts = measurement.prompt_tokens / lengths.prompt / replicas
    is_apart = settings.policy == "prefill_first"
    chunk = prompt_budget(
        settings.prefill_chunk * settings.data_parallel,
        settings.max_prefill_fraction,
        num_decodes=0 if is_apart else round(running),
    )
    count_step = _Counter(work_model, lengths, chunk, running)
    if is_apart:
        num_decode_steps = max(1.0, (num_tokens - num_prompts) / running)
        steps = count_step.apart(num_prompts / num_decode_steps)
    else:
        num_decode_steps = num_tokens / running * (1 + (count_step.num_chunks - 1) / lengths.output)
        steps = count_step.together(num_prompts / num_decode_steps)
    whole = sum(share for share, _ in steps)
    number = num_decode_steps * whole
    busy_s = measurement.window_s
    if workload.is_open and measurement.itl.mean is not None:
        busy_s = min(busy_s, num_decode_steps * measurement.itl.mean.value / 1e3)
    return _Steps(
        number=number,
        mix=tuple((share / whole, work) for share, work in steps),
        seconds=busy_s / number,
        busy=busy_s / measurement.window_s,
    )


def _mean_lengths(workload: WorkloadSpec) -> _Lengths:
    if workload.trace_file is not None:
        trace = trace_of(workload)
        return _Lengths(prompt=float(np.mean(trace.prompt_tokens)), output=float(np.mean(trace.output_tokens)))
    return _Lengths(prompt=sum(workload.prompt_tokens) / 2, output=sum(workload.output_tokens) / 2)


class _Counter:
    """Counts the kinds of steps of one steady load."""

    def __init__(self, work_model: WorkModel, lengths: _Lengths, chunk: int, running: float) -> None:
        self._work_model = work_model
        self._running = max(1, round(running))
        self._context = lengths.prompt + lengths.output / 2
        #: Chunks that a prompt is cut into, and how many chunks of this length a step has room for.
        self.num_chunks = max(1, math.ceil(lengths.prompt / chunk))
        self._chunk_tokens = max(1, round(lengths.prompt / self.num_chunks))
        self._chunk_start = round((lengths.prompt - self._chunk_tokens) / 2)
        self._room = max(1, chunk // self._chunk_tokens)

    def together(self, prompts_per_step: float) -> list[tuple[float, StepWork]]:
        """Return share and work of steps that compute prompts beside all decodes, by how many chunks they have."""
        shares = _served(prompts_per_step * self.num_chunks, min(self._room, self._running))
        return [(share, self._step(num_chunks, self._running - num_chunks)) for num_chunks, share in shares]

    def apart(self, prompts_per_step: float) -> list[tuple[float, StepWork]]:
        """Return number and work of the steps per step of decodes, where decodes pause for prompts."""
        steps = [(1.0, self._step(0, self._running))]
        for num_chunks, share in _served(prompts_per_step * self.num_chunks, self._running * self.num_chunks):
            if num_chunks:
                num_steps = math.ceil(num_chunks / self._room)
                steps.append((share * num_steps, self._step(round(num_chunks / num_steps), 0)))
        return steps

    def _step(self, num_chunks: int, num_decodes: int) -> StepWork:
        """Count a step; of chunks of longer prompts, few are the last one, which alone brings a token."""
        context = round(num_decodes * self._context)
        window = self._work_model.shape.window
        return self._work_model.step(
            num_decodes=num_decodes,
            decode_context=context,
            local_context=0 if window is None else min(context, num_decodes * window),
            chunks=[(self._chunk_start, self._chunk_tokens)] * num_chunks,
            num_sampled=num_decodes + round(num_chunks / self.num_chunks),
        )


def _served(mean: float, most: int) -> list[tuple[int, float]]:
    """Return how many of `mean` arrivals a step are served in one, `most` at most, each number with its share.

    Arrivals are Poisson; whoever finds no room waits for the next step. More than `most` are taken to be `most`.
    """
    if mean >= most or mean > _MOST_PROMPTS:
        return [(min(most, round(mean)), 1.0)]
    size = most + math.ceil(mean + 8 * math.sqrt(mean)) + 8
    counts = np.arange(size)
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(counts[1:]))])
    arrivals = np.exp(counts * math.log(mean) - mean - log_factorials) if mean else (counts == 0).astype(float)
    waiting = (counts == 0).astype(float)
    for _ in range(100):
        due = np.convolve(waiting, arrivals)[:size]
        waiting = np.concatenate([[due[: most + 1].sum()], due[most + 1 :], np.zeros(most)])
    shares = np.append(due[:most], due[most:].sum())
    shares /= shares.sum()
    return [(number, float(share)) for number, share in enumerate(shares) if share > 1e-4]


def _busy_power_w(
    measurement: Measurement, busy: float, accelerator: Accelerator, *, used: int, there: int
) -> float | None:
    """Return the mean power of a GPU at work: gaps, and GPUs that no replica is on, idle; None without energy.

    Where the idle power was not measured it is the accelerator's with a model loaded.
    """
    if measurement.mean_power_w is None:
        return None
    measured_w = measurement.idle_power_w
    idle_w = accelerator.idle_loaded_w if measured_w is None else measured_w / there
    all_w = measurement.mean_power_w - idle_w * (there - used)
    power_w = (all_w / used - idle_w * (1 - busy)) / busy
    return power_w if power_w > 0 else None


def _clock_mhz(measurement: Measurement, cap_mhz: int | None, busy: float, accelerator: Accelerator) -> float | None:
    """Return the clock that the steps ran at; None: the highest that the default power limit allows."""
    highest_mhz = accelerator.clocks_mhz[-1]
    clocks_mhz = [one.mean_clock_mhz for one in measurement.reading.conditions if one.mean_clock_mhz is not None]
    clock_mhz: float = min(cap_mhz or highest_mhz, highest_mhz)
    is_capped = clock_mhz < highest_mhz
    if clocks_mhz and busy >= _ALWAYS_BUSY:
        clock_mhz = min(clock_mhz, sum(clocks_mhz) / len(clocks_mhz))
    if not is_capped and clock_mhz >= _HIGHEST_CLOCK * highest_mhz:
        return None
    return float(min(accelerator.clocks_mhz, key=lambda one: abs(one - clock_mhz)))
