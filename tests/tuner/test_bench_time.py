"""How long a point keeps the device: windows that end early, and what a trial cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.errors import EngineDied
from tests.db.factories import make_point
from tests.tuner.bench_stand import Rig
from tests.tuner.scripted import ScriptedDevice
from tests.tuner.simulated import make_simulated, open_bench
from tuner.knobs import launch_s
from tuner.pareto import ObjectivePair
from tuner.point import OperatingPoint
from tuner.request import Limit, WindowRule
from tuner.trial import TrialState

#: Long enough for looks at power, and short enough for a simulated device to pass in a tenth of a second.
LONG_WINDOW = WindowRule(warmup_s=2.0, max_warmup_s=20.0, window_s=32.0, min_requests=4, max_window_s=32.0, idle_s=0.0)
SIMULATED_POINT = OperatingPoint.of({"max_batch": 4})


class TestEarlyStop:
    """Windows that end before their time."""

    def test_a_limit_that_is_certainly_missed_ends_the_window(self) -> None:
        """The trial is infeasible by that limit, says after how long and by what count, and keeps what it showed."""
        rig = Rig(sla=(Limit(metric="tpot_p90_ms", bound_ms=99.0),), window=LONG_WINDOW)
        outcome = rig.measure()
        assert (outcome.state, outcome.reason) == (TrialState.INFEASIBLE, "sla:tpot_p90_ms")
        assert (outcome.detail or "").startswith("tpot_p90_ms: cut after 4 s, ")
        assert outcome.measurement is not None
        assert (outcome.measurement.cut_by, outcome.measurement.window_s) == ("sla:tpot_p90_ms", 4.0)
        assert outcome.measurement.output_tok_s.value == 32.0

    def test_a_job_may_want_whole_windows(self) -> None:
        """With stops_early off the same window is as long as the rule says, and judged by its percentile."""
        rig = Rig(sla=(Limit(metric="tpot_p90_ms", bound_ms=99.0),), window=replace(LONG_WINDOW, stops_early=False))
        outcome = rig.measure()
        assert (outcome.state, outcome.reason) == (TrialState.INFEASIBLE, "sla:tpot_p90_ms")
        assert outcome.measurement is not None
        assert (outcome.measurement.cut_by, outcome.measurement.window_s) == (None, 32.0)

    def test_the_window_of_a_reference_is_whole(self) -> None:
        """A point that others are told against is measured to the window's end, whatever it misses."""
        rig = Rig(sla=(Limit(metric="tpot_p90_ms", bound_ms=99.0),), window=LONG_WINDOW)
        outcome = rig.bench.measure(make_point(), rivals=None)
        assert (outcome.state, outcome.reason) == (TrialState.INFEASIBLE, "sla:tpot_p90_ms")
        assert outcome.measurement is not None
        assert (outcome.measurement.cut_by, outcome.measurement.window_s) == (None, 32.0)

    def test_an_invalid_reading_stays_invalid(self) -> None:
        """A cut window whose figures must not be used is invalid first: the limit's verdict rests on them, too."""
        rig = Rig(
            ScriptedDevice(reasons=("suspended",)),
            sla=(Limit(metric="tpot_p90_ms", bound_ms=99.0),),
            window=LONG_WINDOW,
        )
        outcome = rig.measure()
        assert (outcome.state, outcome.reason) == (TrialState.INVALID, "suspended")

    def test_a_point_behind_a_rival_is_cut(self) -> None:
        """A rival that is faster and twice as frugal ends the window; the trial is complete, but not for a front."""
        bench = open_bench(make_simulated(window=LONG_WINDOW))
        whole = bench.measure(SIMULATED_POINT).measurement
        assert whole is not None
        assert whole.tok_per_j is not None
        assert whole.tpot.p99 is not None
        rival = ObjectivePair(2 * whole.tok_per_j.value, 0.8 * whole.tpot.p99.value)
        outcome = bench.measure(SIMULATED_POINT, rivals=(rival,))
        assert (outcome.state, outcome.reason) == (TrialState.COMPLETE, None)
        assert "certainly behind" in (outcome.detail or "")
        assert outcome.measurement is not None
        assert outcome.measurement.cut_by == "dominated"
        assert 8.0 <= outcome.measurement.window_s < 9.0

    def test_a_rival_that_is_better_on_one_axis_ends_nothing(self) -> None:
        """Rivals that are slower, or need as much energy, leave the window whole."""
        bench = open_bench(make_simulated(window=LONG_WINDOW))
        whole = bench.measure(SIMULATED_POINT).measurement
        assert whole is not None
        assert whole.tok_per_j is not None
        assert whole.tpot.p99 is not None
        tok_per_j, tpot_ms = whole.tok_per_j.value, whole.tpot.p99.value
        rivals = (ObjectivePair(2 * tok_per_j, tpot_ms), ObjectivePair(tok_per_j, 0.5 * tpot_ms))
        again = bench.measure(SIMULATED_POINT, rivals=rivals).measurement
        assert again is not None
        assert (again.cut_by, again.output_tokens) == (None, whole.output_tokens)


class TestDeviceTime:
    """What a trial cost."""

    def test_it_is_counted_by_the_devices_clock(self) -> None:
        """On a simulated device launch, warm-up and window take virtual seconds, and energy at the window's mean power.

        The same point again takes no launch.
        """
        bench = open_bench(make_simulated())
        for taken_s in (launch_s("simulated"), 0.0):
            outcome = bench.measure(SIMULATED_POINT)
            shown = outcome.measurement
            assert shown is not None
            assert shown.mean_power_w is not None
            assert outcome.device_s == pytest.approx(taken_s + shown.warmup_s + shown.window_s, abs=0.1)
            assert outcome.device_j == pytest.approx(shown.mean_power_w * (outcome.device_s or 0.0))

    def test_a_failed_trial_costs_time_but_no_known_energy(self) -> None:
        """Without valid energy there is a time, and no joules in its place."""
        rig = Rig(ScriptedDevice(reasons=("suspended",)))
        outcome = rig.measure()
        assert (outcome.device_s, outcome.device_j) == (0.0, None)  # the rig's clock stands still

    def test_points_of_one_launch_share_its_session(self) -> None:
        """A live knob keeps the session, a launch knob begins one, and so does another bench."""
        rig, other = Rig(), Rig()
        sessions = [rig.measure(prefill_chunk=chunk).session for chunk in (256, 64)]
        relaunched, elsewhere = rig.measure(max_batch=8).session, other.measure().session
        assert sessions[0] == sessions[1] != relaunched
        assert len({sessions[0], relaunched, elsewhere}) == 3

    def test_a_launch_that_fails_is_no_session(self) -> None:
        """An engine that never opened served nothing."""
        rig = Rig()
        rig.launcher.errors = [EngineDied("gone")]
        assert rig.measure().session is None
