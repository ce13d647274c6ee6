"""Which launch the planner takes to be open, and what its parts are worth when they are switched off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.db.factories import make_trial
from tests.tuner.factories import make_knob
from tests.tuner.planned import DEFAULT, JOB, SMALL, SPACE, failed, num_launches, planned, point_of, share, trial_of
from tuner.acquisition import Candidates, Costs, Indices, Staircase, best_block
from tuner.grid import Grid
from tuner.planner import Options, next_points
from tuner.point import OperatingPoint
from tuner.request import TuneRequest
from tuner.space import SearchSpace
from tuner.trial import Trial, TrialState

#: What every job begins with is known: the default point, it at two lower clocks, and it in the other precision.
OPENING = (DEFAULT, point_of(clock=1400), point_of(clock=1200), point_of(precision="fp8"))
BEGUN = [trial_of(JOB, point, number) for number, point in enumerate(OPENING)]


class TestOpenLaunch:
    """Which launch is taken to be open."""

    @pytest.fixture
    def seen(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Costs, int | None]]:
        """The costs of each question, and the launch that was open."""
        asked: list[tuple[Costs, int | None]] = []

        def seeing(
            front: Staircase, candidates: Candidates, costs: Costs, *, open_launch: int | None, seed: int
        ) -> Indices:
            asked.append((costs, open_launch))
            return best_block(front, candidates, costs, open_launch=open_launch, seed=seed)

        monkeypatch.setattr("tuner.planner.best_block", seeing)
        return asked

    def test_it_is_that_of_the_last_window(self, seen: list[tuple[Costs, int | None]]) -> None:
        """After a window the engine is left open; what is being measured now comes after that."""
        trials = [*BEGUN, trial_of(JOB, point_of(16), 4)]
        next_points(JOB, SPACE, trials)
        next_points(JOB, SPACE, trials, pending=[point_of(64, precision="fp8")])
        assert [launch_of(point_of(16)), launch_of(point_of(64, precision="fp8"))] == [launch for _, launch in seen]

    def test_none_is_open_after_a_failure(self, seen: list[tuple[Costs, int | None]]) -> None:
        """A crash, and a precision that was refused without a window, leave no engine that could be gone on with."""
        refused = make_trial(
            number=4,
            point=point_of(precision="fp8"),
            state=TrialState.INFEASIBLE,
            reason="quality:kl",
            measurement=None,
        )
        for last in (failed(point_of(16), 4, "engine_died"), refused):
            next_points(JOB, SPACE, [*BEGUN, last])
        assert [launch for _, launch in seen] == [None, None]

    def test_windows_of_other_jobs_open_nothing(self, seen: list[tuple[Costs, int | None]]) -> None:
        """A trial that was taken over from another job was launched there, not here."""
        taken = replace(trial_of(JOB, point_of(16), 4), reused_from="0123/4")
        next_points(JOB, SPACE, [*(replace(trial, reused_from="0123/0") for trial in BEGUN), taken])
        next_points(JOB, SPACE, [*BEGUN, taken])
        assert [None, launch_of(BEGUN[-1].point)] == [launch for _, launch in seen]

    @pytest.mark.parametrize(("has_blocks", "launch_s"), [(True, 60.0), (False, 0.0)])
    def test_without_blocks_a_launch_counts_for_nothing(
        self, seen: list[tuple[Costs, int | None]], has_blocks: bool, launch_s: float
    ) -> None:
        """With blocks a launch of a large server is weighed as 60 s beside the window, without them as 0."""
        request = replace(JOB, engine="simulated")
        next_points(request, SPACE, BEGUN, options=Options(has_blocks=has_blocks))
        assert [Costs(launch_s=launch_s, window_s=5.0)] == [costs for costs, _ in seen]


def launch_of(point: OperatingPoint) -> int:
    grid = Grid.of(SPACE, JOB.workload, seed="0")
    return int(grid.launches[grid.index[point]])


class TestOptions:
    """Parts of the choice that can be switched off."""

    def test_a_job_stays_in_a_launch_that_costs_much(self) -> None:
        """Where a launch costs twelve times a window, ten trials take five launches or fewer."""
        assert num_launches(planned(10, request=replace(JOB, engine="simulated"))) <= 5

    def test_without_pruning_what_cannot_work_may_come(self) -> None:
        """Without pruning a precision that failed the gate is still proposed."""
        trials = [make_trial(point=DEFAULT, state=TrialState.INFEASIBLE, reason="quality:kl", measurement=None)]
        space = SearchSpace(knobs=(SPACE.knobs[0], make_knob("precision", ("bf16",)), SPACE.knobs[2]))
        assert next_points(JOB, space, trials) == ()
        assert len(next_points(JOB, space, trials, options=Options(has_pruning=False))) == 1

    def test_without_physics_the_front_is_found_too(self) -> None:
        """The surrogate alone finds most of the front."""
        assert share(planned(12, options=Options(has_physics=False))) > 0.7

    def test_no_window_goes_to_a_batch_size_that_cannot_bind(self) -> None:
        """Where at most three ever run at once, both batch sizes are one server: each clock is measured with one."""

        def never_more_than_three(request: TuneRequest, point: OperatingPoint, number: int) -> Trial:
            trial = trial_of(request, point, number)
            assert trial.measurement is not None
            return replace(trial, measurement=replace(trial.measurement, peak_running=3))

        trials = planned(20, space=SMALL, measure=never_more_than_three)
        assert sorted(float(trial.point["sm_clock_cap_mhz"]) for trial in trials) == [800, 1200, 1600, 2000]
