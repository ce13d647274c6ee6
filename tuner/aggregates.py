"""All windows of one point as one observation: the mean over sessions, with what is uncertain about it. Pure.

Two windows of one launch are not independent, so that between one session and another only sessions tell how far
figures scatter. Of a single session only the window's own interval is known, which says nothing of another launch; the
record says which of the two an interval is. Drift is divided out where a baseline shows it. Figures of another origin
(scope, device, driver, engine, model) are never combined.

Knows nothing of fronts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tuner.baseline import Window, without_drift
from tuner.fingerprint import origin_of as origin_of_measurement
from tuner.measurement import Estimate, Measurement
from tuner.objectives import violations
from tuner.point import OperatingPoint
from tuner.repeats import Combined, Place, Repeat, combined
from tuner.request import TuneRequest
from tuner.trial import Trial, TrialState


class IntervalOf(StrEnum):
    """What an interval speaks of."""

    WINDOW = "window"  # scatter inside the only window
    SESSIONS = "sessions"  # scatter between launches


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregated:
    """What the windows of one point show together."""

    point: OperatingPoint
    #: Whose windows are combined, by number.
    trials: tuple[Trial, ...]
    tok_per_j: Estimate
    latency_ms: Estimate
    num_sessions: int
    #: Whether the point is inside every limit in the mean of its windows, and in one of them outright.
    is_feasible: bool
    #: Whether all of its windows ended before their time: its figures are of what they showed until then.
    is_cut: bool
    #: Whether drift was divided out of its figures.
    is_corrected: bool
    #: Why windows of the point are not among `trials`, in words; None when all are.
    left_out: str | None

    @property
    def num_windows(self) -> int:
        """How many windows its figures are of."""
        return len(self.trials)

    @property
    def interval_of(self) -> IntervalOf:
        """What its intervals speak of."""
        return IntervalOf.SESSIONS if self.num_sessions > 1 else IntervalOf.WINDOW

    @property
    def place(self) -> Place:
        """Its place on the plane."""
        return Place(tok_per_j=self.tok_per_j, latency_ms=self.latency_ms)

    @property
    def trial(self) -> Trial:
        """The trial that stands for the point: the first that was complete, or the first of all."""
        return next((trial for trial in self.trials if trial.state is TrialState.COMPLETE), self.trials[0])

    @property
    def origin(self) -> tuple[object, ...]:
        """What its figures share with others that they may be compared with."""
        return origin_of(self.trials[0])

    def mean(self, figure: Callable[[Measurement], Estimate]) -> Estimate:
        """Combine another figure of its windows in the same way; drift stays in it."""
        shown = [(trial, figure(trial.measurement)) for trial in self.trials if trial.measurement is not None]
        return shown[0][1] if len(shown) == 1 else _combined(shown).estimate


def place_of_measurement(measurement: Measurement | None, latency_metric: str) -> Place | None:
    """Return a measurement's figures on both axes; None unless it is valid and has both in finite numbers."""
    if measurement is None or not measurement.is_valid or measurement.tok_per_j is None:
        return None
    latency = measurement.latency(latency_metric)
    if latency is None or not (math.isfinite(latency.value) and math.isfinite(measurement.tok_per_j.value)):
        return None
    return Place(tok_per_j=measurement.tok_per_j, latency_ms=latency)


def aggregated(
    trials: Sequence[Trial], latency_metric: str, *, request: TuneRequest | None = None
) -> tuple[Aggregated, ...]:
    """Return one observation for each point and origin whose windows gave figures, inside the limits or not.

    `request` has the limits that the mean of a point's windows is held to. Without it one window outside a limit puts
    the point outside. They come in the order of their first trials.
    """
    windows: dict[tuple[object, ...], list[Window]] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        place = place_of_measurement(trial.measurement, latency_metric)
        if place is not None and trial.state in (TrialState.COMPLETE, TrialState.INFEASIBLE):
            windows.setdefault(origin_of(trial), []).append(Window(trial=trial, place=place))
    points: dict[tuple[object, ...], list[Window]] = {}
    for origin, of_one in windows.items():
        for window in without_drift(of_one):
            points.setdefault((origin, window.trial.point), []).append(window)
    found = [_aggregated(of_point, request) for of_point in points.values()]
    return tuple(sorted(found, key=lambda one: one.trials[0].number))


def origin_of(trial: Trial) -> tuple[object, ...]:
    """Return what two trials must share for their figures to be compared; nothing for one without a measurement."""
    return () if trial.measurement is None else origin_of_measurement(trial.measurement).family


def _aggregated(windows: Sequence[Window], request: TuneRequest | None) -> Aggregated:
    usable = [window for window in windows if window.left_out is None] or list(windows)
    used = [window for window in usable if not _is_cut(window.trial)] or usable
    tok_per_j = _combined([(window.trial, window.place.tok_per_j) for window in used])
    latency_ms = _combined([(window.trial, window.place.latency_ms) for window in used])
    is_complete = any(window.trial.state is TrialState.COMPLETE for window in used)
    is_alone = len(used) == 1  # its own interval is then all that is known
    return Aggregated(
        point=used[0].trial.point,
        trials=tuple(window.trial for window in used),
        tok_per_j=used[0].place.tok_per_j if is_alone else tok_per_j.estimate,
        latency_ms=used[0].place.latency_ms if is_alone else latency_ms.estimate,
        num_sessions=tok_per_j.num_sessions,
        is_feasible=is_complete and _is_feasible([window.trial for window in usable], request),
        is_cut=all(_is_cut(window.trial) for window in used),
        is_corrected=any(window.is_corrected for window in used),
        left_out=next((window.left_out for window in windows if window.left_out is not None), None),
    )


def _combined(figures: Sequence[tuple[Trial, Estimate]]) -> Combined:
    return combined([Repeat(value=figure.value, session=_session(trial)) for trial, figure in figures])


def _session(trial: Trial) -> str:
    """Return the launch that a trial belongs to; of trials that do not know theirs nothing says that it was another."""
    return trial.session or trial.reused_from or "unknown"


def _is_cut(trial: Trial) -> bool:
    return trial.measurement is not None and trial.measurement.cut_by is not None


def _is_feasible(trials: Sequence[Trial], request: TuneRequest | None) -> bool:
    """Tell whether a point's windows are inside every limit in their mean.

    A window that is infeasible without missing a limit (its numerics failed, or it was overloaded) has no mean.
    """
    outside = [trial for trial in trials if trial.state is TrialState.INFEASIBLE]
    if not outside or request is None:
        return not outside
    missed = [(trial, violations(request, trial.measurement)) for trial in trials if trial.measurement is not None]
    if any(not any(share > 0 for share in shares.values()) for trial, shares in missed if trial in outside):
        return False
    names = {name for _, shares in missed for name in shares}
    means = [_combined([(trial, Estimate(s[name])) for trial, s in missed if name in s]).estimate for name in names]
    return all(mean.value <= 0 for mean in means)
