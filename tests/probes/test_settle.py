"""Waiting before a window."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from probes.clock import Clock
from probes.device import (
    UNSET,
    Capability,
    DeviceInfo,
    DeviceKind,
    Meter,
    Method,
    PowerSource,
    Reading,
    Scope,
    Status,
)
from probes.errors import DeviceLost, NotSupported
from probes.settings import DeviceSettings, Settable
from probes.settle import (
    LONGEST_DELAY_S,
    STEADY_S,
    CoolDown,
    Settling,
    SteadyState,
    cool_down,
    idle_power,
    start_delays,
)
from tests.probes.fake_clock import FakeClock

SOURCE = PowerSource(scope=Scope.GPU, method=Method.INTEGRATED, detail="field 186")


def looks(
    seconds: float = 12.0,
    *,
    every_s: float = 0.5,
    power_w: Callable[[float], float | None] = lambda _: 300.0,
    temperature_c: Callable[[float], float | None] = lambda _: 60.0,
) -> list[Status]:
    """One look every so often for so long, from 1000 s on."""
    times_s = [i * every_s for i in range(int(seconds / every_s) + 1)]
    return [Status(time_s=1000 + t, power_w=power_w(t), temperature_c=temperature_c(t)) for t in times_s]


class TestStartDelays:
    """When the repeats of a window begin."""

    @settings(deadline=None)
    @given(
        num_repeats=st.integers(1, 40),
        seed=st.integers(),
        period_s=st.floats(1e-3, 5.0),
    )
    @example(num_repeats=8, seed=0, period_s=0.1)
    @example(num_repeats=3, seed=1, period_s=1.0)
    def test_they_cover_the_sensors_period_evenly(self, num_repeats: int, seed: int, period_s: float) -> None:
        """For any number of repeats, seed and period the phases lie 1/n of a period apart, all the way round."""
        delays_s = start_delays(num_repeats, sensor_period_s=period_s, rng=random.Random(seed))
        shares = sorted(math.fmod(delay_s / period_s, 1.0) for delay_s in delays_s)
        gaps = [later - earlier for earlier, later in pairwise([*shares, shares[0] + 1.0])]
        assert pytest.approx([1 / num_repeats] * num_repeats, abs=1e-6) == gaps

    @settings(deadline=None)
    @given(num_repeats=st.integers(1, 40), seed=st.integers(), period_s=st.floats(1e-3, 5.0))
    def test_they_are_below_a_second(self, num_repeats: int, seed: int, period_s: float) -> None:
        """No delay is negative or reaches a second, or a period where that is longer."""
        delays_s = start_delays(num_repeats, sensor_period_s=period_s, rng=random.Random(seed))
        assert all(0 <= delay_s < max(LONGEST_DELAY_S, period_s) for delay_s in delays_s)

    def test_they_use_the_whole_second(self) -> None:
        """Whole periods come on top at random, so that a load in step with a slower beat is shifted as well."""
        delays_s = start_delays(200, sensor_period_s=0.1, rng=random.Random(3))
        assert set(range(10)) == {int(delay_s / 0.1) for delay_s in delays_s}

    def test_the_order_is_random_and_the_seed_repeats_it(self) -> None:
        """The same seed gives the same delays; their phases do not rise from repeat to repeat."""
        delays_s = start_delays(8, sensor_period_s=0.1, rng=random.Random(5))
        assert delays_s == start_delays(8, sensor_period_s=0.1, rng=random.Random(5))
        phases = [math.fmod(delay_s, 0.1) for delay_s in delays_s]
        assert phases != sorted(phases)

    @pytest.mark.parametrize(("num_repeats", "period_s"), [(0, 0.1), (8, 0.0), (8, -1.0), (8, math.inf), (8, math.nan)])
    def test_what_makes_no_sense_is_refused(self, num_repeats: int, period_s: float) -> None:
        """No repeats, or a period that is no time, is a ValueError."""
        with pytest.raises(ValueError, match="give"):
            start_delays(num_repeats, sensor_period_s=period_s, rng=random.Random(0))


@dataclass(slots=True)
class IdleMeter:
    """60 W between start and stop, or nothing from a device that is lost."""

    clock: Clock
    is_lost: bool
    calls: list[str]
    start_s: float = 0.0

    def start(self) -> float:
        self.calls.append("start")
        self.start_s = self.clock.monotonic_s()
        return self.start_s

    def stop(self) -> Reading:
        self.calls.append("stop")
        end_s = self.clock.monotonic_s()
        return Reading(
            energy_j=None if self.is_lost else 60.0 * (end_s - self.start_s),
            start_s=self.start_s,
            end_s=end_s,
            scope=SOURCE.scope,
            method=SOURCE.method,
            detail=SOURCE.detail,
            device_uuids=("GPU-1",),
            reasons=(DeviceLost.kind,) if self.is_lost else (),
        )

    def close(self) -> None:
        self.calls.append("close")


@dataclass(slots=True)
class IdleDevice:
    """A device whose meters are IdleMeters."""

    clock: Clock
    power_source: PowerSource | None = SOURCE
    is_lost: bool = False
    pids: list[tuple[int, ...]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    @property
    def info(self) -> DeviceInfo:
        return DeviceInfo(uuid="GPU-1", name="Idle", kind=DeviceKind.GPU, driver="1")

    def capabilities(self) -> Sequence[Capability]:
        return ()

    def settables(self) -> Sequence[Settable]:
        return ()

    def status(self) -> Status:
        return Status(time_s=self.clock.monotonic_s())

    def meter(self, pids: Sequence[int], *, settings: DeviceSettings = UNSET) -> Meter:
        if self.power_source is None:
            raise NotSupported("no power")
        self.pids.append(tuple(pids))
        return IdleMeter(self.clock, self.is_lost, self.calls)


class TestIdlePower:
    """What a device draws while nobody asks anything of it."""

    def test_it_is_the_reading_of_the_whole_stretch(self, clock: FakeClock) -> None:
        """60 W for 30 s are 1800 J, for the processes that may be there; the meter is closed after it."""
        device = IdleDevice(clock)
        reading = idle_power(device, clock, pids=(11, 12))
        assert pytest.approx(1800.0) == reading.energy_j
        assert pytest.approx(30.0) == reading.duration_s
        assert reading.is_valid
        assert device.calls == ["start", "stop", "close"]
        assert device.pids == [(11, 12)]

    def test_a_device_that_is_lost_meanwhile_gives_a_reason_and_no_figure(self, clock: FakeClock) -> None:
        """Idle power that cannot be read is None with its reason, never 0 W."""
        reading = idle_power(IdleDevice(clock, is_lost=True), clock, 5.0)
        assert (reading.mean_power_w, True) == (None, DeviceLost.kind in reading.reasons)

    def test_without_a_source_of_power_it_is_refused(self, clock: FakeClock) -> None:
        """A device whose power cannot be learned raises NotSupported, as its meter does."""
        with pytest.raises(NotSupported):
            idle_power(IdleDevice(clock, power_source=None), clock)


class Cooling:
    """A device whose temperature falls by `c_per_s` from `start_c`; an error is raised in place of some looks."""

    def __init__(
        self, clock: FakeClock, start_c: float | None, *, c_per_s: float = 1.0, failing: Collection[int] = ()
    ) -> None:
        self._clock, self._start_c, self._c_per_s, self._failing = clock, start_c, c_per_s, failing
        self._begun_s = clock.monotonic_s()
        self.num_looks = 0

    def __call__(self) -> Status:
        self.num_looks += 1
        if self.num_looks in self._failing:
            raise DeviceLost("gone")
        now_s = self._clock.monotonic_s()
        now_c = None if self._start_c is None else self._start_c - self._c_per_s * (now_s - self._begun_s)
        return Status(time_s=now_s, temperature_c=now_c)


def cooled(status: Callable[[], Status], clock: FakeClock, **changes: Any) -> CoolDown:
    arguments: dict[str, Any] = {"target_c": 50.0, "longest_s": 60.0, "shortest_s": 10.0, "clock": clock}
    return cool_down(status, **{**arguments, **changes})


class TestCoolDown:
    """The wait between trials."""

    def test_it_ends_within_two_degrees(self, clock: FakeClock) -> None:
        """From 70 C at one degree a second, 52 C is reached after 18 s, and nothing is waited for after that."""
        assert CoolDown(waited_s=18.0, has_reached=True, temperature_c=52.0) == cooled(Cooling(clock, 70.0), clock)

    def test_a_device_that_is_there_already_is_not_waited_for(self, clock: FakeClock) -> None:
        """Within two degrees on either side the wait is over at once."""
        assert [
            (wait.waited_s, wait.has_reached) for wait in (cooled(Cooling(clock, c), clock) for c in (52.0, 48.0))
        ] == [(0.0, True)] * 2

    def test_a_colder_device_is_not_waited_for_and_has_not_reached_it(self, clock: FakeClock) -> None:
        """Idling warms nothing: at 40 C for 50 C the wait ends at once and says that the temperature is another."""
        assert CoolDown(waited_s=0.0, has_reached=False, temperature_c=40.0) == cooled(Cooling(clock, 40.0), clock)

    def test_it_gives_up_after_the_longest(self, clock: FakeClock) -> None:
        """A device that stays hot is waited for no longer than allowed, and the record says so."""
        assert CoolDown(waited_s=60.0, has_reached=False, temperature_c=70.0) == cooled(
            Cooling(clock, 70.0, c_per_s=0.0), clock
        )

    @pytest.mark.parametrize(("start_c", "target_c"), [(None, 50.0), (70.0, None)])
    def test_without_a_temperature_it_waits_the_shortest(
        self, clock: FakeClock, start_c: float | None, target_c: float | None
    ) -> None:
        """Where temperatures cannot be compared, ten seconds have to do."""
        waited = cooled(Cooling(clock, start_c), clock, target_c=target_c)
        assert (waited.waited_s, waited.has_reached) == (10.0, False)

    def test_a_device_that_does_not_answer_is_waited_for_as_one_without_a_thermometer(self, clock: FakeClock) -> None:
        """A ProbeError at every look ends the wait after the shortest; the window will say that the device is lost."""
        always = range(1, 100)
        waited = cooled(Cooling(clock, 70.0, failing=always), clock)
        assert CoolDown(waited_s=10.0, has_reached=False, temperature_c=None) == waited

    def test_one_look_that_fails_does_not_end_the_wait(self, clock: FakeClock) -> None:
        """After a temperature was read once, a look that fails later than the shortest wait changes nothing."""
        assert (
            (waited := cooled(Cooling(clock, 70.0, failing={12, 13}), clock)).waited_s,
            waited.has_reached,
        ) == (18.0, True)

    def test_it_stops_when_told_to(self, clock: FakeClock) -> None:
        """A job that is cancelled is not kept waiting."""
        asked = count()
        assert cooled(Cooling(clock, 90.0), clock, should_stop=lambda: next(asked) == 3).waited_s == 3.0


class TestSteadyState:
    """Whether power and temperature have settled."""

    def test_what_does_not_change_is_steady(self) -> None:
        """Constant power and temperature over ten seconds vary by nothing and have no slope."""
        state = SteadyState.of(looks())
        assert (state.is_steady, state.power_cv, state.temperature_slope_c) == (True, 0.0, 0.0)

    @pytest.mark.parametrize(("share", "is_steady"), [(0.02, True), (0.04, False)])
    def test_power_may_vary_by_three_percent(self, share: float, is_steady: bool) -> None:
        """Power that alternates around its mean by 2 % is steady, by 4 % it is not."""
        state = SteadyState.of(looks(power_w=lambda t: 300 * (1 + (share if int(2 * t) % 2 else -share))))
        assert pytest.approx(share, rel=0.05) == state.power_cv
        assert (is_steady, is_steady, True) == (state.is_steady, state.is_power_steady, state.is_temperature_steady)

    @pytest.mark.parametrize(("slope_c", "is_steady"), [(0.4, True), (-0.4, True), (0.6, False), (-0.6, False)])
    def test_temperature_may_move_by_half_a_degree_in_ten_seconds(self, slope_c: float, is_steady: bool) -> None:
        """A slope within half a degree per ten seconds is steady, up or down; a steeper one is not."""
        state = SteadyState.of(looks(temperature_c=lambda t: 60 + slope_c * t / STEADY_S))
        assert pytest.approx(slope_c) == state.temperature_slope_c
        assert (is_steady, True, is_steady) == (state.is_steady, state.is_power_steady, state.is_temperature_steady)

    def test_only_the_last_ten_seconds_count(self) -> None:
        """A ramp that ended ten seconds ago is forgotten."""
        state = SteadyState.of(
            looks(30.0, power_w=lambda t: min(300.0, 15 * t), temperature_c=lambda t: min(60, 40 + t))
        )
        assert (state.is_steady, state.power_cv, state.temperature_slope_c) == (True, 0.0, 0.0)

    @pytest.mark.parametrize(
        "seen",
        [
            [],
            looks(9.0),
            [*looks(12.0)[:6], *looks(12.0)[16:]],
            looks(power_w=lambda t: None if 4 < t < 8 else 300.0),
            looks(temperature_c=lambda t: None if t < 5 else 60.0),
        ],
        ids=["none", "too short", "gap", "power missing for 4 s", "temperature since lately"],
    )
    def test_what_is_not_covered_is_not_steady(self, seen: list[Status]) -> None:
        """Without figures over the whole ten seconds nothing is known to have settled."""
        state = SteadyState.of(seen)
        assert SteadyState(is_covered=False) == state
        assert (state.is_steady, state.is_power_steady, state.is_temperature_steady) == (False, False, False)

    def test_a_figure_that_a_device_never_gives_is_not_held_against_it(self) -> None:
        """A device without a thermometer is judged by its power, one without either by nothing."""
        state = SteadyState.of(looks(temperature_c=lambda _: None))
        assert (state.is_steady, state.power_cv, state.temperature_slope_c) == (True, 0.0, None)
        assert SteadyState(is_covered=True) == SteadyState.of(
            looks(power_w=lambda _: None, temperature_c=lambda _: None)
        )

    def test_no_power_is_not_steady_power(self) -> None:
        """A device that reports 0 W under load has not settled, and nothing is divided by 0."""
        assert not SteadyState.of(looks(power_w=lambda _: 0.0)).is_steady


class TestSettling:
    """Looking at a device while it warms up."""

    def test_it_takes_ten_seconds_of_steadiness(self, clock: FakeClock) -> None:
        """Asked at every step, it says yes once power has been constant for ten seconds, and not before."""
        begun_s = clock.monotonic_s()

        def status() -> Status:
            now_s = clock.monotonic_s()
            return Status(time_s=now_s, power_w=100.0 if now_s < begun_s + 5 else 300.0, temperature_c=60.0)

        settling = Settling(status, clock)
        answers = []
        for _ in range(200):
            answers.append(settling.is_settled())
            clock.advance(0.125)
        assert answers.index(True) * 0.125 == 5 + STEADY_S
        assert all(answers[answers.index(True) :])

    def test_it_looks_no_oftener_than_twice_a_second(self, clock: FakeClock) -> None:
        """Eighty questions within ten seconds cost 20 looks."""
        status = Cooling(clock, 60.0, c_per_s=0.0)
        settling = Settling(status, clock)
        for _ in range(80):
            settling.is_settled()
            clock.advance(0.125)
        assert status.num_looks == 20

    def test_it_judges_only_what_it_has_newly_seen(self, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
        """Eighty questions are answered from 20 judgements, one a look; a look that fails is not judged."""
        judged: list[int] = []
        judge = SteadyState.of

        def counting(looks: Sequence[Status]) -> SteadyState:
            judged.append(len(looks))
            return judge(looks)

        monkeypatch.setattr(SteadyState, "of", counting)
        for failing, num_judged in ((), 20), ((7, 8), 18):
            settling = Settling(Cooling(clock, 60.0, c_per_s=0.0, failing=failing), clock)
            judged.clear()
            for _ in range(80):
                settling.is_settled()
                clock.advance(0.125)
            assert list(range(1, num_judged + 1)) == judged

    def test_a_look_that_fails_leaves_a_gap(self, clock: FakeClock) -> None:
        """One missing look is bridged; a device that does not answer for longer than three seconds has not settled."""

        def settled(failing: Collection[int]) -> bool:
            settling = Settling(Cooling(clock, 60.0, c_per_s=0.0, failing=failing), clock)
            for _ in range(24):
                settling.is_settled()
                clock.advance(0.5)
            return settling.is_settled()

        assert [settled(lost) for lost in ((12,), range(10, 18), range(1, 30))] == [True, False, False]
