"""A window over scripted steps."""

from __future__ import annotations

from typing import Any

from tests.tuner.factories import make_progress, make_record
from tests.tuner.scripted import ScriptedMeter, StepClock
from tuner.request import WindowRule
from tuner.sequential import EarlyStop
from tuner.window import SteadyWindow, Watch

RULE = WindowRule(warmup_s=10.0, max_warmup_s=60.0, window_s=30.0, min_requests=5, max_window_s=90.0)
#: So many requests get their first token in the first step.
FIRST = tuple("abcd")


class Run:
    """A window with its clock, fed a step at a time."""

    def __init__(
        self,
        rule: WindowRule = RULE,
        *,
        offered: int | None = 4,
        max_batch: int = 4,
        start_delay_s: float = 0.0,
        watch: Watch | None = None,
        early_stop: EarlyStop | None = None,
    ) -> None:
        self.clock = StepClock(now_s=0.0)
        self.meter = ScriptedMeter(self.clock, start_delay_s=start_delay_s)
        self.window = SteadyWindow(
            rule, self.meter, offered=offered, max_batch=max_batch, watch=watch, early_stop=early_stop
        )

    def step(self, time_s: float, **changes: Any) -> bool:
        self.clock.now_s = time_s
        return self.window.observe(make_progress(time_s, **changes))

    def steps(self, until_s: float, *, every_s: float = 0.5, **changes: Any) -> None:
        """Step on from now, up to and including `until_s`, or to the end of the window."""
        while self.clock.now_s + every_s <= until_s and self.step(self.clock.now_s + every_s, **changes):
            pass

    def start(self, **changes: Any) -> None:
        """Take the first step, in which every request gets its first token."""
        self.step(0.0, **({"first_tokens": FIRST} | changes))


def ended(count: int) -> dict[str, Any]:
    return {"finished": tuple(make_record(1.0) for _ in range(count))}
