"""From what a method found out to a Reading: the record both meters fill in.

Knows nothing of counters or power; knows which reasons apply to every method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from probes.clock import Clock, Mark
from probes.device import Conditions, Method, PowerSample, PowerSource, Reading
from probes.metering.sampler import Run
from probes.validity import Reason

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Whose energy is reported, and in what terms."""

    source: PowerSource
    device_uuids: tuple[str, ...]
    #: Stand beside every reading.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a method found out about one stretch."""

    energy_j: float | None
    method: Method
    detail: str
    uncertainty_j: float | None = None
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    trace: tuple[PowerSample, ...] = ()
    conditions: tuple[Conditions, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Where a stretch began."""

    begin: Mark
    start_s: float

    def reading(self, subject: Subject, findings: Findings, *, end_s: float, clock: Clock) -> Reading:
        """Return the findings as a Reading that ends at `end_s`; a suspend in between counts against it."""
        is_suspended = self.begin.is_suspended_until(Mark.now(clock))
        reasons = (*findings.reasons, *((Reason.SUSPENDED,) if is_suspended else ()))
        return Reading(
            energy_j=findings.energy_j,
            start_s=self.start_s,
            end_s=end_s,
            scope=subject.source.scope,
            method=findings.method,
            detail=findings.detail,
            device_uuids=subject.device_uuids,
            uncertainty_j=findings.uncertainty_j,
            reasons=unique(reasons),
            notes=unique((*subject.notes, *findings.notes)),
            trace=findings.trace,
            conditions=findings.conditions,
        )


def not_started(subject: Subject, clock: Clock) -> Reading:
    """Return the reading of a stretch that never began."""
    now_s = clock.monotonic_s()
    return Reading(
        energy_j=None,
        start_s=now_s,
        end_s=now_s,
        scope=subject.source.scope,
        method=subject.source.method,
        detail=subject.source.detail,
        device_uuids=subject.device_uuids,
        reasons=(Reason.NOT_STARTED,),
        notes=subject.notes,
    )


def sampling_reasons(run: Run[T]) -> tuple[str, ...]:
    """Return what any method must hold against its sampler: a failed edge, a dead thread."""
    return (*run.failed_edges(), *((Reason.SAMPLER_DIED,) if run.has_died else ()))


def unique(codes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the codes without repeats, in order."""
    return tuple(dict.fromkeys(codes))
