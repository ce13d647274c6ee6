"""Groups of GPUs that work side by side: replicas, and groups for prompts that hand keys and values on to others.

Each group takes its steps at its own pace; whichever ends first is told first. A request goes to the group with the
fewest, and stays there. Knows nothing of loads.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from engine.request import FinishReason
from engine.simulated.lane import Lane, Outcome
from engine.simulated.machine import Machine
from engine.simulated.sequence import SimulatedSequence


class Fleet:
    """All groups of one engine, and what is on its way between them."""

    def __init__(
        self,
        machine: Machine,
        lanes: Sequence[Lane],
        *,
        decoders: Sequence[Lane] = (),
        transfer_bytes: Callable[[int], float] = lambda num_tokens: 0.0,
    ) -> None:
        """Let requests in at `lanes`; where there are `decoders`, prompts are computed there and the rest is theirs.

        `transfer_bytes` tells how much each GPU hands on of a sequence of so many tokens.
        """
        self.lanes = (*decoders, *lanes)
        self._entrances = tuple(lanes)
        self._decoders = tuple(decoders)
        self._machine = machine
        self._transfer_bytes = transfer_bytes
        self._home: dict[SimulatedSequence, Lane] = {}
        # (when it is there, number for equal times, sequence)
        self._on_the_way: list[tuple[float, int, SimulatedSequence]] = []
        self._num_sent = 0

    def add(self, sequence: SimulatedSequence) -> None:
        """Let a sequence in; raise RequestRefused or RequestTooLong, changing nothing, if it can never be served."""
        if self._decoders:
            self._decoders[0].scheduler.require_room(sequence)
        self._enter(sequence, self._entrances)

    def advance(self, until_s: float | None) -> Outcome:
        """Go on to the next end of a step, or to `until_s` when that comes first, and tell what it was.

        Nothing may have ended then: the outcome has no steps. A group that is alone may tell of several steps alike.
        """
        now_s = self._machine.now_s()
        is_alone = len(self.lanes) == 1
        for lane in self.lanes:
            if lane.end_s is None and lane.scheduler.has_work:
                lane.begin(now_s, until_s if is_alone else now_s)  # others may send something at any time
        if is_alone:
            return self._ended(self.lanes[0])
        events = [lane.end_s for lane in self.lanes if lane.end_s is not None]
        events += [time_s for time_s, _, _ in self._on_the_way[:1]]
        next_s = min(events if until_s is None else [*events, until_s])
        for lane in self.lanes:
            if lane.end_s is not None and lane.end_s <= next_s:
                return self._ended(lane)
        self._machine.advance_to(next_s)
        while self._on_the_way and self._on_the_way[0][0] <= next_s:
            self._enter(heapq.heappop(self._on_the_way)[2], self._decoders)
        return Outcome(0, self.num_running, 0, 0, [], [], [])

    def drop(self, sequences: Sequence[SimulatedSequence]) -> None:
        """Forget sequences wherever they are; steps under way are waited for, in vain."""
        self._machine.advance_to(max([self._machine.now_s(), *(lane.end_s for lane in self.lanes if lane.end_s)]))
        self._on_the_way.clear()
        for lane in self.lanes:
            lane.end_s = None
        for sequence in sequences:
            home = self._home.pop(sequence, None)
            if home is None:
                sequence.finish_reason = FinishReason.CANCELLED
            else:
                home.drop(sequence)

    @property
    def decoding_lanes(self) -> tuple[Lane, ...]:
        """The groups that decode."""
        return self._decoders or self._entrances

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks, or are on their way."""
        return sum([lane.scheduler.num_running for lane in self.lanes]) + len(self._on_the_way)

    def _enter(self, sequence: SimulatedSequence, lanes: Sequence[Lane]) -> None:
        lane = lanes[0] if len(lanes) == 1 else min(lanes, key=_num_sequences)
        lane.scheduler.add(sequence)
        self._home[sequence] = lane

    def _ended(self, lane: Lane) -> Outcome:
        """Move the clock to the end of a lane's step, and tell what it brought."""
        assert lane.end_s is not None
        now_s = lane.end_s
        self._machine.advance_to(now_s)
        num_running = self.num_running
        outcome = lane.end()
        outcome.num_running = num_running
        for sequence in outcome.ended:
            del self._home[sequence]
        for sequence in outcome.handed_over:
            del self._home[sequence]
            num_bytes = self._transfer_bytes(len(sequence.request.prompt_token_ids))
            self._num_sent += 1
            heapq.heappush(self._on_the_way, (now_s + self._machine.transfer_s(num_bytes), self._num_sent, sequence))
        return outcome


def _num_sequences(lane: Lane) -> int:
    return lane.scheduler.num_running + len(lane.scheduler.waiting)
