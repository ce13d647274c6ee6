"""One group of GPUs that takes its steps together: schedules a step, asks how long it takes, notes what came of it.

Knows nothing of loads, nor of other groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.embedded.scheduler import Batch, Scheduler
from engine.request import FinishReason
from engine.simulated.contexts import Contexts
from engine.simulated.layout import WorkModel
from engine.simulated.machine import Machine
from engine.simulated.measured import MeasuredWork
from engine.simulated.sequence import SimulatedSequence, StepLog

#: Steps told at once at most, where nothing changes between them.
LONGEST_STRETCH = 16


@dataclass(slots=True)
class Outcome:
    """What came of a step, or of a stretch of equal steps."""

    num_steps: int
    num_running: int
    num_tokens: int
    num_prompt_tokens: int
    #: Sequences that got their first token, and those that had all theirs.
    first: list[SimulatedSequence]
    ended: list[SimulatedSequence]
    #: Sequences whose prompt is done and that go on elsewhere.
    handed_over: list[SimulatedSequence]


class Lane:
    """A scheduler and the GPUs that follow it; `begin` and `end` bracket each step, so that lanes run side by side."""

    def __init__(
        self,
        number: int,
        machine: Machine,
        work: WorkModel | MeasuredWork,
        scheduler: Scheduler[SimulatedSequence],
        *,
        window: int | None,
        hands_over: bool = False,
    ) -> None:
        self.scheduler = scheduler
        #: When the step under way ends; None between steps.
        self.end_s: float | None = None
        self._number = number
        self._machine = machine
        self._work = work
        self._hands_over = hands_over
        self._window = window
        self._start_s = 0.0
        self._batch: Batch[SimulatedSequence] = Batch((), ())
        self._num_steps = 1
        self._num_decodes = 0
        self.restart()

    def restart(self) -> None:
        """Forget all steps taken: an empty lane goes on as a new one would."""
        self._log = StepLog()
        self._contexts = Contexts(self._window)
        #: Decode step -> the sequences that have all their tokens after it.
        self._endings: dict[int, list[SimulatedSequence]] = {}
        self._last_step_s = 0.0

    def begin(self, start_s: float, until_s: float | None = None) -> float:
        """Begin a step, or several alike of which the last ends before `until_s`; return when it ends."""
        self._start_s = start_s
        self._num_steps = self._steady_steps(until_s)
        if self._num_steps > 1:
            self._batch = Batch(self.scheduler.decoding, ())
        else:
            self._batch = self.scheduler.schedule()
            for sequence in self._batch.preempted:
                self._leave(sequence)
        batch, contexts = self._batch, self._contexts
        self._num_decodes = num_decodes = len(batch.decoding)
        ahead = num_decodes * (self._num_steps - 1) / 2  # so that it is the mean of the stretch
        work = self._work.step(
            num_decodes=num_decodes,
            decode_context=contexts.total + ahead if num_decodes else 0,
            local_context=contexts.local if num_decodes else 0,
            chunks=[(piece.start, piece.count) for piece in batch.prefills],
            num_sampled=num_decodes + len([piece for piece in batch.prefills if piece.is_sampled]),
        )
        self.end_s = self._machine.run(work, start_s, lane=self._number, num_steps=self._num_steps)
        self._last_step_s = (self.end_s - start_s) / self._num_steps
        return self.end_s

    def end(self) -> Outcome:
        """Note what the step brought."""
        assert self.end_s is not None
        batch, end_s, num_decodes = self._batch, self.end_s, self._num_decodes
        outcome = Outcome(
            num_steps=self._num_steps,
            num_running=self.scheduler.num_running,
            num_tokens=num_decodes * self._num_steps,
            num_prompt_tokens=0,
            first=[],
            ended=[],
            handed_over=[],
        )
        if self._num_steps > 1:
            self.scheduler.skip(self._num_steps)
        if num_decodes:
            for i in range(self._num_steps - 1, -1, -1):
                self._log.ends_s.append(end_s - i * self._last_step_s)
                self._contexts.advance()
        self._end_decodes(outcome)
        if batch.prefills:
            self._end_prefills(batch, end_s, outcome)
        self.end_s = None
        return outcome

    def set_prefill_chunk(self, prefill_chunk: int) -> None:
        """Change how many prompt tokens a step has at most, in each replica of the group."""
        scheduler = self.scheduler
        replicas = scheduler.prefill_chunk // (scheduler.longest_chunk or scheduler.prefill_chunk)
        scheduler.prefill_chunk = prefill_chunk * replicas
        if scheduler.longest_chunk is not None:
            scheduler.longest_chunk = prefill_chunk

    def drop(self, sequence: SimulatedSequence) -> None:
        """Forget a sequence wherever it is."""
        self._leave(sequence)
        self.scheduler.finish(sequence, FinishReason.CANCELLED)

    def _steady_steps(self, until_s: float | None) -> int:
        """Return how many steps can be told at once: up to the next that ends a sequence or finds a request due."""
        limit = LONGEST_STRETCH
        if until_s is not None:
            # Steps vary a little; the last one must begin before the request is due, so that none waits for two. What a
            # decode step takes is told by the last one alone: with prompts in it a step may be longer, or shorter.
            is_told = self._last_step_s > 0 and not self._batch.prefills
            left = (until_s - self._start_s) / (1.25 * self._last_step_s) if is_told else 0
            limit = min(limit, int(left))
        taken = len(self._log.ends_s)
        for ahead in range(1, limit):
            if taken + ahead in self._endings:
                limit = ahead
                break
        return max(1, self.scheduler.steady_steps(limit)) if limit > 1 else 1

    def _end_decodes(self, outcome: Outcome) -> None:
        ended = self._endings.get(len(self._log.ends_s), ())
        for sequence in tuple(ended):
            self._leave(sequence)
            self.scheduler.finish(sequence, FinishReason.LENGTH)
            outcome.ended.append(sequence)

    def _end_prefills(self, batch: Batch[SimulatedSequence], end_s: float, outcome: Outcome) -> None:
        sampled = [piece.sequence for piece in batch.prefills if piece.is_sampled]
        self.scheduler.computed(batch)
        outcome.num_prompt_tokens = batch.num_prompt_tokens
        outcome.num_tokens += len(sampled)
        for sequence in sampled:
            sequence.past_times_s.append(end_s)
            if len(sequence.past_times_s) == 1:
                outcome.first.append(sequence)
            if len(sequence.past_times_s) == sequence.request.max_tokens:
                self.scheduler.finish(sequence, FinishReason.LENGTH)
                outcome.ended.append(sequence)
            elif self._hands_over:
                self.scheduler.remove(sequence)
                sequence.num_prefilled = sequence.num_tokens - 1
                outcome.handed_over.append(sequence)
            else:
                self._join(sequence)

    def _join(self, sequence: SimulatedSequence) -> None:
        sequence.begin_decoding(self._log)
        self._contexts.join(sequence.num_tokens)
        self._endings.setdefault(_last_step(sequence), []).append(sequence)

    def _leave(self, sequence: SimulatedSequence) -> None:
        if sequence.log is not self._log:
            return
        last = _last_step(sequence)
        ending = self._endings[last]
        ending.remove(sequence)
        if not ending:
            del self._endings[last]
        self._contexts.leave(sequence.num_tokens)
        sequence.end_decoding()


def _last_step(sequence: SimulatedSequence) -> int:
    """Return how many decode steps there will have been when a decoding sequence has all its tokens."""
    return sequence.first_step + sequence.request.max_tokens - len(sequence.past_times_s)
