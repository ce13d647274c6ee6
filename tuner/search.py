"""Ask, measure, tell, stop: a job's loop.

First points are screened, one window each, until a budget is used up or nothing more could change the front; then the
best are measured again. Whoever measures need not know why: a proposal says what to measure. Nothing is kept but the
trials, so a resumed job goes on exactly as an undisturbed one would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tuner.budget import hard_limit, reason_to_stop, spent
from tuner.finalists import next_repeat
from tuner.pareto import ObjectivePair, non_dominated, place_of
from tuner.planner import DEFAULTS, Options
from tuner.point import OperatingPoint
from tuner.request import TuneRequest
from tuner.samplers import OptunaStudy
from tuner.space import SearchSpace
from tuner.trial import OUTCOMES, Trial, TrialRole, TrialState


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A window to measure next."""

    #: The trial's.
    number: int
    point: OperatingPoint
    role: TrialRole = TrialRole.SCREENING
    #: The front so far: a window may end once it is certain that the point is dominated by these.
    rivals: tuple[ObjectivePair, ...] = ()
    #: Whether the engine must be launched anew, even where the open one would do.
    needs_new_launch: bool = False
    #: Whether the window may not end early: others are told against it.
    is_reference: bool = False


#: Measures what is proposed.
Measure = Callable[[Proposal], Trial]


class Search:
    """Iterate to run a job: yields each trial as it ends. Or `ask` for several windows at a time and `tell` of each.

    `history` holds the trials that already count, `retries` the points whose screening was cut short and is tried
    again under its own number; repeats that were cut short come again in the finals by themselves. `interrupted` are
    the attempts that were cut short: their time counts, and nothing else of them. `first` are points to begin with,
    after the default point; `options` switch parts of the planner off. After the iteration `ended_because` says why
    screening ended, or what ended the whole search before its finals were over.
    """

    def __init__(
        self,
        request: TuneRequest,
        space: SearchSpace,
        measure: Measure,
        *,
        history: Sequence[Trial] = (),
        retries: Sequence[Proposal] = (),
        interrupted: Sequence[Trial] = (),
        first: Sequence[OperatingPoint] = (),
        options: Options = DEFAULTS,
        should_stop: Callable[[], str | None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request = request
        self._space = space
        self._measure = measure
        self._first = [space.default_point, *(point for point in first if point in space)]
        self._should_stop = should_stop
        self._now = now
        self._interrupted = [trial for trial in interrupted if trial.state is TrialState.INTERRUPTED]
        self._started_s = now() - spent([*history, *self._interrupted]).wall_s
        self._study = OptunaStudy(request, space, options=options)
        self.trials = [trial for trial in history if trial.state in OUTCOMES]
        tried = {trial.point for trial in self.trials}
        self._retries = [retry for retry in retries if retry.point not in tried]
        self._in_flight: list[Proposal] = []
        self._has_screened = False
        self.ended_because: str | None = None

    def __iter__(self) -> Iterator[Trial]:
        """Screen, then repeat the best, until a reason to stop."""
        while proposals := self.ask():
            trial = self._measure(proposals[0])
            self.tell(trial)
            yield trial

    def ask(self, count: int = 1) -> list[Proposal]:
        """Return up to `count` windows to measure now, beside those in flight; none while those have to end first.

        For whoever measures on several devices at once: each trial is told by `tell`, in any order. The search is over
        when nothing is in flight and nothing comes.
        """
        proposals: list[Proposal] = []
        while len(proposals) < count and (proposal := self._next()) is not None:
            self._in_flight.append(proposal)
            proposals.append(proposal)
        return proposals

    def tell(self, trial: Trial) -> None:
        """Take the trial of a proposal."""
        self._in_flight = [proposal for proposal in self._in_flight if proposal.number != trial.number]
        self.trials.append(trial)

    def _next(self) -> Proposal | None:
        """Return the next window; finals begin when all screening has ended, and are told one after the other."""
        if not self._has_screened:
            proposal = self._screening()
            if proposal is not None or self._in_flight:
                return proposal
            self._has_screened = True
        return None if self._in_flight else self._finals()

    def _screening(self) -> Proposal | None:
        """Return the next point to find out about, or say why there is none."""
        if (reason := self._should_stop() or self._used_up()) is not None:
            self.ended_because = reason
            return None
        if self._retries:
            retry = self._retries.pop(0)
            return replace(retry, rivals=self._rivals(), is_reference=retry.point == self._space.default_point)
        point = self._next_point()
        if point is None:
            self.ended_because = "exhausted"
            return None
        return self._proposal(point, TrialRole.SCREENING)

    def _finals(self) -> Proposal | None:
        """Return the next window of the finals; what ends a job ends them too, unless they are over."""
        repeat = next_repeat(self._request, self._space, self.trials)
        if repeat is None:
            return None
        elapsed_s = self._now() - self._started_s
        reason = self._should_stop() or hard_limit(self._request, self._charged(), elapsed_s=elapsed_s)
        if reason is not None:
            self.ended_because = reason
            return None
        return self._proposal(repeat.point, repeat.role, needs_new_launch=repeat.needs_new_launch)

    def _used_up(self) -> str | None:
        """Return which budget ends screening; one that began its finals does not screen again."""
        elapsed_s, num_in_flight = self._now() - self._started_s, len(self._in_flight)
        reason = reason_to_stop(self._request, self._charged(), elapsed_s=elapsed_s, num_in_flight=num_in_flight)
        if reason is None and any(trial.role is not TrialRole.SCREENING for trial in self.trials):
            return "exhausted"
        return reason

    def _charged(self) -> list[Trial]:
        """Return every attempt that took time and energy."""
        return [*self._interrupted, *self.trials]

    def _next_point(self) -> OperatingPoint | None:
        pending = [proposal.point for proposal in self._in_flight]
        tried = {*(trial.point for trial in self.trials), *pending}
        while self._first:
            point = self._first.pop(0)
            if point not in tried:
                return point
        return next(iter(self._study.next_points(self.trials, pending=pending)), None)

    def _proposal(self, point: OperatingPoint, role: TrialRole, *, needs_new_launch: bool = False) -> Proposal:
        numbers = [*(trial.number for trial in self.trials), *(proposal.number for proposal in self._in_flight)]
        return Proposal(
            number=max(numbers, default=-1) + 1,
            point=point,
            role=role,
            rivals=self._rivals() if role is TrialRole.SCREENING else (),
            is_reference=role is TrialRole.BASELINE or point == self._space.default_point,
            needs_new_launch=needs_new_launch,
        )

    def _rivals(self) -> tuple[ObjectivePair, ...]:
        places = [
            place for trial in self.trials if (place := place_of(trial, self._request.latency_metric)) is not None
        ]
        return tuple(places[i] for i in non_dominated(places))
