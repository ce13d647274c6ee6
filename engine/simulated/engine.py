"""A serving engine on paper: the embedded engine's scheduler, blocks and loop, on a machine that only says how long.

What it tells (time to first token, gaps between tokens, queues, preemptions) comes out of the same decisions that the
embedded engine takes, not out of formulas. Tokens have no content, and there is nothing to score. Knows nothing of
watts, nor of which device it is on.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from engine.embedded.blocks import BlockPool
from engine.embedded.scheduler import Scheduler
from engine.errors import InvalidSettings, NotEnoughMemory, NotSimulated, RequestRefused
from engine.load import Load, Observer, Progress
from engine.request import Request, RequestRecord
from engine.serve import serve
from engine.serving import TokenScores
from engine.settings import EngineInfo, EngineSettings
from engine.simulated.fleet import Fleet
from engine.simulated.lane import Lane, Outcome
from engine.simulated.layout import WorkModel
from engine.simulated.machine import Machine
from engine.simulated.measured import ChooseTimes, MeasuredWork
from engine.simulated.sequence import SimulatedSequence
from engine.simulated.shapes import ModelShape

#: Of this engine, for the fingerprint of measurements: raise it when figures may change.
VERSION = "1"
#: Letters that one token stands for where a text has to be counted.
LETTERS_PER_TOKEN = 4
#: Prompts that a pool of prefill GPUs computes side by side at most.
PREFILL_BATCH = 256


class SimulatedEngine:
    """An opened engine. Not safe for use from several threads."""

    def __init__(
        self, settings: EngineSettings, shape: ModelShape, machine: Machine, *, choose_times: ChooseTimes | None = None
    ) -> None:
        """Lay the model out on the machine; `choose_times` looks for measured times of its kernels.

        Raises InvalidSettings for a layout that the model or the machine has no room for, NotEnoughMemory when its
        weights and the keys and values of one sequence do not fit.
        """
        _require_ours(settings, machine)
        self._settings = settings
        self._shape = shape
        self._machine = machine
        self._max_context = _max_context(settings, shape)
        self._in_flight: dict[str, SimulatedSequence] = {}
        self._has_begun = False
        self._choose_times = choose_times
        self._time_sources: list[str] = []
        self._fleet = self._open_fleet()
        self._num_blocks = sum(lane.scheduler.pool.num_blocks for lane in self._fleet.decoding_lanes)

    @property
    def info(self) -> EngineInfo:
        """What was opened."""
        return EngineInfo(
            engine="simulated",
            version="+".join((VERSION, *dict.fromkeys(self._time_sources))),
            model=self._settings.model,
            model_hash=hashlib.sha256(repr(self._shape).encode()).hexdigest(),
            precision=self._settings.precision,
            device=self._settings.device,
            max_context=self._max_context,
            num_kv_blocks=self._num_blocks,
            num_parameters=self._shape.num_parameters,
            start_s=0.0,
            isa="simulated",
            pids=(),
        )

    def encode(self, text: str) -> tuple[int, ...]:
        """Return as many tokens as the text has about; all are alike."""
        return (0,) * -(-len(text) // LETTERS_PER_TOKEN)

    def score(
        self,
        token_ids: tuple[int, ...],
        *,
        num_last: int | None = None,
        keep: str | None = None,
        against: str | None = None,
    ) -> TokenScores:
        """Raise NotSimulated: there are no weights."""
        raise NotSimulated("a simulated engine has no weights, so it has no opinion of a text")

    def set_prefill_chunk(self, prefill_chunk: int) -> None:
        """Change the live knob between two loads."""
        self._settings = replace(self._settings, prefill_chunk=prefill_chunk)
        for lane in self._fleet.lanes:
            lane.set_prefill_chunk(prefill_chunk)

    def run(self, load: Load, observer: Observer) -> list[RequestRecord]:
        """Serve a load until it is used up or the observer says stop; see `ServingEngine.run`."""
        self._has_begun = False
        for lane in self._fleet.lanes:
            lane.restart()
        with _collector_at_rest():
            return serve(self, load, observer)

    def report(self) -> None:
        """Nothing lies between the engine and its load."""

    def close(self) -> None:
        """Nothing to do."""

    @property
    def num_in_flight(self) -> int:
        """Requests let in and not yet ended."""
        return len(self._in_flight)

    def now_s(self) -> float:
        """The machine's clock."""
        return self._machine.now_s()

    def add(self, request: Request, arrival_s: float | None = None) -> SimulatedSequence:
        """Let a request in; raise RequestRefused (or RequestTooLong), changing nothing, if it can never be served."""
        if request.request_id in self._in_flight:
            raise RequestRefused(f"request {request.request_id}: a request of that id is already in the engine")
        if not self._has_begun:
            self._has_begun = True
            self._machine.begin(request.request_id)
        sequence = SimulatedSequence(request, self.now_s() if arrival_s is None else arrival_s)
        self._fleet.add(sequence)
        self._in_flight[request.request_id] = sequence
        return sequence

    def advance(self, until_s: float | None) -> Progress:
        """Take a step, or the next of those that several groups of GPUs are in."""
        return self._progress(self._fleet.advance(until_s))

    def wait_until(self, time_s: float) -> None:
        """Let time pass with nothing to do."""
        self._machine.advance_to(time_s)

    def cancel_all(self) -> list[RequestRecord]:
        """End whatever is in flight."""
        sequences = list(self._in_flight.values())
        self._fleet.drop(sequences)
        self._in_flight.clear()
        return [sequence.record() for sequence in sequences]

    def _progress(self, outcome: Outcome) -> Progress:
        finished = []
        for sequence in outcome.ended:
            del self._in_flight[sequence.request.request_id]
            finished.append(sequence.record())
        return Progress(
            time_s=self._machine.now_s(),
            num_running=outcome.num_running,
            num_waiting=sum([len(lane.scheduler.waiting) for lane in self._fleet.lanes]),
            num_tokens=outcome.num_tokens,
            num_prompt_tokens=outcome.num_prompt_tokens,
            first_tokens=tuple([sequence.request.request_id for sequence in outcome.first]) if outcome.first else (),
            finished=tuple(finished),
            kv_blocks_used=sum([lane.scheduler.pool.num_used for lane in self._fleet.lanes]),
            num_steps=outcome.num_steps,
        )

    def _open_fleet(self) -> Fleet:
        """Make the groups of GPUs: each replica by itself, but for those that share their experts and step together."""
        settings = self._settings
        lanes = self._lanes(replace(settings, prefill_gpus=0))
        if not settings.prefill_gpus:
            return Fleet(self._machine, lanes)
        per_replica = settings.tensor_parallel * settings.pipeline_parallel
        if settings.prefill_gpus % per_replica:
            raise InvalidSettings(
                f"prefill_gpus is {settings.prefill_gpus}; give a multiple of tensor_parallel x pipeline_parallel, "
                f"which is {per_replica}"
            )
        prompts = replace(
            settings,
            data_parallel=settings.prefill_gpus // per_replica,
            max_batch=PREFILL_BATCH,
            num_kv_blocks=None,
            prefill_gpus=0,
        )
        work = WorkModel(self._shape, prompts, self._machine.limits)
        entrances = self._lanes(prompts, first=len(lanes), hands_over=True)
        return Fleet(self._machine, entrances, decoders=lanes, transfer_bytes=work.handover_bytes)

    def _lanes(self, settings: EngineSettings, *, first: int = 0, hands_over: bool = False) -> list[Lane]:
        """Return one lane a replica, or one for all where they step together; their numbers begin at `first`."""
        together = settings.data_parallel if settings.expert_parallel else 1
        one = replace(settings, data_parallel=together)
        work = self._counted(one)
        num_blocks = together * self._blocks_per_replica(one, WorkModel(self._shape, one, self._machine.limits))
        return [
            Lane(
                first + number,
                self._machine,
                work,
                self._scheduler(one, num_blocks),
                window=self._shape.window,
                hands_over=hands_over,
            )
            for number in range(settings.data_parallel // together)
        ]

    def _counted(self, settings: EngineSettings) -> WorkModel | MeasuredWork:
        """Return what counts a lane's steps, with measured times of kernels where they are asked for and known."""
        work = WorkModel(self._shape, settings, self._machine.limits)
        if self._choose_times is None:
            return work
        chosen = self._choose_times(settings, self._max_context)
        self._time_sources.append(chosen.source)
        return work if chosen.times is None else MeasuredWork(work, chosen.times)

    def _scheduler(self, settings: EngineSettings, num_blocks: int) -> Scheduler[SimulatedSequence]:
        replicas = settings.data_parallel
        return Scheduler(
            BlockPool(num_blocks, settings.block_size),
            max_batch=settings.max_batch * replicas,
            prefill_chunk=settings.prefill_chunk * replicas,
            max_context=self._max_context,
            policy=settings.policy,
            max_prefill_fraction=settings.max_prefill_fraction,
            longest_chunk=settings.prefill_chunk if replicas > 1 else None,  # no replica helps another with a prompt
        )

    def _blocks_per_replica(self, settings: EngineSettings, work: WorkModel) -> int:
        """Return how many blocks fit beside the weights, at most enough for max_batch sequences of max_context."""
        per_sequence = -(-self._max_context // settings.block_size)
        wanted = settings.num_kv_blocks or settings.max_batch * per_sequence
        # A sequence's states are there from its first token on. Windows grow with it, up to their length: their cost is
        # spread over as many tokens as it can have.
        states = settings.max_batch * work.sequence_bytes(0)
        free = self._machine.limits.memory_bytes - work.weight_bytes_resident - states
        free -= _activation_bytes(settings, self._shape)
        longest = self._max_context
        token_bytes = (work.sequence_bytes(longest) - work.sequence_bytes(0)) / longest
        block_bytes = settings.block_size * token_bytes
        affordable = int(max(0.0, free) // block_bytes) if block_bytes else wanted * (free >= 0)
        if affordable < min(wanted, per_sequence):
            raise NotEnoughMemory(
                f"{settings.model} in {settings.precision} needs {work.weight_bytes_resident / 2**30:.1f} GiB a GPU "
                f"for weights and {(per_sequence * block_bytes + states) / 2**30:.1f} GiB for keys and values of "
                f"{self._max_context} tokens; {self._machine.limits.memory_bytes / 2**30:.1f} GiB are usable: give it "
                "more GPUs (tensor_parallel, pipeline_parallel), a narrower precision or a smaller batch"
            )
        return min(wanted, affordable)


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Keep Python's collector of cycles still: a run makes hundreds of thousands of objects, and no cycle.

    Looking through them again and again took 15 % of a run of 256 sequences.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _require_ours(settings: EngineSettings, machine: Machine) -> None:
    if settings.prefix_caching:
        raise InvalidSettings("prefix_caching is True; simulated tokens have no content to find again: leave it out")
    if settings.num_gpus > machine.limits.num_gpus:
        raise InvalidSettings(
            f"tensor_parallel x pipeline_parallel x data_parallel + prefill_gpus is {settings.num_gpus}, but there are "
            f"{machine.limits.num_gpus} GPUs"
        )


def _activation_bytes(settings: EngineSettings, shape: ModelShape) -> float:
    """Return the scratch memory of a step in 16 bit: some vectors of the hidden size a token, and fp32 logits.

    Assumption: 12 such vectors, which is about what vLLM's profiling run leaves room for.
    """
    rows = settings.prefill_chunk + settings.max_batch
    return 2.0 * 12 * rows * shape.hidden_size + 4.0 * settings.max_batch * shape.vocab_size / settings.tensor_parallel


def _max_context(settings: EngineSettings, shape: ModelShape) -> int:
    if settings.max_context is not None and settings.max_context > shape.max_context:
        raise InvalidSettings(
            f"max_context is {settings.max_context}; {settings.model} goes up to {shape.max_context} tokens"
        )
    return settings.max_context or shape.max_context
