"""Dominance, front and hypervolume for tokens per joule (up) against latency (down). Pure.

A trial dominates another when it is at least as good on both axes and better on one. The hypervolume is the area
between the front and a reference corner (0 tokens per joule, `latency_reference`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tuner.measurement import Measurement
from tuner.trial import Trial


@dataclass(frozen=True, slots=True)
class ObjectivePair:
    """A trial's place on the plane."""

    tok_per_j: float
    latency_ms: float

    def dominates(self, other: ObjectivePair) -> bool:
        """Tell whether this place is at least as good on both axes and better on one."""
        at_least = self.tok_per_j >= other.tok_per_j and self.latency_ms <= other.latency_ms
        return at_least and self != other


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The non-dominated trials of a job, fastest first."""

    latency_metric: str
    trials: tuple[Trial, ...]
    #: tokens per joule x milliseconds, up to `latency_reference_ms`.
    hypervolume: float
    latency_reference_ms: float | None
    created_at: datetime


def non_dominated(pairs: Sequence[ObjectivePair]) -> list[int]:
    """Return the indices of pairs that no other dominates, by rising latency.

    Equal pairs do not dominate each other: all of them stay.
    """
    order = sorted(range(len(pairs)), key=lambda i: (pairs[i].latency_ms, -pairs[i].tok_per_j))
    kept: list[int] = []
    best = float("-inf")
    for i in order:
        is_tie = bool(kept) and pairs[kept[-1]] == pairs[i]
        if pairs[i].tok_per_j > best or is_tie:
            kept.append(i)
            best = max(best, pairs[i].tok_per_j)
    return kept


def hypervolume(pairs: Sequence[ObjectivePair], latency_reference_ms: float) -> float:
    """Area dominated by the pairs inside [0, inf) tokens per joule x (-inf, latency_reference_ms]."""
    area = 0.0
    best = 0.0
    for i in non_dominated(pairs):
        pair = pairs[i]
        if pair.latency_ms >= latency_reference_ms:
            break
        area += max(0.0, pair.tok_per_j - best) * (latency_reference_ms - pair.latency_ms)
        best = max(best, pair.tok_per_j)
    return area


def place_of(trial: Trial, latency_metric: str) -> ObjectivePair | None:
    """Return where a trial stands, or None when it may not stand on a front."""
    return figures_of(trial.measurement, latency_metric) if trial.has_front_figures else None


def figures_of(measurement: Measurement | None, latency_metric: str) -> ObjectivePair | None:
    """Return a measurement's figures on both axes; None unless it is valid and has both in finite numbers."""
    if measurement is None or not measurement.is_valid or measurement.tok_per_j is None:
        return None
    latency = measurement.latency(latency_metric)
    if latency is None or not (math.isfinite(latency.value) and math.isfinite(measurement.tok_per_j.value)):
        return None
    return ObjectivePair(measurement.tok_per_j.value, latency.value)


def front_of(trials: Sequence[Trial], latency_metric: str, *, created_at: datetime) -> Front:
    """Build the front of a job's trials; its hypervolume reaches to the slowest trial that was complete.

    A job resumed after a change may hold energy of another scope, device, model or engine version. Such figures are
    not comparable, so trials stay out that were not measured like the newest one.
    """
    placed = [(trial, place) for trial in trials if (place := place_of(trial, latency_metric)) is not None]
    newest = max((trial for trial, _ in placed), key=lambda trial: trial.started_at, default=None)
    placed = [(trial, place) for trial, place in placed if _origin(trial) == _origin(newest)]
    pairs = [place for _, place in placed]
    reference = max((pair.latency_ms for pair in pairs), default=None)
    return Front(
        latency_metric=latency_metric,
        trials=tuple(placed[i][0] for i in non_dominated(pairs)),
        hypervolume=0.0 if reference is None else hypervolume(pairs, reference),
        latency_reference_ms=reference,
        created_at=created_at,
    )


def _origin(trial: Trial | None) -> tuple[object, ...]:
    """What two trials must share for their figures to be compared."""
    if trial is None or trial.measurement is None:
        return ()
    reading, served_by = trial.measurement.reading, trial.measurement.engine
    return (
        reading.scope,
        reading.is_estimate,
        reading.device_uuids,
        trial.measurement.driver,
        served_by.engine,
        served_by.version,
        served_by.model_hash,
    )
