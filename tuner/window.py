"""When a measured window opens and closes: a state machine over an engine's steps.

Warm-up ends when it has lasted `warmup_s`, the load is steady, and the device is. A load of so many requests in flight
is steady when as many as run at once have had a first token and the number of running requests has settled (which may
be below the batch size: a small prefill chunk can keep a batch from filling). Requests that come at their own times
never settle: there, as many must have ended as are running, so that the load has turned over once. The window then
opens unless what was set on the device is not in force; it stays open for `window_s`, and longer until `min_requests`
ended in it, but never beyond `max_window_s`. It ends before its time when an `EarlyStop` has seen enough, which only
speaks against the point: that limits are met ends no window, since the energy figure needs all of it. Knows nothing of
watts but to hand them on: it calls the meter's start and stop.

A simulated minute has some 50,000 steps, so that sums are kept instead of being made anew at each.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from engine.load import Progress
from probes.device import Meter, Reading
from tuner.request import WindowRule
from tuner.sequential import Cut, EarlyStop

#: The means of two neighbouring stretches of this length are compared ...
_STEADY_S = 2.0
#: ... and may differ by this share of the batch.
_STEADY_SHARE = 0.1


class Phase(StrEnum):
    """Where a run is."""

    WARM_UP = "warm_up"
    WINDOW = "window"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a window asks of the device it is measured on; the defaults are those of one that says nothing."""

    #: Whether power and temperature have settled; asked at every step of the warm-up.
    is_settled: Callable[[], bool] = field(default=lambda: True)
    #: Why what was set is not in force under this load; asked once, before the window opens, and may take seconds.
    unattained: Callable[[], tuple[str, ...]] = field(default=lambda: ())
    #: Why what was set is no longer in force; asked once a second while the window is open.
    problems: Callable[[], tuple[str, ...]] = field(default=lambda: ())
    #: What the device draws now; asked once a second where a window may end for the energy it needs. None where it
    #: does not say, or says something else than its meter.
    power_w: Callable[[], float | None] = field(default=lambda: None)
    #: Added to the warm-up, at random from point to point, so that no load falls into step with a power sensor.
    delay_s: float = 0.0


#: Between two questions to the device while a window is open.
_ASK_INTERVAL_S = 1.0


class SteadyWindow:
    """Observes one run; `observe` says whether to go on.

    `offered` is how many requests are kept in flight; None where they come at their own times.
    """

    def __init__(
        self,
        rule: WindowRule,
        meter: Meter,
        *,
        offered: int | None,
        max_batch: int,
        watch: Watch | None = None,
        early_stop: EarlyStop | None = None,
    ) -> None:
        self._rule = rule
        self._meter = meter
        self._watch = watch or Watch()
        self._early_stop = early_stop
        self._asked_s = 0.0
        self._num_tokens = 0
        self._target = None if offered is None else min(offered, max_batch)
        self._begun_s: float | None = None
        self._neighbours = _Neighbours()
        self._num_first_tokens = 0
        self._num_ended = 0
        self._num_waiting = 0
        self._running_sum = 0
        self._num_steps = 0
        self.phase = Phase.WARM_UP
        self.start_s = 0.0
        self.reading: Reading | None = None
        self.prompt_tokens = 0
        #: The most sequences that ran at once while the window was open.
        self.peak_running = 0
        #: True when the warm-up's limit came before the steady state did.
        self.is_unsteady = False
        #: By how many requests the queue grew while the window was open.
        self.backlog_growth = 0
        #: Why what was set on the device was not in force: without a reading, no window was opened.
        self.problems: tuple[str, ...] = ()
        #: Why the window ended before its time; None where it did not.
        self.cut: Cut | None = None

    @property
    def warmup_s(self) -> float:
        """Length of the warm-up."""
        return self.start_s - (self._begun_s or 0.0)

    @property
    def mean_running(self) -> float:
        """Mean sequences running over the window's steps."""
        return self._running_sum / self._num_steps if self._num_steps else 0.0

    @property
    def is_overloaded(self) -> bool:
        """Whether requests came faster than they were served: a figure of the window would hold for no longer one.

        Arrivals at random fluctuate by the square root of their number; three times that is no chance.
        """
        chance = max(_STEADY_SHARE * self._num_ended, 3 * math.sqrt(self._num_ended))
        return self._target is None and self.backlog_growth > chance

    def observe(self, progress: Progress) -> bool:
        """Take one step's progress; False ends the run."""
        if self.phase is Phase.WINDOW:
            self._measure(progress)
        elif self.phase is Phase.WARM_UP:
            if self._begun_s is None:
                self._begun_s = progress.time_s
            self._warm_up(progress, self._begun_s)
        return self.phase is not Phase.DONE

    def _warm_up(self, progress: Progress, begun_s: float) -> None:
        self._num_first_tokens += len(progress.first_tokens)
        self._num_ended += len(progress.finished)
        self._neighbours.add(progress.time_s, progress.num_running, progress.num_steps)
        elapsed_s = progress.time_s - begun_s
        is_over_limit = elapsed_s >= self._rule.max_warmup_s + self._watch.delay_s
        is_steady = self._watch.is_settled() and self._is_steady(progress)
        if (elapsed_s >= self._rule.warmup_s + self._watch.delay_s and is_steady) or is_over_limit:
            self.is_unsteady = not is_steady
            self._num_waiting = progress.num_waiting
            self._open()

    def _open(self) -> None:
        """Begin to measure, unless what was set is not in force: then there is nothing to measure."""
        self.problems = self._watch.unattained()
        if self.problems:
            self.phase = Phase.DONE
            return
        self.start_s = self._asked_s = self._meter.start()
        self._num_ended = 0
        self.phase = Phase.WINDOW

    def _is_steady(self, progress: Progress) -> bool:
        if self._target is None:
            return self._num_ended > 0 and self._num_ended >= progress.num_running
        if self._num_first_tokens < self._target:
            return False
        return self._neighbours.difference() <= _STEADY_SHARE * self._target

    def _measure(self, progress: Progress) -> None:
        time_s = progress.time_s
        if time_s < self.start_s:  # reported late: the engine went on while the meter was starting
            return
        self._num_ended += len(progress.finished)
        self._running_sum += progress.num_running * progress.num_steps
        self.peak_running = max(self.peak_running, progress.num_running)
        self._num_steps += progress.num_steps
        self.prompt_tokens += progress.num_prompt_tokens
        self._num_tokens += progress.num_tokens
        if time_s >= self._asked_s + _ASK_INTERVAL_S:
            self._ask(time_s)
        elapsed_s = time_s - self.start_s
        is_long_enough = elapsed_s >= self._rule.window_s and self._num_ended >= self._rule.min_requests
        is_over = bool(self.problems) or is_long_enough or elapsed_s >= self._rule.max_window_s
        if not is_over and self._early_stop is not None:
            self.cut = self._early_stop.observe(self.start_s, time_s, progress.finished)
        if is_over or self.cut is not None:
            self.backlog_growth = progress.num_waiting - self._num_waiting
            self.reading = self._meter.stop()
            self.phase = Phase.DONE

    def _ask(self, time_s: float) -> None:
        """Ask the device whether all is as it was set, and what it draws where that is of use."""
        self.problems = self._watch.problems()
        if self._early_stop is not None and self._early_stop.wants_power:
            power_w = self._watch.power_w()
            if power_w is not None:
                self._early_stop.add_power(self._num_tokens / (time_s - self._asked_s), power_w)
        self._num_tokens = 0
        self._asked_s = time_s


class _Neighbours:
    """Running requests per step over the last two stretches of _STEADY_S, kept as sums."""

    def __init__(self) -> None:
        self._late: deque[tuple[float, int, int]] = deque()
        self._early: deque[tuple[float, int, int]] = deque()
        self._late_sum = self._late_steps = self._early_sum = self._early_steps = 0

    def add(self, time_s: float, num_running: int, num_steps: int) -> None:
        """Take steps, and let go of those that are too old."""
        self._late.append((time_s, num_running * num_steps, num_steps))
        self._late_sum += num_running * num_steps
        self._late_steps += num_steps
        while self._late[0][0] <= time_s - _STEADY_S:
            step = self._late.popleft()
            self._early.append(step)
            self._late_sum, self._late_steps = self._late_sum - step[1], self._late_steps - step[2]
            self._early_sum, self._early_steps = self._early_sum + step[1], self._early_steps + step[2]
        while self._early and self._early[0][0] < time_s - 2 * _STEADY_S:
            step = self._early.popleft()
            self._early_sum, self._early_steps = self._early_sum - step[1], self._early_steps - step[2]

    def difference(self) -> float:
        """Return by how much the means differ; 0 where steps are longer than a stretch: the warm-up has to do."""
        if not (self._early_steps and self._late_steps):
            return 0.0
        return abs(self._late_sum / self._late_steps - self._early_sum / self._early_steps)
