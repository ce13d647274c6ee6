"""What a job's trials showed, as arrays by point: the surrogates' food. Knows nothing of how points are chosen.

Repeats of one point are one observation: the mean of their logarithms. A point counts as sound when it gave figures;
one that crashed, ran out of memory or never settled teaches where not to go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probes.clock_events import SW_POWER_CAP
from probes.errors import DeviceLost, Uncontrolled
from probes.validity import Reason
from tuner.measurement import Measurement
from tuner.objectives import violations
from tuner.pareto import figures_of
from tuner.point import OperatingPoint
from tuner.request import TuneRequest
from tuner.trial import Trial, TrialState

Array = NDArray[np.float64]

#: A limit that is missed by its whole bound and more teaches no more than that.
_MOST_MISSED = 20.0
#: Fewer looks at a device say nothing of its caps. What none of 100 showed took less than 3 % of the time, at 95 %.
LEAST_LOOKS = 100
#: A board that its power cap holds down draws nearly the cap. One that draws more than this share of it on average is
#: not taken for free, whatever it says of its clock events: some boards say nothing of them.
FREE_POWER_SHARE = 0.9
#: Reasons that lie with the device or its readings and would have struck any point; a clock that is not kept is the
#: point's own.
MISHAPS = frozenset(
    {*(reason.value for reason in Reason), DeviceLost.kind, Uncontrolled.kind}
    - {Reason.CLOCK_NOT_ATTAINED, Reason.CLOCK_NOT_HELD}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One point with what its trials showed; logarithms are natural."""

    point: OperatingPoint
    num_windows: int
    log_tok_per_j: float
    log_latency_ms: float
    #: Time between two tokens of a sequence; None where no request ended in the window.
    log_step_ms: float | None
    #: By limit: logarithm of its figure over its bound, 0 or less is inside.
    log_limits: Mapping[str, float]
    is_feasible: bool
    #: The most sequences that ran at once; None where it was not counted.
    peak_running: int | None
    #: Whether the power cap held clocks down in any look of a whole window; None where no window can tell.
    is_power_capped: bool | None
    #: The highest SM clock in any look of a whole window, over all devices; None where no window can tell.
    highest_clock_mhz: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All trials of a job."""

    observations: tuple[Observation, ...]
    #: Points without figures that may be compared, with the reason.
    failures: Mapping[OperatingPoint, str]
    #: Points that failed the quality gate: their precision will fail it everywhere.
    refused: tuple[OperatingPoint, ...]
    #: Points of which a device's mishap left no figures: it says nothing of them, or of points nearby.
    untold: frozenset[OperatingPoint] = frozenset()

    @classmethod
    def of(cls, request: TuneRequest, trials: Sequence[Trial]) -> Evidence:
        """Gather the trials by point, in the order in which points were first tried."""
        by_point: dict[OperatingPoint, list[Trial]] = {}
        for trial in trials:
            by_point.setdefault(trial.point, []).append(trial)
        observations = []
        failures = {}
        refused = []
        untold = []
        for point, its_trials in by_point.items():
            seen = [one for trial in its_trials if (one := _observed(request, trial)) is not None]
            if seen:
                observations.append(_merged(seen))
            elif its_trials[-1].reason in MISHAPS:
                untold.append(point)
            else:
                failures[point] = its_trials[-1].reason or its_trials[-1].state.value
            if any((trial.reason or "").startswith("quality:") for trial in its_trials):
                refused.append(point)
        return cls(
            observations=tuple(observations), failures=failures, refused=tuple(refused), untold=frozenset(untold)
        )

    @property
    def tried(self) -> frozenset[OperatingPoint]:
        """Every point that was tried."""
        return frozenset([*(one.point for one in self.observations), *self.failures, *self.untold])


def _observed(request: TuneRequest, trial: Trial) -> Observation | None:
    """Return what one trial showed; None when it gives no figures, or numerics spoiled them without a limit's miss."""
    measured = trial.measurement
    place = figures_of(measured, request.latency_metric)
    if measured is None or place is None or trial.state not in (TrialState.COMPLETE, TrialState.INFEASIBLE):
        return None
    shares = violations(request, measured)
    if trial.state is TrialState.INFEASIBLE and not any(share > 0 for share in shares.values()) and not measured.cut_by:
        return None
    if not (place.tok_per_j > 0 and place.latency_ms > 0):
        return None
    step = measured.tpot.p50 or measured.itl.p50
    return Observation(
        point=trial.point,
        num_windows=1,
        log_tok_per_j=math.log(place.tok_per_j),
        log_latency_ms=math.log(place.latency_ms),
        log_step_ms=math.log(step.value) if step is not None and 0 < step.value < math.inf else None,
        log_limits={
            name: math.log(max(1.0 + min(share, _MOST_MISSED), 1e-6))
            for name, share in shares.items()
            if name.startswith("sla:") and not math.isnan(share)
        },
        is_feasible=trial.state is TrialState.COMPLETE,
        # The queue of a window that is cut is still growing.
        peak_running=None if measured.cut_by else measured.peak_running,
        is_power_capped=_is_power_capped(measured),
        highest_clock_mhz=_highest_clock_mhz(measured),
    )


def _is_power_capped(measured: Measurement) -> bool | None:
    reading = measured.reading
    if not _tells_of_caps(measured):
        return None
    if any(name == SW_POWER_CAP and share > 0 for seen in reading.conditions for name, share in seen.event_shares):
        return True
    limits_w = [seen.power_limit_w for seen in reading.conditions if seen.power_limit_w is not None]
    if reading.mean_power_w is None or len(limits_w) < len(reading.conditions):
        return None
    return False if reading.mean_power_w <= FREE_POWER_SHARE * sum(limits_w) else None


def _highest_clock_mhz(measured: Measurement) -> float | None:
    seen = [one.highest_clock_mhz for one in measured.reading.conditions if one.highest_clock_mhz is not None]
    is_known = _tells_of_caps(measured) and len(seen) == len(measured.reading.conditions)
    return max(seen) if is_known else None


def _tells_of_caps(measured: Measurement) -> bool:
    """Return whether a window was whole and every device in it was looked at often enough."""
    looks = [seen.num_samples for seen in measured.reading.conditions]
    return measured.cut_by is None and min(looks, default=0) >= LEAST_LOOKS


def _merged(seen: Sequence[Observation]) -> Observation:
    steps = [one.log_step_ms for one in seen if one.log_step_ms is not None]
    peaks = [one.peak_running for one in seen if one.peak_running is not None]
    capped = [one.is_power_capped for one in seen if one.is_power_capped is not None]
    limits = {name: [one.log_limits[name] for one in seen if name in one.log_limits] for name in _names(seen)}
    return Observation(
        point=seen[0].point,
        num_windows=len(seen),
        log_tok_per_j=math.fsum(one.log_tok_per_j for one in seen) / len(seen),
        log_latency_ms=math.fsum(one.log_latency_ms for one in seen) / len(seen),
        log_step_ms=math.fsum(steps) / len(steps) if steps else None,
        log_limits={name: math.fsum(figures) / len(figures) for name, figures in limits.items()},
        is_feasible=all(one.is_feasible for one in seen),
        peak_running=max(peaks, default=None),
        is_power_capped=any(capped) if capped else None,
        highest_clock_mhz=max(
            (one.highest_clock_mhz for one in seen if one.highest_clock_mhz is not None), default=None
        ),
    )


def _names(seen: Sequence[Observation]) -> Sequence[str]:
    """Return the limits of which any window has a figure."""
    return tuple(dict.fromkeys(name for one in seen for name in one.log_limits))
