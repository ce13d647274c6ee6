"""Several windows of one job at once, as on several devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tuner.search_jobs import JOB, SMALL, SPACE, measure_for
from tuner.request import Budget, RepeatRule, TuneRequest
from tuner.search import Proposal, Search
from tuner.space import SearchSpace
from tuner.trial import TrialRole


def run_on_devices(search: Search, request: TuneRequest, num_devices: int) -> list[list[Proposal]]:
    """Measure on so many devices, whichever was asked last being the first to be done; return what each asking gave."""
    measure = measure_for(request)
    asked: list[list[Proposal]] = []
    busy: list[Proposal] = []
    while (proposals := search.ask(num_devices - len(busy))) or busy:
        asked.append(proposals)
        busy += proposals
        search.tell(measure(busy.pop()))
    return asked


def searched(request: TuneRequest, space: SearchSpace, num_devices: int) -> tuple[Search, list[list[Proposal]]]:
    search = Search(request, space, measure_for(request))
    return search, run_on_devices(search, request, num_devices)


class TestInFlight:
    """Windows that are asked for before others have ended."""

    @pytest.mark.parametrize("sampler", ["wattfront", "tpe"])
    def test_no_point_is_measured_twice(self, sampler: str) -> None:
        """Three devices take seven different points under seven numbers, and the budget is kept."""
        search, asked = searched(replace(JOB, sampler=sampler), SPACE, 3)

        assert len(asked[0]) == 3
        assert search.ended_because == "trials"
        assert len({trial.point for trial in search.trials}) == 7
        assert set(range(7)) == {trial.number for trial in search.trials}

    def test_a_small_space_is_exhausted(self) -> None:
        """With more devices than points each point is measured once, and the search ends by itself."""
        search, _ = searched(replace(JOB, budget=Budget(trials=12)), SMALL, 8)

        assert search.ended_because == "exhausted"
        assert len(search.trials) == 4

    def test_finals_wait_for_the_last_screening(self) -> None:
        """Who is a finalist is known when all screening has ended; then windows come one after the other."""
        request = replace(JOB, budget=Budget(trials=4), repeats=RepeatRule(windows=2, finalists=2))
        search, asked = searched(request, SPACE, 3)
        roles = [trial.role for trial in search.trials]

        assert roles[:4] == [TrialRole.SCREENING] * 4
        assert TrialRole.FINALIST in roles[4:]
        assert TrialRole.SCREENING not in roles[4:]
        assert all(
            len(proposals) <= 1 for proposals in asked if any(p.role is not TrialRole.SCREENING for p in proposals)
        )

    def test_the_same_answers_in_the_same_order_give_the_same_search(self) -> None:
        """Two runs alike ask for the same points."""
        one, other = (searched(JOB, SPACE, 3)[0] for _ in range(2))
        assert [trial.point for trial in one.trials] == [trial.point for trial in other.trials]
