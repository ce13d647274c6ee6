"""When a measured window opens and closes: a state machine over an engine's steps.

Warm-up ends when it has lasted `warmup_s`, as many requests as run at once have had a first token, the number of
running requests has settled (which may be below the batch size: a small prefill chunk can keep a batch from filling),
and the device has. The window then opens unless what was set on the device is not in force; it stays open for
`window_s`, and longer until `min_requests` ended in it, but never beyond `max_window_s`. Knows nothing of watts: it
calls the meter's start and stop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from engine.load import Progress
from probes.device import Meter, Reading
from tuner.request import WindowRule

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
    #: Added to the warm-up, at random from point to point, so that no load falls into step with a power sensor.
    delay_s: float = 0.0


#: Between two questions to the device while a window is open.
_ASK_INTERVAL_S = 1.0


class SteadyWindow:
    """Observes one run; `observe` says whether to go on."""

    def __init__(
        self, rule: WindowRule, meter: Meter, *, offered: int, max_batch: int, watch: Watch | None = None
    ) -> None:
        self._rule = rule
        self._meter = meter
        self._watch = watch or Watch()
        self._asked_s = 0.0
        self._target = min(offered, max_batch)
        self._begun_s: float | None = None
        self._recent: deque[tuple[float, int]] = deque()
        self._num_first_tokens = 0
        self._num_ended = 0
        self._running_sum = 0
        self._num_steps = 0
        self.phase = Phase.WARM_UP
        self.start_s = 0.0
        self.reading: Reading | None = None
        self.prompt_tokens = 0
        #: True when the warm-up's limit came before the steady state did.
        self.is_unsteady = False
        #: Why what was set on the device was not in force: without a reading, no window was opened.
        self.problems: tuple[str, ...] = ()

    @property
    def warmup_s(self) -> float:
        """Length of the warm-up."""
        return self.start_s - (self._begun_s or 0.0)

    @property
    def mean_running(self) -> float:
        """Mean sequences running over the window's steps."""
        return self._running_sum / self._num_steps if self._num_steps else 0.0

    def observe(self, progress: Progress) -> bool:
        """Take one step's progress; False ends the run."""
        if self._begun_s is None:
            self._begun_s = progress.time_s
        if self.phase is Phase.WARM_UP:
            self._warm_up(progress, self._begun_s)
        elif self.phase is Phase.WINDOW:
            self._measure(progress)
        return self.phase is not Phase.DONE

    def _warm_up(self, progress: Progress, begun_s: float) -> None:
        self._num_first_tokens += len(progress.first_tokens)
        self._recent.append((progress.time_s, progress.num_running))
        while self._recent[0][0] < progress.time_s - 2 * _STEADY_S:
            self._recent.popleft()
        elapsed_s = progress.time_s - begun_s
        is_over_limit = elapsed_s >= self._rule.max_warmup_s + self._watch.delay_s
        is_steady = self._watch.is_settled() and self._is_steady(progress.time_s)
        if (elapsed_s >= self._rule.warmup_s + self._watch.delay_s and is_steady) or is_over_limit:
            self.is_unsteady = not is_steady
            self._open()

    def _open(self) -> None:
        """Begin to measure, unless what was set is not in force: then there is nothing to measure."""
        self.problems = self._watch.unattained()
        if self.problems:
            self.phase = Phase.DONE
            return
        self.start_s = self._asked_s = self._meter.start()
        self.phase = Phase.WINDOW

    def _is_steady(self, now_s: float) -> bool:
        if self._num_first_tokens < self._target:
            return False
        late = [count for time_s, count in self._recent if time_s > now_s - _STEADY_S]
        early = [count for time_s, count in self._recent if time_s <= now_s - _STEADY_S]
        if not early:  # steps longer than the stretch: the warm-up's own length has to do
            return True
        return abs(sum(late) / len(late) - sum(early) / len(early)) <= _STEADY_SHARE * self._target

    def _measure(self, progress: Progress) -> None:
        if progress.time_s < self.start_s:  # reported late: the engine went on while the meter was starting
            return
        self._num_ended += len(progress.finished)
        self._running_sum += progress.num_running
        self._num_steps += 1
        self.prompt_tokens += progress.num_prompt_tokens
        if progress.time_s >= self._asked_s + _ASK_INTERVAL_S:
            self._asked_s = progress.time_s
            self.problems = self._watch.problems()
        elapsed_s = progress.time_s - self.start_s
        is_long_enough = elapsed_s >= self._rule.window_s and self._num_ended >= self._rule.min_requests
        if self.problems or is_long_enough or elapsed_s >= self._rule.max_window_s:
            self.reading = self._meter.stop()
            self.phase = Phase.DONE
