"""One trial after the other: measured, or taken over from an earlier job, and stored as it begins and as it ends.

Knows nothing of which point is next, nor of how a point is measured.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from api.reuse import EarlierResults, StandIn
from api.stores import Stores, utc_now
from api.tracing import NO_TRACES, Tracer
from db.errors import LeaseLost
from db.job import Claim
from db.trials import StartedTrial
from tuner.bench import Bench
from tuner.point import OperatingPoint
from tuner.search import Proposal
from tuner.trial import Trial, TrialRole

log = structlog.get_logger()


class Recorder:
    """Brackets each measurement with its two rows: begun, ended."""

    def __init__(
        self,
        stores: Stores,
        claim: Claim,
        bench: Bench,
        *,
        earlier: EarlierResults,
        on_started: Callable[[int, OperatingPoint], None] = lambda number, point: None,
        tracer: Tracer = NO_TRACES,
    ) -> None:
        self._tracer = tracer
        self._stores = stores
        self._claim = claim
        self._bench = bench
        self._earlier = earlier
        self._on_started = on_started
        self._started: StartedTrial | None = None

    def measure(self, proposal: Proposal) -> Trial:
        """Store that the trial begins, then measure it, or take over what an earlier job measured.

        A repeat is always a new window: that is what it is for.
        """
        told = {f"wattfront.knob.{name}": value for name, value in proposal.point.as_dict().items()}
        with (
            structlog.contextvars.bound_contextvars(trial=proposal.number),
            self._tracer.span("wattfront.trial", {"wattfront.trial": proposal.number, **told}) as span,
        ):
            trial = self._measured(proposal)
            span.note("wattfront.state", trial.state.value)
            span.note("wattfront.reason", trial.reason)
            return trial

    def _measured(self, proposal: Proposal) -> Trial:
        self._started = self._stores.trials.start(self._claim, proposal.number, proposal.point, role=proposal.role)
        self._on_started(proposal.number, proposal.point)
        if proposal.role is TrialRole.SCREENING and (found := self._earlier.stand_in(proposal.point)) is not None:
            return self._taken_over(proposal, self._started, found)
        if proposal.needs_new_launch:
            self._bench.close()
        repeat = "" if proposal.role is TrialRole.SCREENING else str(proposal.number)
        rivals = None if proposal.is_reference else proposal.rivals
        outcome = self._bench.measure(proposal.point, rivals=rivals, repeat=repeat)
        return Trial(
            number=proposal.number,
            attempt=self._started.attempt,
            point=proposal.point,
            role=proposal.role,
            state=outcome.state,
            reason=outcome.reason,
            detail=outcome.detail,
            measurement=outcome.measurement,
            started_at=self._started.started_at,
            finished_at=utc_now(),
            session=outcome.session,
            device_s=outcome.device_s,
            device_j=outcome.device_j,
        )

    def store(self, trial: Trial) -> None:
        """Store a trial's outcome; raise LeaseLost when another worker took the job meanwhile."""
        assert self._started is not None
        if not self._stores.trials.finish(self._started, trial, key=self._earlier.key_of(trial)):
            raise LeaseLost(self._claim.job_id, owner=self._claim.owner)
        log.info("trial_finished", job=self._claim.job_id, number=trial.number, state=trial.state.value,
                 reason=trial.reason, point=str(trial.point), reused_from=trial.reused_from)  # fmt: skip

    def _taken_over(self, proposal: Proposal, started: StartedTrial, found: StandIn) -> Trial:
        return Trial(
            number=proposal.number,
            attempt=started.attempt,
            point=proposal.point,
            role=proposal.role,
            state=found.verdict.state,
            reason=found.verdict.reason,
            detail=found.verdict.detail,
            measurement=found.measurement,
            started_at=started.started_at,
            finished_at=utc_now(),
            device_s=0.0,
            device_j=0.0,
            reused_from=found.reused_from,
        )
