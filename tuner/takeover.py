"""Whether an earlier trial's measurement may stand in for a new window, and what this job makes of it. Pure.

The figures are taken as they are; the verdict is this job's own, as its limits may be others. Knows nothing of where
earlier trials are kept: that conditions and settings were the same is for whoever found them to see to.
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.measurement import Measurement
from tuner.objectives import Verdict, verdict
from tuner.request import TuneRequest
from tuner.trial import Trial, TrialState

_LIMITS = ("sla:", "quality:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """A trial of another job, with what that job asked for."""

    job_id: str
    request: TuneRequest
    trial: Trial

    @property
    def name(self) -> str:
        """Where the measurement was made, as JOB/NUMBER; of one that was itself taken over, where that was made."""
        return self.trial.reused_from or f"{self.job_id}/{self.trial.number}"


def judged_anew(request: TuneRequest, earlier: Earlier) -> Verdict | None:
    """Return what an earlier measurement means under this request's limits; None when a new window is needed.

    Only valid measurements stand in. What says something else than that a limit was missed, as broken numerics or an
    overload, holds here as well. Under a load that comes at its own times a missed limit hides whether the engine kept
    up, so that nothing which was infeasible there becomes complete here.
    """
    trial, measurement = earlier.trial, earlier.trial.measurement
    if measurement is None or not measurement.is_valid or not _is_enough(request, earlier, measurement):
        return None
    if trial.state is TrialState.INFEASIBLE and not (trial.reason or "").startswith(_LIMITS):
        return Verdict(trial.state, trial.reason, trial.detail)
    judged = verdict(request, measurement)
    if judged.state is TrialState.INFEASIBLE:
        return judged
    if measurement.cut_by is not None:  # cut because the limit was certainly missed, whatever the figure says
        return Verdict(trial.state, trial.reason, trial.detail)
    is_known_to_keep_up = trial.state is TrialState.COMPLETE or not request.workload.is_open
    return judged if judged.state is TrialState.COMPLETE and is_known_to_keep_up else None


def _is_enough(request: TuneRequest, earlier: Earlier, measurement: Measurement) -> bool:
    """Whether the window is as long as this job would have it: whole, or cut by a limit that holds here too."""
    if earlier.trial.state not in (TrialState.COMPLETE, TrialState.INFEASIBLE):
        return False
    if measurement.cut_by is None:
        return True
    there, here = (
        {f"sla:{limit.metric}": limit.bound_ms for limit in asked.sla}.get(measurement.cut_by)
        for asked in (earlier.request, request)
    )
    is_missed_here = there is not None and here is not None and here <= there
    return is_missed_here and request.window.stops_early and earlier.trial.state is TrialState.INFEASIBLE
