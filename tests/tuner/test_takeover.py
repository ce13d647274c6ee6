"""Which earlier measurements stand in for a window, and what a job makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.db.factories import make_measurement, make_request, make_trial
from tuner.objectives import Verdict
from tuner.request import Limit, TuneRequest, WindowRule, WorkloadSpec
from tuner.takeover import Earlier, judged_anew
from tuner.trial import Trial, TrialState

#: Of the factories' measurement: what the limits below are above or below of.
TTFT_P99_MS = 31.0
SLA = "sla:ttft_p99_ms"
COMPLETE = Verdict(TrialState.COMPLETE)
OPEN = WorkloadSpec(scenario="server", rate_per_s=3.0)


def asked(bound_ms: float | None, **changes: Any) -> TuneRequest:
    """A request with a TTFT limit, or with none."""
    limits = () if bound_ms is None else (Limit(metric="ttft_p99_ms", bound_ms=bound_ms),)
    return make_request(sla=limits, **changes)


def earlier(trial: Trial, bound_ms: float | None = None) -> Earlier:
    return Earlier(job_id="ab" * 16, request=asked(bound_ms), trial=trial)


def cut(by: str, **changes: Any) -> Trial:
    return make_trial(
        state=TrialState.INFEASIBLE, reason=by, detail="cut", measurement=make_measurement(cut_by=by), **changes
    )


def test_a_complete_trial_is_judged_by_the_limits_here() -> None:
    """The same figures are complete under a limit above them and infeasible, with this limit's words, below."""
    assert judged_anew(asked(TTFT_P99_MS + 1), earlier(make_trial())) == COMPLETE
    missed = judged_anew(asked(TTFT_P99_MS - 1), earlier(make_trial()))
    assert Verdict(TrialState.INFEASIBLE, SLA, "ttft_p99_ms is 31, the limit is 30") == missed


def test_what_missed_a_limit_there_may_be_complete_here() -> None:
    """A whole window of a closed load that missed a tighter limit is complete under a looser one."""
    trial = make_trial(state=TrialState.INFEASIBLE, reason=SLA)
    assert judged_anew(asked(None), earlier(trial, TTFT_P99_MS - 1)) == COMPLETE


def test_a_missed_limit_hides_whether_the_engine_kept_up() -> None:
    """Under a load at its own times nothing that was infeasible becomes complete; it is measured anew."""
    trial = make_trial(state=TrialState.INFEASIBLE, reason=SLA)
    assert judged_anew(asked(None, workload=OPEN), earlier(trial)) is None
    assert judged_anew(asked(None, workload=OPEN), earlier(make_trial())) == COMPLETE


@pytest.mark.parametrize("reason", ["overloaded", "numerics"])
def test_what_is_wrong_beside_the_limits_stays_wrong(reason: str) -> None:
    """An overload or broken numerics hold under any limits."""
    trial = make_trial(state=TrialState.INFEASIBLE, reason=reason, detail="why")
    assert Verdict(TrialState.INFEASIBLE, reason, "why") == judged_anew(asked(None), earlier(trial))


@pytest.mark.parametrize(
    "trial",
    [
        make_trial(state=TrialState.FAILED, reason="out_of_memory", measurement=None),
        make_trial(state=TrialState.FAILED, reason="no_tokens"),
        make_trial(state=TrialState.INTERRUPTED, measurement=None),
        make_trial(state=TrialState.INVALID, measurement=make_measurement(reasons=("no_steady_state",))),
        make_trial(measurement=make_measurement(tok_per_j=None)),
    ],
    ids=["no measurement", "failed", "interrupted", "invalid", "no energy"],
)
def test_what_was_not_measured_well_is_measured_anew(trial: Trial) -> None:
    """Failed, interrupted and invalid trials stand in for nothing."""
    assert judged_anew(asked(None), earlier(trial)) is None


def test_a_figure_that_the_front_needs_must_be_there() -> None:
    """A measurement without a sample of this job's latency axis does not do."""
    assert judged_anew(asked(None, latency_metric="e2e_p99_ms"), earlier(make_trial())) is None


class TestCutWindows:
    """A window that ended early says only what it was cut for."""

    @pytest.mark.parametrize("bound_ms", [500.0, 400.0, TTFT_P99_MS - 1])
    def test_a_limit_that_holds_here_was_missed_here(self, bound_ms: float) -> None:
        """A window cut by a limit is infeasible for that reason under the same limit or a tighter one."""
        judged = judged_anew(asked(bound_ms), earlier(cut(SLA), 500.0))
        assert judged is not None
        assert (judged.state, judged.reason) == (TrialState.INFEASIBLE, SLA)

    @pytest.mark.parametrize("bound_ms", [501.0, None])
    def test_a_looser_limit_needs_a_whole_window(self, bound_ms: float | None) -> None:
        """Without that limit, or with a looser one, nothing is known."""
        assert judged_anew(asked(bound_ms), earlier(cut(SLA), 500.0)) is None

    def test_a_job_of_whole_windows_takes_no_other(self) -> None:
        """A job that does not stop windows early gets the whole one that it asked for."""
        request = asked(500.0, window=WindowRule(stops_early=False))
        assert judged_anew(request, earlier(cut(SLA), 500.0)) is None

    def test_what_was_dominated_there_need_not_be_here(self) -> None:
        """A window cut because other points were better is measured anew."""
        assert judged_anew(asked(500.0), earlier(cut("dominated"), 500.0)) is None


def test_the_name_is_that_of_the_first_measurement() -> None:
    """However often a measurement is passed on, it is named after the trial in which it was made."""
    first = earlier(make_trial(number=3))
    assert first.name == "ab" * 16 + "/3"
    passed_on = replace(first, trial=make_trial(reused_from="cd" * 16 + "/7"))
    assert passed_on.name == "cd" * 16 + "/7"
