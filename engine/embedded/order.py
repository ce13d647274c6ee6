"""In which order sequences are let in, computed and made to give way: by arrival, or by class and then by arrival.

Both hold the sequences that wait. Know nothing of blocks, budgets or tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from engine.embedded.blocks import Holder
from engine.request import LOWEST_PRIORITY, FinishReason, Request

#: So many may be let in, one after the other, before the one that waits longest; then it is its turn.
PATIENCE = 8


class Schedulable(Holder, Protocol):
    """What the scheduler must know of a sequence, and what it notes there."""

    num_preemptions: int
    finish_reason: FinishReason | None
    error: str | None

    @property
    def request(self) -> Request:
        """What was asked for."""


S = TypeVar("S", bound=Schedulable)


class ArrivalOrder(Generic[S]):
    """First come, first served. Whoever runs arrived before everybody who waits, as the newest gives way first."""

    def __init__(self) -> None:
        self._waiting: deque[S] = deque()

    def __len__(self) -> int:
        """Sequences that wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[S]:
        """Yield the sequences that wait, oldest first."""
        return iter(self._waiting)

    @property
    def first(self) -> S:
        """Who is let in next, of those that wait."""
        return self._waiting[0]

    def add(self, sequence: S) -> None:
        """Note an arrival."""
        self._waiting.append(sequence)

    def take(self, overtaken: Sequence[S] = ()) -> S:
        """Let the first in; it overtakes no prompt that was begun."""
        return self._waiting.popleft()

    def put_back(self, sequence: S) -> None:
        """Let a sequence that was preempted wait again."""
        self._waiting.appendleft(sequence)

    def remove(self, sequence: S) -> None:
        """Take out a sequence that waits."""
        self._waiting.remove(sequence)

    def forget(self, sequence: S) -> None:
        """Note that a sequence does not come back: nothing is known of one but its place."""

    def is_first_before(self, begun: S) -> bool:
        """Tell whether the first of those that wait goes before a prompt that was begun."""
        return False

    def oldest_first(self, some: Sequence[S], decoding: Collection[S]) -> list[S]:
        """Return some of the decoding sequences, the last to give way first."""
        places = {sequence: place for place, sequence in enumerate(decoding)}
        return sorted(some, key=places.__getitem__)

    def newest(self, decoding: dict[S, int], prefilling: Sequence[S]) -> S:
        """Return who gives way next, of all that run."""
        return prefilling[-1] if prefilling else next(reversed(decoding))


class PriorityOrder(Generic[S]):
    """The first class before the second and so on; first come, first served within a class.

    Nobody waits for ever: when `PATIENCE` sequences in a row were let in before the one that waits longest, that one is
    next, whatever its class. It then counts as of the first class. So does one whose prompt was begun and as many went
    before it since, and one that comes back after it was preempted: such a one gives way to nobody who came later.
    """

    def __init__(self) -> None:
        self._classes: list[deque[S]] = [deque() for _ in range(LOWEST_PRIORITY + 1)]
        # Of all that wait or run: class and number of arrival; the least goes first, the greatest gives way first.
        self._ranks: dict[S, tuple[int, int]] = {}
        # Of begun prompts: how many were let in since and go before them.
        self._num_overtaking: dict[S, int] = {}
        self._num_arrived = 0
        self._num_passed = 0

    def __len__(self) -> int:
        """Sequences that wait."""
        return sum(map(len, self._classes))

    def __iter__(self) -> Iterator[S]:
        """Yield the sequences that wait, class by class, oldest first."""
        return (sequence for waiting in self._classes for sequence in waiting)

    @property
    def first(self) -> S:
        """Who is let in next, of those that wait."""
        longest = self._longest()
        return longest if self._num_passed >= PATIENCE else next(waiting[0] for waiting in self._classes if waiting)

    def add(self, sequence: S) -> None:
        """Note an arrival."""
        self._ranks[sequence] = (sequence.request.priority, self._num_arrived)
        self._num_arrived += 1
        self._classes[sequence.request.priority].append(sequence)

    def take(self, overtaken: Sequence[S] = ()) -> S:
        """Let the first in, before the begun prompts that it overtakes."""
        for begun in overtaken:
            self._note_overtaken(begun)
        sequence, longest = self.first, self._longest()
        is_turn = self._num_passed >= PATIENCE
        self._num_passed = 0 if sequence is longest else self._num_passed + 1
        rank, number = self._ranks[sequence]
        self._classes[rank].popleft()
        if is_turn or sequence.num_preemptions:
            self._ranks[sequence] = (0, number)
        return sequence

    def put_back(self, sequence: S) -> None:
        """Let a sequence that was preempted wait again, in its class before all that came later."""
        rank, number = self._ranks[sequence]
        waiting = self._classes[rank]
        place = sum(self._ranks[other][1] < number for other in waiting)
        waiting.insert(place, sequence)

    def remove(self, sequence: S) -> None:
        """Take out a sequence that waits."""
        self._classes[self._ranks[sequence][0]].remove(sequence)

    def forget(self, sequence: S) -> None:
        """Note that a sequence does not come back."""
        del self._ranks[sequence]
        self._num_overtaking.pop(sequence, None)

    def is_first_before(self, begun: S) -> bool:
        """Tell whether the first of those that wait goes before a prompt that was begun."""
        return self._num_passed < PATIENCE and self._ranks[self.first] < self._ranks[begun]

    def oldest_first(self, some: Sequence[S], decoding: Collection[S]) -> list[S]:
        """Return some of the decoding sequences, the last to give way first."""
        return sorted(some, key=self._ranks.__getitem__)

    def newest(self, decoding: dict[S, int], prefilling: Sequence[S]) -> S:
        """Return who gives way next, of all that run."""
        return max((*decoding, *prefilling), key=self._ranks.__getitem__)

    def _note_overtaken(self, begun: S) -> None:
        num_overtaking = self._num_overtaking[begun] = self._num_overtaking.get(begun, 0) + 1
        if num_overtaking >= PATIENCE:
            self._ranks[begun] = (0, self._ranks[begun][1])

    def _longest(self) -> S:
        """Return who waits longest, of all classes."""
        return min((waiting[0] for waiting in self._classes if waiting), key=lambda one: self._ranks[one][1])
