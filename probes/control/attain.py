"""Whether a clock cap is kept: judged by the clock under load, since no driver call tells which lock is in force.

Does not make the load, and does not know it: an idle device keeps any cap.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from probes.clock import Clock
from probes.errors import ProbeError
from probes.validity import Reason

#: So many readings in a row must be within the cap.
NUM_READS = 5
INTERVAL_S = 0.1
#: How long switching takes differs between frequencies and boards, so it is waited for, up to this.
TIMEOUT_S = 10.0


def cap_attained(
    read_clock_mhz: Callable[[], float | None],
    cap_mhz: float,
    step_mhz: float,
    clock: Clock,
    *,
    timeout_s: float = TIMEOUT_S,
) -> tuple[Reason, ...]:
    """Return nothing once the clock is within the cap in five readings in a row, 100 ms apart; else why not.

    To be called while the device is under load. `step_mhz` is the distance to the next lower clock: half of it is
    allowed above the cap, for a driver that rounds. A reading that fails, or says nothing, is no evidence and begins
    the row anew: a cap that cannot be verified is not trusted, so such a trial counts as `clock_not_attained` too.
    """
    deadline_s = clock.monotonic_s() + timeout_s
    num_within = 0
    while True:
        num_within = num_within + 1 if _is_within(read_clock_mhz, cap_mhz + step_mhz / 2) else 0
        if num_within == NUM_READS:
            return ()
        if clock.monotonic_s() + INTERVAL_S > deadline_s:
            return (Reason.CLOCK_NOT_ATTAINED,)
        clock.wait(Event(), INTERVAL_S)


def _is_within(read_clock_mhz: Callable[[], float | None], highest_mhz: float) -> bool:
    try:
        clock_mhz = read_clock_mhz()
    except ProbeError:
        return False
    return clock_mhz is not None and 0 < clock_mhz <= highest_mhz
