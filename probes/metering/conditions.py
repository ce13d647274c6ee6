"""What a GPU was like over a window, and what of it speaks against the figures.

Pure. Knows nothing of how any of it was read, nor of energy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from probes import clock_events
from probes.device import Conditions, Status
from probes.metering.sampler import LONGEST_GAP_S, longest_gap_s
from probes.settings import DeviceSettings
from probes.validity import Note, Reason

#: A clock event seen in a larger share of samples was no passing moment.
TOLERATED_EVENT_SHARE = 0.01
#: A clock off its cap in a larger share of samples was not held.
TOLERATED_OFF_SHARE = 0.05
#: A clock seen in a smaller share of samples is not known to have been held.
LEAST_KNOWN_SHARE = 0.90
#: Grid of the SM clock on every board seen, where the list of supported clocks does not tell.
USUAL_CLOCK_STEP_MHZ = 15
#: Limits are whole watts rounded down, so 700 W may read 699 from one look to the next.
LIMIT_TOLERANCE_W = 1

Judgement = tuple[tuple[str, ...], tuple[str, ...]]

_REASON_BY_EVENT = {
    clock_events.HW_THERMAL: Reason.HW_THERMAL,
    clock_events.SW_THERMAL: Reason.SW_THERMAL,
    clock_events.HW_SLOWDOWN: Reason.HW_SLOWDOWN,
    clock_events.POWER_BRAKE: Reason.POWER_BRAKE,
    clock_events.SYNC_BOOST: Reason.SYNC_BOOST,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is set on a board, at one instant; None where it does not say."""

    time_s: float
    #: The power limit that was last set.
    set_w: float | None = None
    #: The lowest of all limits in force.
    enforced_w: float | None = None
    is_persistent: bool | None = None


def conditions_of(statuses: Sequence[Status], device_uuid: str) -> Conditions:
    """Return clocks, temperatures, limit and clock events over the samples of a window."""
    clocks = [status.clock_mhz for status in statuses if status.clock_mhz is not None]
    memory_clocks = [status.memory_clock_mhz for status in statuses if status.memory_clock_mhz is not None]
    temperatures = [status.temperature_c for status in statuses if status.temperature_c is not None]
    limits = [status.power_limit_w for status in statuses if status.power_limit_w is not None]
    return Conditions(
        device_uuid=device_uuid,
        num_samples=len(statuses),
        mean_clock_mhz=fmean(clocks) if clocks else None,
        lowest_clock_mhz=min(clocks, default=None),
        highest_clock_mhz=max(clocks, default=None),
        mean_memory_clock_mhz=fmean(memory_clocks) if memory_clocks else None,
        start_temperature_c=temperatures[0] if temperatures else None,
        end_temperature_c=temperatures[-1] if temperatures else None,
        highest_temperature_c=max(temperatures, default=None),
        power_limit_w=limits[-1] if limits else None,
        event_shares=tuple(event_shares(statuses).items()),
    )


def event_shares(statuses: Sequence[Status]) -> dict[str, float]:
    """Return the share of samples, 0 to 1, that showed each clock event; the most frequent first."""
    counts = Counter(event for status in statuses for event in status.events)
    return {event: count / len(statuses) for event, count in counts.most_common()}


def judge(
    statuses: Sequence[Status],
    settings: DeviceSettings,
    settable_step: int | None = None,
    limits: Sequence[Limits] = (),
) -> Judgement:
    """Return the reasons against a window with these samples, and the notes beside it.

    `settings` is what was set for it, `settable_step` the distance in MHz from the SM clock cap to the next supported
    clock below, and `limits` what was read back in the course of it, its beginning first.
    """
    frequent = {event for event, share in event_shares(statuses).items() if share > TOLERATED_EVENT_SHARE}
    reasons: list[str] = [reason for event, reason in _REASON_BY_EVENT.items() if event in frequent]
    cap_mhz = settings.sm_clock_cap_mhz
    if cap_mhz is not None and not _is_held(statuses, cap_mhz, settable_step or USUAL_CLOCK_STEP_MHZ):
        reasons.append(Reason.CLOCK_NOT_HELD)
    reasons += judge_limits(limits, settings.power_cap_w)
    notes = (Note.POWER_LIMITED,) if clock_events.SW_POWER_CAP in frequent else ()
    return tuple(reasons), notes


def judge_gaps(times_s: Sequence[float], start_s: float, end_s: float) -> tuple[str, ...]:
    """Return what speaks against a window seen at these instants (monotonic seconds, in order, all within it).

    What a card was like during a gap is not known, even where its counter went on.
    """
    has_gap = longest_gap_s([start_s, *times_s, end_s]) > LONGEST_GAP_S
    return (Reason.SAMPLING_GAP,) if has_gap else ()


def judge_limits(limits: Sequence[Limits], cap_w: int | None) -> tuple[str, ...]:
    """Return what speaks against limits that were read back, of which `cap_w` was set."""
    reasons: list[str] = []
    set_w = [limit.set_w for limit in limits if limit.set_w is not None]
    enforced_w = [limit.enforced_w for limit in limits if limit.enforced_w is not None]
    has_other_cap = cap_w is not None and any(abs(limit_w - cap_w) > LIMIT_TOLERANCE_W for limit_w in set_w)
    if has_other_cap or _changes(set_w) or _changes(enforced_w):
        reasons.append(Reason.EXTERNAL_CHANGE)
    if cap_w is not None and any(limit_w < cap_w - LIMIT_TOLERANCE_W for limit_w in enforced_w):
        reasons.append(Reason.LIMIT_OVERRIDDEN)
    persistence = [limit.is_persistent for limit in limits if limit.is_persistent is not None]
    if any(was and not still for was, still in pairwise(persistence)):
        reasons.append(Reason.PERSISTENCE_LOST)
    return tuple(reasons)


def judge_processes(engine: Collection[int], foreign: Collection[int], *, is_elsewhere: bool) -> Judgement:
    """Return what the processes seen computing on the card say against the window.

    `engine` are those of the engine that were ever seen, `foreign` those of nobody we know; `is_elsewhere` says that
    the engine was seen on a card outside those that are measured. Where only strangers are seen, their numbers are of
    another namespace, as in a container, and nothing can be said.
    """
    mismatch = (Reason.GPU_COUNT_MISMATCH,) if is_elsewhere else ()
    if not foreign:
        return mismatch, ()
    if not is_elsewhere and not engine:
        return (), (Note.GPU_PROCESSES_UNKNOWN,)
    return (*mismatch, Reason.FOREIGN_GPU_PROCESS), ()


def _is_held(statuses: Sequence[Status], cap_mhz: int, step_mhz: int) -> bool:
    known = [status for status in statuses if status.clock_mhz is not None]
    if not known or len(known) < LEAST_KNOWN_SHARE * len(statuses):
        return False
    return sum(_is_off(status, cap_mhz, step_mhz) for status in known) <= TOLERATED_OFF_SHARE * len(known)


def _is_off(status: Status, cap_mhz: int, step_mhz: int) -> bool:
    """Return whether the clock is above the cap, or below it without a cause that the caller accepts."""
    clock_mhz = status.clock_mhz or 0.0
    if clock_mhz > cap_mhz + step_mhz:
        return True
    is_explained = clock_events.SW_POWER_CAP in status.events or clock_events.IDLE in status.events
    return clock_mhz < cap_mhz - step_mhz and not is_explained


def _changes(values: Sequence[float]) -> bool:
    return any(abs(value - values[0]) > LIMIT_TOLERANCE_W for value in values[1:])
