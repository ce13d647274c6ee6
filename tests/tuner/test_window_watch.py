"""What ends a window, or keeps it closed, beside its own rule: the device, and figures that say enough."""

from __future__ import annotations

from typing import Any

from tests.tuner.factories import make_record
from tests.tuner.window_run import RULE, Run
from tuner.pareto import ObjectivePair
from tuner.request import Limit
from tuner.sequential import EarlyStop
from tuner.window import Phase, Watch


class TestWatch:
    """What the device has to say about a window."""

    def test_it_opens_when_the_device_has_settled(self) -> None:
        """A load that is steady waits for power and temperature, and the window then opens as a steady one."""
        settled: list[bool] = []
        run = Run(watch=Watch(is_settled=lambda: bool(settled)))
        run.start()
        run.steps(20.0)
        assert Phase.WARM_UP is run.window.phase
        settled.append(True)
        run.steps(20.5)
        assert (run.window.phase, run.window.is_unsteady) == (Phase.WINDOW, False)

    def test_a_device_that_never_settles_is_unsteady(self) -> None:
        """At the warm-up's limit the window opens all the same, and says that it is not steady."""
        run = Run(watch=Watch(is_settled=lambda: False))
        run.start()
        run.steps(60.0)
        assert (run.window.phase, run.window.is_unsteady) == (Phase.WINDOW, True)

    def test_the_delay_is_added_to_the_warm_up(self) -> None:
        """The random start comes on top of the rule's warm-up."""
        run = Run(watch=Watch(delay_s=0.75))
        run.start()
        run.steps(10.5)
        assert run.meter.calls == []
        run.steps(11.0)
        assert run.meter.calls == ["start"]

    def test_a_setting_that_is_not_attained_opens_no_window(self) -> None:
        """POWER-26: where the cap is not in force under load nothing is metered, and the run ends with the reason."""
        run = Run(watch=Watch(unattained=lambda: ("clock_not_attained",)))
        run.start()
        run.steps(60.0)
        assert (run.window.phase, run.window.problems) == (Phase.DONE, ("clock_not_attained",))
        assert (run.meter.calls, run.window.reading) == ([], None)

    def test_a_setting_that_is_lost_ends_the_window(self) -> None:
        """POWER-41: a lease that is lost in the window ends it within a second, with the reason and the reading."""
        lost: list[str] = []
        run = Run(watch=Watch(problems=lambda: tuple(lost)))
        run.start()
        run.steps(20.0)
        lost.append("control_lease_lost")
        run.steps(40.0)
        assert (run.window.phase, run.window.problems) == (Phase.DONE, ("control_lease_lost",))
        assert run.window.reading is not None
        assert run.window.reading.end_s <= 21.0

    def test_the_device_is_asked_once_a_second(self) -> None:
        """Steps come by the hundred a second; the device is not asked at each of them."""
        asked: list[float] = []

        def problems() -> tuple[str, ...]:
            asked.append(run.clock.now_s)
            return ()

        run = Run(watch=Watch(problems=problems))
        run.start()
        run.steps(20.0, every_s=0.125)
        assert asked == [11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0, 19.0, 20.0]


def early_stop(bound_ms: float = 500.0, *rivals: ObjectivePair) -> EarlyStop:
    limit = Limit(metric="e2e_p90_ms", bound_ms=bound_ms)
    return EarlyStop((limit,), window_s=RULE.window_s, latency_metric="e2e_p90_ms", rivals=rivals)


class TestEarlyStop:
    """A window that has seen enough."""

    def ended(self, *, late: bool) -> dict[str, Any]:
        """Two requests of 0.75 s where late, of 0.25 s otherwise."""
        record = make_record(0.25, 0.75) if late else make_record(0.125, 0.25)
        return {"finished": (record, record)}

    def test_it_closes_when_a_limit_is_certainly_missed(self) -> None:
        """With every request over the bound it is over after the first slices, and the meter is stopped there."""
        run = Run(early_stop=early_stop())
        run.start()
        run.steps(60.0, **self.ended(late=True))
        assert run.window.cut is not None
        assert run.window.cut.by == "sla:e2e_p90_ms"
        assert (run.window.phase, run.clock.now_s, run.meter.calls) == (Phase.DONE, 14.0, ["start", "stop"])

    def test_what_ended_in_the_warm_up_says_nothing(self) -> None:
        """Requests that were late before the window opened leave it whole."""
        run = Run(early_stop=early_stop())
        run.start()
        run.steps(9.5, **self.ended(late=True))
        run.steps(60.0, **self.ended(late=False))
        assert (run.window.cut, run.clock.now_s) == (None, 40.0)

    def test_a_limit_that_is_certainly_met_closes_nothing(self) -> None:
        """The energy figure needs the whole window, however clear the latency is."""
        run = Run(early_stop=early_stop(bound_ms=1e6))
        run.start()
        run.steps(60.0, **self.ended(late=False))
        assert (run.window.cut, run.clock.now_s) == (None, 40.0)

    def test_it_closes_when_a_rival_is_certainly_better(self) -> None:
        """With the eighth look at 50 W for 8 tokens a second there is no doubt, and the window is over."""
        run = Run(watch=Watch(power_w=lambda: 50.0), early_stop=early_stop(1e6, ObjectivePair(0.2, 500.0)))
        run.start()
        run.steps(60.0, **self.ended(late=True))
        assert run.window.cut is not None
        assert (run.window.cut.by, run.clock.now_s) == ("dominated", 18.0)

    def test_without_looks_at_power_no_rival_counts(self) -> None:
        """A device that does not say what it draws has its windows whole."""
        run = Run(early_stop=early_stop(1e6, ObjectivePair(0.2, 500.0)))
        run.start()
        run.steps(60.0, **self.ended(late=True))
        assert (run.window.cut, run.clock.now_s) == (None, 40.0)
