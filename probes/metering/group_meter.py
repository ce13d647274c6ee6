"""The energy of several devices over the stretch that all of them measured.

Each member's edges lie on its own counter's steps, so the members' stretches differ by up to a step at either end.
What a member used outside the common stretch is taken off at its mean power, and counted as uncertain in full.

Never a sum of some members. Knows nothing of how a member measures.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from probes.clock import Clock
from probes.device import Meter, Method, PowerSample, PowerSource, Reading
from probes.errors import DeviceLost, ProbeError
from probes.metering.findings import unique
from probes.metering.together import together
from probes.validity import Reason

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What came of one member."""

    uuid: str
    #: None when its meter could not be asked.
    reading: Reading | None
    #: What its meter raised.
    error: ProbeError | None = None

    @property
    def is_missing(self) -> bool:
        """Whether the member was not there, or another one answered in its place."""
        return (
            self.reading is None or DeviceLost.kind in self.reading.reasons or self.reading.device_uuids != (self.uuid,)
        )

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons against this member's figure."""
        missing = (Reason.GPU_COUNT_MISMATCH,) if self.is_missing else ()
        own = (self.error.kind,) if self.error else ()
        return (*own, *(self.reading.reasons if self.reading else ()), *missing)

    @property
    def against(self) -> str:
        """The reasons in words, with what the driver said."""
        said = f" ({self.error})" if self.error else ""
        return ", ".join(self.reasons) + said


class GroupMeter:
    """Runs the members' meters side by side and adds up their readings."""

    def __init__(self, meters: Mapping[str, Meter], source: PowerSource, *, clock: Clock) -> None:
        """Take one meter for each UUID; `source` is what the group's readings are labelled with."""
        self._meters = dict(meters)
        self._source = source
        self._clock = clock
        self._errors: dict[str, ProbeError] = {}

    def start(self) -> float:
        """Begin on all members at once; return the latest of their starts.

        A member that fails here makes the reading invalid, and `stop` says so.
        """
        started = self._ask_all(lambda meter: meter.start())
        self._errors = {uuid: begun for uuid, begun in started.items() if isinstance(begun, ProbeError)}
        starts_s = [begun for begun in started.values() if not isinstance(begun, ProbeError)]
        return max(starts_s, default=self._clock.monotonic_s())

    def stop(self) -> Reading:
        """End on all members at once; return the sum over the stretch they have in common, or None and why."""
        parts = []
        for uuid, ended in self._ask_all(lambda meter: meter.stop()).items():
            error = ended if isinstance(ended, ProbeError) else self._errors.get(uuid)
            parts.append(
                Part(uuid=uuid, reading=None if error or isinstance(ended, ProbeError) else ended, error=error)
            )
        self._errors = {}
        return combined(parts, self._source, now_s=self._clock.monotonic_s())

    def close(self) -> None:
        """Stop all members' sampling. Idempotent."""
        for meter in self._meters.values():
            meter.close()

    def _ask_all(self, ask: Callable[[Meter], T]) -> dict[str, T | ProbeError]:
        asked = together([partial(_answer_of, ask, meter) for meter in self._meters.values()], self._clock)
        return dict(zip(self._meters, asked, strict=True))


def combined(parts: Sequence[Part], source: PowerSource, *, now_s: float) -> Reading:
    """Return all members' readings as one: the sum over their common stretch, or None with the reasons of any.

    Uncertainties add up, since members of one model err alike.
    """
    readings = [part.reading for part in parts if part.reading is not None]
    start_s = max((reading.start_s for reading in readings), default=now_s)
    end_s = max(start_s, min((reading.end_s for reading in readings), default=now_s))
    reasons = unique(tuple(reason for part in parts for reason in part.reasons))
    reading = Reading(
        energy_j=None,
        start_s=start_s,
        end_s=end_s,
        scope=source.scope,
        method=worst_method([source.method, *(reading.method for reading in readings)]),
        detail=source.detail,
        device_uuids=tuple(part.uuid for part in parts),
        reasons=reasons,
        notes=unique(tuple(note for reading in readings for note in reading.notes)),
        conditions=tuple(condition for reading in readings for condition in reading.conditions),
    )
    if reasons:
        against = "; ".join(f"{part.uuid}: {part.against}" for part in parts if part.reasons)
        return replace(reading, detail=f"{source.detail}; {against}")
    if end_s == start_s:
        return replace(reading, reasons=(Reason.WINDOW_TOO_SHORT,))
    return _added(reading, readings)


def worst_method(methods: Iterable[Method]) -> Method:
    """Return the method that a sum must own up to: Method's members are in order, the best first."""
    return max(methods, key=tuple(Method).index)


def _added(common: Reading, readings: Sequence[Reading]) -> Reading:
    """Return the common stretch with the members' energies in it."""
    # With a power each member was valid; without one the sum is not known either.
    powers_w = [reading.mean_power_w for reading in readings if reading.mean_power_w is not None]
    if len(powers_w) < len(readings):
        return common
    trims_s = [reading.duration_s - common.duration_s for reading in readings]
    known_j = [reading.uncertainty_j for reading in readings if reading.uncertainty_j is not None]
    trimmed_j = sum(power_w * trim_s for power_w, trim_s in zip(powers_w, trims_s, strict=True))
    return replace(
        common,
        energy_j=sum(powers_w) * common.duration_s,
        uncertainty_j=sum(known_j) + trimmed_j if len(known_j) == len(readings) else None,
        detail=f"{common.detail}; up to {max(trims_s):.3f} s of a member lay outside the common stretch and "
        "was taken off at its mean power",
        trace=_added_traces([reading.trace for reading in readings]),
    )


def _added_traces(traces: Sequence[Sequence[PowerSample]]) -> tuple[PowerSample, ...]:
    """Return the sum of the powers at the first member's instants, as far as all others reach."""
    if not all(traces):
        return ()
    first_s = max(trace[0].time_s for trace in traces)
    last_s = min(trace[-1].time_s for trace in traces)
    times_s = [sample.time_s for sample in traces[0] if first_s <= sample.time_s <= last_s]
    return tuple(
        PowerSample(time_s=time_s, power_w=sum(_power_w(trace, time_s) for trace in traces)) for time_s in times_s
    )


def _power_w(trace: Sequence[PowerSample], time_s: float) -> float:
    """Return a trace's power at an instant it reaches, linear between neighbours."""
    after = min(bisect_right(trace, time_s, key=lambda sample: sample.time_s), len(trace) - 1)
    left, right = trace[max(after - 1, 0)], trace[after]
    if right.time_s == left.time_s:
        return right.power_w
    share = (time_s - left.time_s) / (right.time_s - left.time_s)
    return left.power_w + share * (right.power_w - left.power_w)


def _answer_of(ask: Callable[[Meter], T], meter: Meter) -> T | ProbeError:
    try:
        return ask(meter)
    except ProbeError as error:
        return error
