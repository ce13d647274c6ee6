"""A job's windows with the drift of its baseline divided out. Pure.

Place in the job's order stands for time: a pause of a stopped job is no drift, and a resumed job gets the figures of an
undisturbed one. The longest stretch whose baseline allows it is mended by one line: first the whole job, then the
finals alone, then each stretch between two baselines for itself. Windows of a stretch that no line mends are left out,
with the reason. Without repeats of a baseline nothing is changed.

Latency has a line of its own. Where the baseline's latency changed too much for one, latency stays as measured: the
tail of a window scatters more than its energy, and between sessions that scatter shows in the interval.

The baseline's own windows stay as measured: corrected by themselves they would show no scatter at all.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tuner.drift import BaselineDrifted, Drift
from tuner.measurement import Estimate
from tuner.point import OperatingPoint
from tuner.repeats import Place
from tuner.trial import Trial, TrialRole


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A trial's window with its figures on both axes, as they are to be used."""

    trial: Trial
    place: Place
    #: Whether drift was divided out of the figures.
    is_corrected: bool = False
    #: Why the window must not be used beside the others, in words; None when it may.
    left_out: str | None = None

    @property
    def time(self) -> float:
        """Its place in the job's order, which stands for time."""
        return float(self.trial.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """Part of a job whose baseline follows a line."""

    first: float
    last: float
    tok_per_j: Drift
    #: None where the baseline's latency does not follow one.
    latency_ms: Drift | None


def without_drift(windows: Sequence[Window]) -> list[Window]:
    """Return the windows of one origin in the same order, with the baseline's drift divided out of their figures."""
    baselines = [one for one in windows if one.trial.role is TrialRole.BASELINE and _is_anchor(one)]
    if len(baselines) < 2:
        return list(windows)
    point = baselines[0].trial.point
    whole = _fitted([one for one in windows if one.trial.point == point and _is_anchor(one)], is_open=True)
    if isinstance(whole, _Stretch):
        return [_corrected(one, (whole,), point, "") for one in windows]
    return _finals_without_drift(windows, baselines, point)


def _finals_without_drift(
    windows: Sequence[Window], baselines: Sequence[Window], point: OperatingPoint
) -> list[Window]:
    """Correct the finals alone: nothing tells what became of the baseline's figures while points were screened."""
    finals = _fitted(baselines, is_open=True)
    if isinstance(finals, _Stretch):
        stretches: tuple[_Stretch, ...] = (finals,)
        why = ""
    else:
        fits = (_fitted(pair) for pair in pairwise(baselines))
        stretches = tuple(fit for fit in fits if isinstance(fit, _Stretch))
        why = f"{finals.reason}: {finals.detail}"
    shown = [
        one if one.trial.role is TrialRole.SCREENING else _corrected(one, stretches, point, why) for one in windows
    ]
    repeated = {one.trial.point for one in shown if one.trial.role is not TrialRole.SCREENING and one.left_out is None}
    why_screened = "baseline_drifted: the baseline changed too much between screening and finals"
    return [
        dataclasses.replace(one, left_out=why_screened)
        if one.trial.role is TrialRole.SCREENING and one.trial.point in repeated
        else one
        for one in shown
    ]


def _is_anchor(window: Window) -> bool:
    """Tell whether a window of the baseline's point may tell of drift: measured by this job, to its end."""
    trial = window.trial
    is_whole = trial.measurement is not None and trial.measurement.cut_by is None
    return trial.reused_from is None and is_whole and window.place.tok_per_j.value > 0


def _fitted(anchors: Sequence[Window], *, is_open: bool = False) -> _Stretch | BaselineDrifted:
    """Fit lines through a baseline's windows; an open stretch reaches beyond the first and the last of them."""
    times = [one.time for one in anchors]
    tok_per_j = Drift.fit(times, [one.place.tok_per_j.value for one in anchors])
    if isinstance(tok_per_j, BaselineDrifted):
        return tok_per_j
    latencies_ms = [one.place.latency_ms.value for one in anchors]
    latency_ms = Drift.fit(times, latencies_ms) if min(latencies_ms) > 0 else None
    return _Stretch(
        first=-math.inf if is_open else times[0],
        last=math.inf if is_open else times[-1],
        tok_per_j=tok_per_j,
        latency_ms=latency_ms if isinstance(latency_ms, Drift) else None,
    )


def _corrected(window: Window, stretches: Sequence[_Stretch], point: OperatingPoint, why: str) -> Window:
    """Divide the drift of the stretch that a window lies in out of it; leave it out for `why` where there is none."""
    if window.trial.reused_from is not None:
        return window
    within = [one for one in stretches if one.first <= window.time <= one.last]
    if not within:
        return dataclasses.replace(window, left_out=why)
    if window.trial.point == point:
        return window
    return dataclasses.replace(window, place=_corrected_place(window, within[0], stretches), is_corrected=True)


def _corrected_place(window: Window, stretch: _Stretch, stretches: Sequence[_Stretch]) -> Place:
    """Return the figures at the conditions that all stretches have in the mean."""
    latency_drifts = [one.latency_ms for one in stretches if one.latency_ms is not None]
    latency_ms = window.place.latency_ms
    if stretch.latency_ms is not None and len(latency_drifts) == len(stretches):
        latency_ms = _levelled(window.time, latency_ms, stretch.latency_ms, latency_drifts)
    tok_per_j_drifts = [one.tok_per_j for one in stretches]
    return Place(
        tok_per_j=_levelled(window.time, window.place.tok_per_j, stretch.tok_per_j, tok_per_j_drifts),
        latency_ms=latency_ms,
    )


def _levelled(time: float, figure: Estimate, drift: Drift, drifts: Sequence[Drift]) -> Estimate:
    """Divide the drift out of a figure, and bring the stretch's level to the mean level of all stretches."""
    scale = statistics.geometric_mean([one.level for one in drifts]) / drift.level
    corrected = drift.corrected(time, figure)
    return Estimate(
        corrected.value * scale,
        None if corrected.low is None else corrected.low * scale,
        None if corrected.high is None else corrected.high * scale,
    )
