"""Two groups of GPUs: one computes prompts and hands their keys and values on, the other decodes.

Each takes its steps at its own pace; whichever ends first is told first. Knows nothing of loads.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from engine.request import FinishReason
from engine.simulated.lane import Lane, Outcome
from engine.simulated.machine import Machine
from engine.simulated.sequence import SimulatedSequence


class Handover:
    """The two lanes and what is on its way between them."""

    def __init__(
        self, machine: Machine, prefill: Lane, decode: Lane, *, transfer_bytes: Callable[[int], float]
    ) -> None:
        self.prefill = prefill
        self.decode = decode
        self._machine = machine
        #: Bytes that each GPU hands on of a sequence of so many tokens.
        self._transfer_bytes = transfer_bytes
        # (when it is there, number for equal times, sequence)
        self._on_the_way: list[tuple[float, int, SimulatedSequence]] = []
        self._num_sent = 0

    def advance(self, until_s: float | None) -> Outcome:
        """Go on to the next end of a step of either group, or to `until_s` when that comes first, and tell what it was.

        Nothing may have ended then: the outcome has no tokens.
        """
        self._begin_steps()
        ends = [lane.end_s for lane in (self.decode, self.prefill) if lane.end_s is not None]
        arrivals = [self._on_the_way[0][0]] if self._on_the_way else []
        limits = [] if until_s is None else [until_s]
        now_s = min([*ends, *arrivals, *limits])
        self._machine.advance_to(now_s)
        for lane in (self.decode, self.prefill):
            if lane.end_s is not None and lane.end_s <= now_s:
                outcome = lane.end()
                self._send(outcome.handed_over, now_s)
                outcome.num_running = self._num_running
                return outcome
        while self._on_the_way and self._on_the_way[0][0] <= now_s:
            self.decode.scheduler.add(heapq.heappop(self._on_the_way)[2])
        return Outcome(0, self._num_running, 0, 0, [], [], [])

    def drop(self, sequences: Sequence[SimulatedSequence]) -> None:
        """Forget sequences wherever they are; steps under way are waited for, in vain."""
        now_s = self._machine.now_s()
        self._machine.advance_to(max([now_s, *(lane.end_s for lane in (self.decode, self.prefill) if lane.end_s)]))
        travelling = {id(sequence) for _, _, sequence in self._on_the_way}
        self._on_the_way.clear()
        for lane in (self.decode, self.prefill):
            lane.end_s = None
        at_prefill = {id(sequence) for sequence in (*self.prefill.scheduler.running, *self.prefill.scheduler.waiting)}
        for sequence in sequences:
            if id(sequence) in travelling:
                sequence.finish_reason = FinishReason.CANCELLED
            else:
                (self.prefill if id(sequence) in at_prefill else self.decode).drop(sequence)

    @property
    def _num_running(self) -> int:
        return self.decode.scheduler.num_running + self.prefill.scheduler.num_running + len(self._on_the_way)

    def _begin_steps(self) -> None:
        """Begin a step in each group that has work and is in none.

        A decoding group takes one step at a time: sequences may come in between.
        """
        now_s = self._machine.now_s()
        for lane in (self.decode, self.prefill):
            if lane.end_s is None and lane.scheduler.has_work:
                lane.begin(now_s, now_s)

    def _send(self, sequences: Sequence[SimulatedSequence], now_s: float) -> None:
        for sequence in sequences:
            num_bytes = self._transfer_bytes(len(sequence.request.prompt_token_ids))
            self._num_sent += 1
            heapq.heappush(self._on_the_way, (now_s + self._machine.transfer_s(num_bytes), self._num_sent, sequence))
