"""What past jobs took: trials with both figures count, those of other devices and those taken over do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from db.database import Database
from db.jobs import JobStore
from db.past_costs import PastCosts
from db.trials import TrialStore
from tests.db.factories import Clock, make_request, make_trial


def test_costs_are_summed_over_trials_with_figures(database: Database) -> None:
    """Time and energy are of the trials that have both, and power is their ratio."""
    clock = Clock()
    jobs, trials, costs = JobStore(database, clock.now), TrialStore(database, clock.now), PastCosts(database)
    assert costs.of("smollm2-135m", "auto") is None
    for device in ("auto", "other"):
        jobs.create(make_request(device=device))
        claim = jobs.claim_next("host:1:1", 60.0)
        assert claim is not None
        figures = ((10.0, 1000.0, None), (30.0, 5000.0, None), (5.0, None, None), (1.0, 9.0, "abcd/1"))
        for number, (device_s, device_j, reused_from) in enumerate(figures):
            ended = replace(make_trial(number=number), device_s=device_s, device_j=device_j, reused_from=reused_from)
            trials.finish(trials.start(claim, number, ended.point), ended)
    found = costs.of("smollm2-135m", "auto")
    assert found is not None
    assert (found.num_jobs, found.num_trials, found.device_s, found.joules) == (1, 2, 40.0, 6000.0)
    assert found.mean_power_w == pytest.approx(150.0)
