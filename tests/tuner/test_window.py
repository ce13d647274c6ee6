"""When a window opens and closes, over scripted steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.load import Progress
from tests.tuner.factories import make_progress
from tests.tuner.window_run import FIRST, RULE, Run, ended
from tuner.request import WindowRule
from tuner.window import Phase


class TestWarmUp:
    """Before the window."""

    def test_it_lasts_as_long_as_the_rule_says(self) -> None:
        """A load that is steady at once is warmed up for warmup_s and not a step less."""
        run = Run()
        run.start()
        run.steps(9.5)
        assert (run.window.phase, run.meter.calls) == (Phase.WARM_UP, [])
        run.steps(10.0)
        assert (run.window.phase, run.meter.calls) == (Phase.WINDOW, ["start"])
        assert (run.window.warmup_s, run.window.is_unsteady) == (10.0, False)

    def test_it_begins_with_the_first_step_whatever_the_clock_says(self) -> None:
        """The warm-up is counted from the first step, not from the clock's zero."""
        run = Run()
        run.step(1000.0, first_tokens=FIRST)
        run.steps(1009.5)
        assert Phase.WARM_UP is run.window.phase
        run.steps(1010.0)
        assert (run.window.phase, run.window.warmup_s) == (Phase.WINDOW, 10.0)

    @pytest.mark.parametrize(("offered", "max_batch"), [(4, 32), (32, 4), (4, 4)])
    def test_it_waits_for_as_many_first_tokens_as_run_at_once(self, offered: int, max_batch: int) -> None:
        """Until the smaller of load and batch has had first tokens, nothing is steady."""
        run = Run(offered=offered, max_batch=max_batch)
        run.start(first_tokens=FIRST[:3])
        run.steps(30.0)
        assert Phase.WARM_UP is run.window.phase
        run.step(30.5, first_tokens=("d",))
        assert (run.window.phase, run.window.is_unsteady) == (Phase.WINDOW, False)

    def test_it_waits_until_the_batch_stops_growing(self) -> None:
        """While the number of running requests still rises the window stays closed."""
        run = Run(offered=40, max_batch=40)
        run.start(first_tokens=tuple(map(str, range(40))), num_running=1)
        for half_seconds in range(1, 60):
            run.step(half_seconds / 2, num_running=min(half_seconds * 2, 40))
            if run.window.phase is Phase.WINDOW:
                break
        assert 12.0 <= run.window.start_s <= 14.0  # full at 10 s, and the two stretches of 2 s are alike by then

    def test_it_settles_below_the_batch_size(self) -> None:
        """A batch that a small prefill chunk keeps from filling is steady all the same."""
        run = Run(offered=32, max_batch=32)
        run.start(first_tokens=tuple(map(str, range(32))), num_running=11)
        run.steps(10.0, num_running=11)
        assert (run.window.phase, run.window.is_unsteady) == (Phase.WINDOW, False)

    def test_a_load_that_still_grows_is_measured_at_the_limit_and_called_unsteady(self) -> None:
        """What is not steady by max_warmup_s is measured, so that there is something to show, and marked."""
        run = Run(replace(RULE, max_warmup_s=16.0), offered=40, max_batch=40)
        run.start(first_tokens=tuple(map(str, range(40))), num_running=1)
        for half_seconds in range(1, 33):
            assert Phase.WARM_UP is run.window.phase
            run.step(half_seconds / 2, num_running=8 + half_seconds)
        assert (run.window.phase, run.window.warmup_s, run.window.is_unsteady) == (Phase.WINDOW, 16.0, True)

    def test_requests_without_a_token_do_not_hold_it_for_ever(self) -> None:
        """An engine that brings no token forth reaches the limit and is unsteady."""
        run = Run()
        run.start(first_tokens=())
        run.steps(60.0)
        assert (run.window.phase, run.window.is_unsteady) == (Phase.WINDOW, True)

    def test_steps_longer_than_the_stretch_do_not_block_it(self) -> None:
        """With a step every 5 s there is nothing to compare, and the warm-up's own length has to do."""
        run = Run()
        run.start()
        run.steps(10.0, every_s=5.0)
        assert (run.window.phase, run.window.is_unsteady) == (Phase.WINDOW, False)


class TestArrivals:
    """A load whose requests come at their own times."""

    def run(self, **changes: Any) -> Run:
        return Run(replace(RULE, min_requests=0), offered=None, **changes)

    def test_it_waits_until_the_load_has_turned_over(self) -> None:
        """The window opens once as many requests have ended as are running, not when their number stands still."""
        run = self.run()
        run.start(first_tokens=(), num_running=3)
        run.steps(20.0, num_running=3)
        run.step(20.5, num_running=3, **ended(2))
        assert Phase.WARM_UP is run.window.phase
        run.step(21.0, num_running=3, **ended(1))
        assert (run.window.phase, run.window.is_unsteady) == (Phase.WINDOW, False)

    def test_it_needs_one_request_that_ended(self) -> None:
        """An engine that is empty at the end of the warm-up has not shown anything yet."""
        run = self.run()
        run.start(num_running=0)
        run.steps(11.0, num_running=0)
        assert Phase.WARM_UP is run.window.phase

    @pytest.mark.parametrize(
        ("num_ended", "waiting_before", "waiting_after", "is_overloaded"),
        [(100, 0, 30, False), (100, 0, 31, True), (1000, 50, 150, False), (1000, 50, 151, True), (100, 40, 5, False)],
    )
    def test_a_queue_that_grows_is_an_overload(
        self, num_ended: int, waiting_before: int, waiting_after: int, is_overloaded: bool
    ) -> None:
        """More than a tenth of what ended, and more than chance would add, is a point that falls behind."""
        run = self.run()
        run.start()
        run.step(10.0, num_waiting=waiting_before, **ended(8))
        run.step(40.0, num_waiting=waiting_after, **ended(num_ended))
        assert (run.window.phase, run.window.is_overloaded) == (Phase.DONE, is_overloaded)
        assert waiting_after - waiting_before == run.window.backlog_growth

    def test_a_load_in_flight_is_never_an_overload(self) -> None:
        """Whoever keeps more requests in flight than run at once wants the others to wait."""
        run = Run(replace(RULE, min_requests=0), offered=8, max_batch=4)
        run.start()
        run.steps(10.0)
        run.step(40.0, num_waiting=1000)
        assert (run.window.phase, run.window.is_overloaded) == (Phase.DONE, False)


class TestStretches:
    """Several equal steps told at once."""

    def test_a_stretch_weighs_as_many_steps(self) -> None:
        """The mean over steps is the same whether steps are told one by one or together."""
        run = Run(replace(RULE, min_requests=0))
        run.start()
        run.steps(10.0)
        run.step(20.0, num_running=2, num_steps=99)
        run.step(40.0, num_running=32)
        assert run.window.mean_running == (99 * 2 + 32) / 100

    def test_a_stretch_weighs_as_much_in_the_warm_up(self) -> None:
        """Whether the number of running requests has settled is judged over steps, too."""
        run = Run(offered=40, max_batch=40)
        run.start(first_tokens=tuple(map(str, range(40))), num_running=40)
        run.steps(8.0, num_running=40)
        run.step(9.0, num_running=40, num_steps=1000)
        run.step(10.0, num_running=0)
        assert Phase.WINDOW is run.window.phase


class TestWindow:
    """While it is open."""

    def opened(self, rule: WindowRule = RULE, **changes: Any) -> Run:
        run = Run(rule, **changes)
        run.start()
        run.steps(10.0)
        assert Phase.WINDOW is run.window.phase
        return run

    def test_it_closes_after_its_length_when_enough_ended(self) -> None:
        """With min_requests ended it is open for window_s and not a step less, and the run is over with it."""
        run = self.opened()
        run.step(10.5, **ended(5))
        run.steps(39.5)
        assert (run.window.phase, run.window.reading) == (Phase.WINDOW, None)
        assert not run.step(40.0)
        assert (run.window.phase, run.meter.calls) == (Phase.DONE, ["start", "stop"])
        assert run.window.reading is not None
        assert (run.window.reading.start_s, run.window.reading.end_s) == (10.0, 40.0)

    def test_it_stays_open_until_enough_ended(self) -> None:
        """With too few ended it goes on past window_s, to the step in which the last one ends."""
        run = self.opened()
        run.step(10.5, **ended(4))
        run.steps(50.0)
        assert Phase.WINDOW is run.window.phase
        assert not run.step(50.5, **ended(1))

    def test_it_closes_at_its_limit_though_too_few_ended(self) -> None:
        """At max_window_s it closes whatever has ended, so that a slow point ends too."""
        run = self.opened()
        run.steps(99.5)
        assert Phase.WINDOW is run.window.phase
        assert not run.step(100.0)

    def test_requests_that_ended_in_the_warm_up_do_not_count(self) -> None:
        """What ended before the window is no reason to close it."""
        run = Run()
        run.start(**ended(50))
        run.steps(10.0)
        run.steps(60.0)
        assert Phase.WINDOW is run.window.phase

    def test_without_a_number_of_requests_its_length_is_enough(self) -> None:
        """A rule with min_requests of 0 closes after window_s though nothing ended."""
        run = self.opened(replace(RULE, min_requests=0))
        run.steps(200.0)
        assert (run.window.phase, run.clock.now_s) == (Phase.DONE, 40.0)

    def test_its_means_and_prompts_are_of_the_window_only(self) -> None:
        """Prompt tokens and running sequences of the warm-up stay outside."""
        run = Run(replace(RULE, min_requests=0))
        run.start(num_prompt_tokens=1000)
        run.steps(10.0, num_prompt_tokens=1000)
        run.steps(39.5, num_running=2, num_prompt_tokens=3)
        run.step(40.0, num_running=32, num_prompt_tokens=3)
        assert (run.window.prompt_tokens, run.window.mean_running) == (60 * 3, (59 * 2 + 32) / 60)

    def test_steps_from_before_the_meter_started_do_not_count(self) -> None:
        """What an engine in another process did while the meter was starting is not the window's."""
        run = self.opened(replace(RULE, min_requests=1), start_delay_s=2.0)
        assert run.window.start_s == 12.0
        run.steps(11.5, num_prompt_tokens=1000, num_running=32, **ended(9))
        run.steps(42.0, num_prompt_tokens=3)
        assert (run.window.phase, run.window.prompt_tokens, run.window.mean_running) == (Phase.WINDOW, 61 * 3, 4.0)

    def test_steps_after_the_end_change_nothing(self) -> None:
        """An engine that steps on after the end is told to stop again, and the window stays as it was."""
        run = self.opened(replace(RULE, min_requests=0))
        run.steps(40.0, num_prompt_tokens=3)
        before = (run.window.reading, run.window.prompt_tokens, run.window.mean_running)
        assert not run.step(50.0, num_prompt_tokens=1000, num_running=32)
        assert before == (run.window.reading, run.window.prompt_tokens, run.window.mean_running)
        assert run.meter.calls == ["start", "stop"]


steps = st.lists(
    st.builds(
        make_progress,
        st.floats(min_value=0.01, max_value=20.0),  # made into instants below
        num_running=st.integers(0, 40),
        first_tokens=st.sampled_from([(), FIRST]),
        finished=st.integers(0, 3).map(lambda count: ended(count)["finished"]),
    ),
    min_size=1,
    max_size=60,
)


def at_their_instants(steps: Iterable[Progress]) -> Iterable[Progress]:
    time_s = 0.0
    for step in steps:
        time_s += step.time_s
        yield replace(step, time_s=time_s)


@settings(deadline=None)
@given(steps=steps)
def test_every_run_keeps_the_rule(steps: list[Progress]) -> None:
    """Whatever the steps, the warm-up is never short, the window neither short nor long by more than a step."""
    run = Run()
    previous_s = begun_s = steps[0].time_s
    for progress in at_their_instants(steps):
        run.clock.now_s = progress.time_s
        is_going_on = run.window.observe(progress)
        assert is_going_on == (run.window.phase is not Phase.DONE) == (run.window.reading is None)
        if run.window.phase is Phase.WARM_UP:
            assert progress.time_s - begun_s < RULE.max_warmup_s
        else:
            assert run.window.warmup_s >= RULE.warmup_s
        if run.window.reading is not None:
            assert run.window.reading.duration_s >= RULE.window_s
            assert previous_s - run.window.start_s < RULE.max_window_s
            break
        previous_s = progress.time_s
