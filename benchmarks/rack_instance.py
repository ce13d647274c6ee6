"""One instance of an engine on part of a rack, or all of it: what it would do in a steady state, and what it does.

`estimate` takes one mean step of a steady batch: microseconds, good for ranking thousands of layouts. `run` serves
requests through the simulated engine, scheduler and all: seconds, and the figures that count. Both ask the same work
model and the same response, so that they differ only in what queues and fluctuations do. SIMULATED.

Knows nothing of racks: instances that share no GPU add up.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from engine.load import Progress
from engine.request import Request, RequestRecord
from engine.serve import serve
from engine.settings import EngineSettings
from engine.simulated.engine import SimulatedEngine
from engine.simulated.layout import WorkModel
from engine.simulated.machine import MachineLimits
from engine.simulated.shapes import ModelShape
from engine.simulated.work import StepWork
from probes.settings import DeviceSettings
from probes.simulated.accelerators import Accelerator
from probes.simulated.device import SimulatedDevice
from probes.simulated.response import Response
from tuner.request import WorkloadSpec
from tuner.space import capacity_of
from tuner.workload import max_context, num_offered, simulated_load

#: Keys and values may fill so much of the memory that weights leave: the rest is for activations. Assumption, of the
#: estimate alone; the engine counts.
_ROOM_SHARE = 0.85
#: A pool for prompts is taken to be too small where it would be busier than that.
_BUSIEST_PREFILL = 0.85
#: p99 of fewer requests says little: LoadGen wants 662.
_MIN_ENDED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """What a workload asks for on average, in tokens."""

    prompt: float
    output: float
    longest_output: int
    longest_context: int

    @classmethod
    def of(cls, spec: WorkloadSpec) -> Mean:
        """Take the middle of the workload's ranges."""
        return cls(
            prompt=sum(spec.prompt_tokens) / 2,
            output=sum(spec.output_tokens) / 2,
            longest_output=spec.output_tokens[1],
            longest_context=max_context(spec),
        )

    @property
    def context(self) -> float:
        """Mean tokens of a running sequence: outputs of uniform length are met in proportion to it."""
        low = 2 * self.output - self.longest_output
        mean_square = (self.longest_output**2 + self.longest_output * low + low**2) / 3
        return self.prompt + mean_square / self.output / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A steady state, by one mean step. Figures are of the whole instance."""

    tok_s: float
    power_w: float
    step_s: float
    #: Seconds of a step with prompts in it.
    prompt_step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What an instance did. Figures are of the whole instance; latencies are p99s in milliseconds."""

    tok_s: float
    power_w: float
    latencies_ms: dict[str, float]
    num_ended: int
    #: Requests came faster than they were served.
    is_overloaded: bool


class Instance:
    """A layout of a model on GPUs of one kind, whose steady states can be estimated at any batch and clock."""

    def __init__(self, shape: ModelShape, settings: EngineSettings, accelerator: Accelerator) -> None:
        """Lay the model out. Raises InvalidSettings where that is impossible."""
        limits = limits_of(accelerator, settings.num_gpus)
        self._settings = settings
        self._limits = limits
        self._accelerator = accelerator
        self._response = Response(accelerator)
        self._decode = WorkModel(shape, replace(settings, prefill_gpus=0), limits)
        self._window = shape.window
        self._prefill: WorkModel | None = None
        if settings.prefill_gpus:
            replicas = settings.prefill_gpus // (settings.tensor_parallel * settings.pipeline_parallel)
            self._prefill = WorkModel(shape, replace(settings, data_parallel=replicas, prefill_gpus=0), limits)
            self._prefill_chunk = settings.prefill_chunk * replicas

    def holds(self, batch: int, mean: Mean) -> bool:
        """Tell whether so many sequences of mean length fit each replica, and one a replica for prompts."""
        free = self._limits.memory_bytes - self._decode.weight_bytes_resident
        if self._prefill is not None:
            room = _ROOM_SHARE * (self._limits.memory_bytes - self._prefill.weight_bytes_resident)
            if self._prefill.sequence_bytes(mean.longest_context) > room:
                return False
        return batch * self._decode.sequence_bytes(math.ceil(mean.context)) <= _ROOM_SHARE * free

    def estimate(self, batch: int, mean: Mean, clock_cap_mhz: float) -> Estimate | None:
        """Return the steady state of `batch` sequences a replica; None where prompts come too fast to be read."""
        running = batch * self._settings.data_parallel
        arrivals = running / mean.output
        if self._prefill is not None:
            return self._estimate_apart(running, mean, clock_cap_mhz)
        if arrivals * mean.prompt > 0.8 * self._settings.prefill_chunk * self._settings.data_parallel:
            return None
        share = min(1.0, arrivals)
        prompts = max(1.0, arrivals)
        with_s, with_w = self._settle(self._step(self._decode, running, prompts, mean), clock_cap_mhz)
        without_s, without_w = self._settle(self._step(self._decode, running, 0, mean), clock_cap_mhz)
        step_s = share * with_s + (1 - share) * without_s
        power_w = (share * with_s * with_w + (1 - share) * without_s * without_w) / step_s
        return Estimate(
            tok_s=running / step_s,
            power_w=power_w * self._settings.num_gpus,
            step_s=step_s,
            prompt_step_s=with_s,
        )

    def _estimate_apart(self, running: int, mean: Mean, clock_cap_mhz: float) -> Estimate | None:
        """Return the steady state where prompts have GPUs of their own."""
        assert self._prefill is not None
        step_s, power_w = self._settle(self._step(self._decode, running, 0, mean), clock_cap_mhz)
        tok_s = running / step_s
        prompts = self._prefill_chunk / mean.prompt
        prompt_s, prompt_w = self._settle(self._step(self._prefill, 0, prompts, mean), clock_cap_mhz)
        busy = tok_s / mean.output * prompt_s / prompts
        if busy > _BUSIEST_PREFILL:
            return None
        decode_gpus = self._settings.num_gpus - self._settings.prefill_gpus
        prefill_w = busy * prompt_w + (1 - busy) * self._accelerator.idle_loaded_w
        return Estimate(
            tok_s=tok_s,
            power_w=power_w * decode_gpus + prefill_w * self._settings.prefill_gpus,
            step_s=step_s,
            prompt_step_s=prompt_s,
        )

    def _step(self, work: WorkModel, running: int, prompts: float, mean: Mean) -> StepWork:
        """Return the work of a step with a number of whole prompts, the last one cut where it is no whole number."""
        chunks = [(0, round(mean.prompt))] * int(prompts)
        if rest := round((prompts - int(prompts)) * mean.prompt):
            chunks.append((0, rest))
        seen = min(mean.context, self._window) if self._window else 0
        return work.step(
            num_decodes=running,
            decode_context=running * mean.context,
            local_context=round(running * seen),
            chunks=chunks,
            num_sampled=running + round(prompts),
        )

    def _settle(self, work: StepWork, clock_cap_mhz: float) -> tuple[float, float]:
        seconds, power_w, _ = self._response.settle(
            work,
            clock_cap_mhz=clock_cap_mhz,
            power_cap_w=self._accelerator.tdp_w,
            from_clock_mhz=clock_cap_mhz,
        )
        return seconds, power_w


def limits_of(accelerator: Accelerator, num_gpus: int) -> MachineLimits:
    """Return what so many GPUs have of what an engine needs."""
    limits = SimulatedDevice(accelerator, num_gpus=num_gpus).limits
    return MachineLimits(
        num_gpus=limits.num_gpus,
        memory_bytes=limits.memory_bytes,
        arithmetics=limits.arithmetics,
        domain_size=limits.domain_size,
    )


def run(
    shape: ModelShape, settings: EngineSettings, accelerator: Accelerator, spec: WorkloadSpec, clock_cap_mhz: int
) -> Served:
    """Serve a workload without noise until its load has turned over and enough requests ended after that.

    Raises InvalidSettings or NotEnoughMemory where the layout is impossible.
    """
    device = SimulatedDevice(accelerator, num_gpus=settings.num_gpus, noise=0.0)
    device.configure(DeviceSettings(sm_clock_cap_mhz=clock_cap_mhz))
    capacity = capacity_of(settings)
    engine = SimulatedEngine(settings, shape, device)
    window = _Window(engine, device, offered=num_offered(spec, capacity), capacity=capacity)
    with _no_collection():
        serve(window, simulated_load(spec, capacity=capacity), lambda progress: not window.is_over)
    return window.served()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from looking through millions of token times, of which none is part of a cycle."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What was counted since the window opened."""

    num_tokens: int = 0
    latencies_ms: dict[str, list[float]] = field(default_factory=lambda: {"ttft": [], "tpot": [], "e2e": []})

    def add(self, record: RequestRecord) -> None:
        for name, value_s in (("ttft", record.ttft_s), ("tpot", record.tpot_s), ("e2e", record.e2e_s)):
            if value_s is not None:
                self.latencies_ms[name].append(1000 * value_s)


class _Window:
    """An engine that keeps no record of a request longer than it takes to note its latencies.

    With a hundred thousand requests of thousands of tokens, records would fill the memory. The window opens when as
    many requests have ended as run (twice as many of a load that began all at once, so that the first ones are gone).
    """

    def __init__(self, engine: SimulatedEngine, device: SimulatedDevice, *, offered: int | None, capacity: int) -> None:
        self._engine = engine
        self._meter = device.meter()
        self._offered = offered
        self._capacity = capacity
        self._seen: _Seen | None = None
        self._num_ended = 0
        self._power_w = 0.0
        self._seconds = 0.0
        self._is_overloaded = False
        self.is_over = False
        self.now_s: Callable[[], float] = engine.now_s
        self.wait_until: Callable[[float], None] = engine.wait_until

    @property
    def num_in_flight(self) -> int:
        """Requests let in and not yet ended."""
        return self._engine.num_in_flight

    def add(self, request: Request, arrival_s: float | None = None) -> object:
        """Let a request in."""
        return self._engine.add(request, arrival_s)

    def advance(self, until_s: float | None) -> Progress:
        """Take a step and note what came of it."""
        progress = self._engine.advance(until_s)
        self._num_ended += len(progress.finished)
        if self._seen is None:
            self._warm_up(progress)
        else:
            self._measure(self._seen, progress)
        return replace(progress, finished=()) if progress.finished else progress

    def cancel_all(self) -> list[RequestRecord]:
        """Keep nothing of what is in flight: the engine is not used again."""
        return []

    def served(self) -> Served:
        """Return the figures of the window; of one that never opened nothing but that."""
        seen = self._seen
        if seen is None or not self._seconds:
            return Served(tok_s=0.0, power_w=0.0, latencies_ms={}, num_ended=0, is_overloaded=True)
        return Served(
            tok_s=seen.num_tokens / self._seconds,
            power_w=self._power_w,
            latencies_ms={f"{name}_p99_ms": _p99(values) for name, values in seen.latencies_ms.items()},
            num_ended=len(seen.latencies_ms["e2e"]),
            is_overloaded=self._is_overloaded,
        )

    def _warm_up(self, progress: Progress) -> None:
        turned_over = progress.num_running if self._offered is None else 2 * self._offered
        if self._num_ended >= max(1, turned_over):
            self._meter.start()
            self._seen = _Seen()
        elif self._is_falling_behind(progress):
            self.is_over = self._is_overloaded = True

    def _measure(self, seen: _Seen, progress: Progress) -> None:
        seen.num_tokens += progress.num_tokens
        for record in progress.finished:
            seen.add(record)
        enough = max(_MIN_ENDED, (self._offered or progress.num_running) // 4)
        self._is_overloaded = self._is_falling_behind(progress)
        if len(seen.latencies_ms["e2e"]) >= enough or self._is_overloaded:
            reading = self._meter.stop()
            self._seconds, self._power_w = reading.duration_s, reading.mean_power_w or 0.0
            self.is_over = True

    def _is_falling_behind(self, progress: Progress) -> bool:
        """Whether a tenth of what can run waits: under Poisson arrivals that fit, far fewer do."""
        return self._offered is None and progress.num_waiting > max(64, 0.1 * self._capacity)


def _p99(values: list[float]) -> float:
    """Return the nearest-rank percentile, as LoadGen takes it."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1] if values else math.inf
