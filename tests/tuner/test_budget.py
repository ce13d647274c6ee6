"""What trials take of a budget, and when that ends the search."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from probes.device import Method
from tests.db.factories import START, make_measurement, make_reading, make_trial
from tests.tuner.factories import make_request, measured
from tuner.budget import has_plateau, reason_to_stop, spent, spent_words
from tuner.request import Budget, Limit, TuneRequest
from tuner.trial import Trial, TrialRole, TrialState


def trial(number: int, **changes: Any) -> Trial:
    """A trial that kept the device for a minute and took a kilojoule."""
    return make_trial(number=number, **{"device_s": 60.0, "device_j": 1000.0, **changes})


def at(number: int, tok_per_j: float, latency_ms: float, **changes: Any) -> Trial:
    return trial(number, measurement=measured(tok_per_j, latency_ms), **changes)


def job(limit_ms: float | None = None, **budget: Any) -> TuneRequest:
    sla = () if limit_ms is None else (Limit(metric="tpot_p99_ms", bound_ms=limit_ms),)
    return make_request(sla=sla, budget=Budget(**{"trials": 100, **budget}))


class TestSpent:
    """What the trials took."""

    def test_time_and_energy_are_those_of_every_attempt(self) -> None:
        """Repeats and interrupted attempts kept the device too, but only screened points with an outcome are trials."""
        taken = spent(
            [
                trial(0),
                trial(1, state=TrialState.INTERRUPTED, finished_at=None),
                trial(1, state=TrialState.FAILED),
                trial(2, role=TrialRole.FINALIST),
                trial(3, role=TrialRole.BASELINE),
                trial(4, state=TrialState.RUNNING, device_s=None, device_j=None),
            ]
        )
        assert (taken.num_trials, taken.num_repeats, taken.num_reused) == (2, 2, 0)
        assert (
            taken.device_s,
            taken.joules,
            taken.num_without_device_s,
            taken.num_without_joules,
        ) == (300.0, 5000.0, 0, 0)

    def test_what_was_taken_over_costs_nothing(self) -> None:
        """A measurement of another job is counted apart: no trial, no time, no energy."""
        taken = spent([trial(0), trial(1, reused_from="abcd/3")])
        assert (taken.num_trials, taken.num_reused, taken.device_s, taken.joules) == (1, 1, 60.0, 1000.0)

    def test_what_is_missing_is_counted_and_not_guessed(self) -> None:
        """A trial without an energy figure adds nothing to the joules, and the words say how many there are."""
        taken = spent([trial(0), trial(1, device_j=None), trial(2, device_j=None)])
        assert (taken.joules, taken.num_without_joules) == (1000.0, 2)
        assert (
            spent_words(Budget(device_hours=2), taken)
        ) == "3 of 24 trials, 0.05 of 2 device-hours, 1,000 J (2 trials without a figure left out)"

    @pytest.mark.parametrize(
        ("methods", "words"),
        [
            ((Method.COUNTER,), "1,000 J"),
            ((Method.ESTIMATE,), "1,000 J (estimate)"),
            ((Method.SIMULATED,), "1,000 J (simulated)"),
            ((Method.COUNTER, Method.ESTIMATE), "2,000 J (partly an estimate)"),
        ],
    )
    def test_joules_that_nobody_measured_are_told_as_such(self, methods: tuple[Method, ...], words: str) -> None:
        """Joules of a model are marked, also where only some of them are."""
        trials = [
            trial(i, measurement=make_measurement(reading=make_reading(method=method)))
            for i, method in enumerate(methods)
        ]
        taken = spent(trials)
        assert spent_words(Budget(), taken).endswith(f", {words}")
        assert taken.joules_methods == tuple(method.value for method in methods)

    def test_minutes_are_those_in_which_something_was_measured(self) -> None:
        """Trials side by side take their time once, and a pause between trials takes none."""
        times = [(0, 60), (30, 90), (40, 50), (600, 660)]
        trials = [
            trial(number, started_at=START + timedelta(seconds=first), finished_at=START + timedelta(seconds=last))
            for number, (first, last) in enumerate(times)
        ]
        assert spent(trials).wall_s == 150.0
        assert "2.5 of 5 minutes" in spent_words(Budget(minutes=5), spent(trials))

    def test_a_budget_that_nothing_is_known_of_is_told_all_the_same(self) -> None:
        """Where joules are limited and no trial has any, the words say 0 and that the trial is missing."""
        words = spent_words(Budget(joules=5000), spent([trial(0, device_s=None, device_j=None)]))
        assert words == "1 of 24 trials, 0 of 5,000 J (1 trial without a figure left out)"


class TestReasonToStop:
    """Which budget ends the search."""

    @pytest.mark.parametrize(
        ("budget", "elapsed_s", "reason"),
        [
            ({"trials": 3}, 0.0, "trials"),
            ({"trials": 4}, 0.0, None),
            ({"minutes": 1.0}, 60.0, "minutes"),
            ({"minutes": 1.0}, 59.0, None),
            ({"device_hours": 0.05}, 0.0, "device_hours"),  # three minutes
            ({"device_hours": 0.051}, 0.0, None),
            ({"joules": 3000.0}, 0.0, "joules"),
            ({"joules": 3001.0}, 0.0, None),
            ({"trials": 3, "minutes": 1.0, "joules": 1.0}, 60.0, "trials"),
            ({"plateau_trials": 2}, 0.0, "plateau"),
        ],
    )
    def test_the_first_budget_that_is_used_up_is_told(
        self, budget: dict[str, Any], elapsed_s: float, reason: str | None
    ) -> None:
        """After three like trials of a minute and a kilojoule each, a budget of no more than that ends the job."""
        trials = [at(number, 2.0, 30.0) for number in range(3)]
        assert reason == reason_to_stop(job(40.0, **budget), trials, elapsed_s=elapsed_s)

    def test_trials_of_other_kinds_use_up_no_trials(self) -> None:
        """Reused trials, repeats and interrupted attempts leave `trials` as it is."""
        others = [
            trial(1, reused_from="abcd/0"),
            trial(2, role=TrialRole.FINALIST),
            trial(3, state=TrialState.INTERRUPTED),
        ]
        assert reason_to_stop(job(trials=2), [trial(0), *others], elapsed_s=0.0) is None


class TestPlateau:
    """When the front stopped growing."""

    def test_growth_by_less_than_half_a_percent_is_none(self) -> None:
        """The last two trials have to raise the area by more than 0.5 % together, up to the limit of the axis."""
        request = job(40.0, plateau_trials=2)
        first = [at(0, 2.0, 30.0), at(1, 1.0, 35.0)]
        assert not has_plateau(request, first)  # there is nothing before the last two
        assert has_plateau(request, [*first, at(2, 2.009, 30.0)])
        assert not has_plateau(request, [*first, at(2, 2.02, 30.0)])
        assert not has_plateau(request, [*first, at(2, 2.02, 30.0), at(3, 1.0, 39.0)])
        assert has_plateau(request, [*first, at(2, 2.02, 30.0), at(3, 1.0, 39.0), at(4, 1.0, 39.0)])

    def test_points_beyond_the_limit_are_no_progress(self) -> None:
        """A point slower than the corner adds no area, however frugal; without a limit the slowest trial is it."""
        trials = [at(0, 2.0, 30.0), at(1, 1.0, 39.0), at(2, 9.0, 50.0, state=TrialState.INFEASIBLE)]
        assert has_plateau(job(40.0, plateau_trials=2), trials)
        assert has_plateau(job(plateau_trials=1), [at(0, 2.0, 30.0), at(1, 1.0, 40.0), at(2, 3.0, 40.0)])
        assert not has_plateau(job(plateau_trials=1), [at(0, 2.0, 30.0), at(1, 1.0, 40.0), at(2, 3.0, 39.0)])

    def test_before_a_first_feasible_point_there_is_none(self) -> None:
        """A search that has found nothing inside the limits goes on looking."""
        misses = [at(number, 2.0, 50.0, state=TrialState.INFEASIBLE) for number in range(9)]
        assert not has_plateau(job(40.0, plateau_trials=3), misses)

    def test_repeats_neither_count_nor_grow_the_front(self) -> None:
        """A lucky window of a finalist does not pass for progress, and does not fill the row of trials."""
        repeats = [at(number, 3.0, 20.0, role=TrialRole.FINALIST) for number in (2, 3)]
        request = job(40.0, plateau_trials=2)
        assert not has_plateau(request, [at(0, 2.0, 30.0), at(1, 2.0, 30.0), *repeats])
        assert has_plateau(request, [at(0, 2.0, 30.0), at(1, 2.0, 30.0), *repeats, at(4, 2.0, 30.0)])

    def test_trials_taken_over_are_where_growth_begins(self) -> None:
        """A front taken over from another job counts as found before, and its points are not in the row."""
        reused = [at(number, 2.0, 30.0, reused_from="abcd/0") for number in range(5)]
        request = job(40.0, plateau_trials=2)
        assert not has_plateau(request, [*reused, at(5, 1.0, 39.0)])
        assert has_plateau(request, [*reused, at(5, 1.0, 39.0), at(6, 1.0, 39.0), at(7, 1.0, 39.0)])
