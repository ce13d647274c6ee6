"""A point with its outcome. Knows nothing of how it was measured or where it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tuner.measurement import Measurement
from tuner.point import OperatingPoint


class TrialState(StrEnum):
    """How a trial ended, or that it has not."""

    RUNNING = "running"
    COMPLETE = "complete"  # measured, valid, inside every limit
    INFEASIBLE = "infeasible"  # measured, but a limit, the quality gate or the numerics say no
    INVALID = "invalid"  # measured, but the figures must not be used
    FAILED = "failed"  # nothing to show
    INTERRUPTED = "interrupted"  # its worker died; the point is tried again


class TrialRole(StrEnum):
    """What a trial is measured for."""

    SCREENING = "screening"  # to find out about its point
    FINALIST = "finalist"  # again, to be sure of one of the best
    BASELINE = "baseline"  # again and again the same point, to tell drift from difference


#: States that end a trial and count against the budget.
OUTCOMES = frozenset({TrialState.COMPLETE, TrialState.INFEASIBLE, TrialState.INVALID, TrialState.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One attempt at one point."""

    #: Counts the job's points from 0; a repeated attempt keeps its number.
    number: int
    #: From 1; more when attempts before it were interrupted.
    attempt: int = 1
    point: OperatingPoint
    state: TrialState
    #: Machine-readable reason for anything but COMPLETE, as in `sla:ttft_p99_ms` or `engine_died`.
    reason: str | None = None
    #: The same for people, with numbers and remedy.
    detail: str | None = None
    #: None when nothing was measured; kept for infeasible and invalid trials.
    measurement: Measurement | None = None
    started_at: datetime
    finished_at: datetime | None = None
    role: TrialRole = TrialRole.SCREENING
    #: Which launch of the engine it was measured in, the same text for all of one launch; None without a launch.
    session: str | None = None
    #: How long the device was kept: launch, warm-up, window, cooling down. Virtual seconds on a simulated device.
    device_s: float | None = None
    #: Energy of the device over that time: measured inside the window, at the window's mean power outside of it.
    device_j: float | None = None
    #: Where the measurement was taken from instead of being made anew, as `JOB/NUMBER`; None for one of its own.
    reused_from: str | None = None

    @property
    def has_front_figures(self) -> bool:
        """Whether the trial may stand on a front: complete, valid, over a whole window and with energy."""
        return (
            self.state is TrialState.COMPLETE
            and self.measurement is not None
            and self.measurement.is_valid
            and self.measurement.cut_by is None
            and self.measurement.tok_per_j is not None
        )
