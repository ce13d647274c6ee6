"""What every meter promises, and the meter of a plain counter."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from probes.device import Meter, Reading
from probes.errors import DeviceLost
from probes.metering.counting import Counter
from probes.metering.findings import Subject
from probes.metering.meter import CounterMeter
from probes.validity import Note, Reason
from tests.probes.fake_clock import FakeClock
from tests.probes.scripted_card import AVERAGED, COUNTER, UUID, Read, make_gpu_meter, steady_mj

MakeMeter = Callable[[FakeClock], Meter]


def make_counter_meter(clock: FakeClock, count_mj: Read = steady_mj) -> CounterMeter:
    counter = Counter(read=lambda: int(count_mj(clock.monotonic_s())), counts_per_joule=1000)
    return CounterMeter(lambda: counter, Subject(source=COUNTER, device_uuids=(UUID,)), clock=clock)


def measure(meter: Meter, clock: FakeClock, seconds: float = 30.0) -> Reading:
    meter.start()
    clock.advance(seconds)
    return meter.stop()


MAKERS: dict[str, MakeMeter] = {
    "counter": make_counter_meter,
    "gpu counter": lambda clock: make_gpu_meter(clock, power_w=None),
    "checked gpu counter": make_gpu_meter,
    "gpu power": lambda clock: make_gpu_meter(clock, None),
    "gpu average power": lambda clock: make_gpu_meter(clock, None, source=AVERAGED),
}


@pytest.fixture(params=MAKERS)
def any_meter(request: pytest.FixtureRequest, clock: FakeClock) -> Meter:
    return MAKERS[request.param](clock)


class TestEveryMeter:
    """What holds for all of them."""

    def test_reports_the_energy_of_the_stretch(self, any_meter: Meter, clock: FakeClock) -> None:
        """300 W are 300 J a second, valid, between the instants that start and stop name, near those of the calls."""
        start_s = any_meter.start()
        clock.advance(30.0)
        reading = any_meter.stop()
        assert pytest.approx(300.0, rel=0.01) == reading.mean_power_w
        assert reading.is_valid
        assert start_s == reading.start_s
        assert pytest.approx(30.0, abs=1.3) == reading.duration_s
        assert reading.device_uuids == (UUID,)

    def test_what_happens_outside_does_not_count(self, any_meter: Meter, clock: FakeClock) -> None:
        """A second stretch after a pause has its own energy only."""
        measure(any_meter, clock, 20.0)
        clock.advance(100.0)
        reading = measure(any_meter, clock, 10.0)
        assert reading.duration_s < 10.5
        assert pytest.approx(300.0, rel=0.02) == reading.mean_power_w

    def test_draws_the_power(self, any_meter: Meter, clock: FakeClock) -> None:
        """The trace holds several samples at the power that was drawn."""
        trace = measure(any_meter, clock).trace
        assert len(trace) > 10
        assert [pytest.approx(300.0)] * len(trace) == [sample.power_w for sample in trace]

    def test_stop_without_start_is_a_reading_that_says_so(self, any_meter: Meter) -> None:
        """A stretch that never began has no energy and the reason not_started."""
        reading = any_meter.stop()
        assert (reading.energy_j, reading.reasons) == (None, (Reason.NOT_STARTED,))

    def test_close_is_idempotent_and_ends_the_stretch(self, any_meter: Meter, clock: FakeClock) -> None:
        """After close, twice, there is nothing left to stop."""
        any_meter.start()
        clock.advance(1.0)
        any_meter.close()
        any_meter.close()
        assert any_meter.stop().reasons == (Reason.NOT_STARTED,)

    def test_a_suspend_in_between_is_noticed(self, any_meter: Meter, clock: FakeClock) -> None:
        """A jump of boot time against monotonic time makes the stretch invalid."""
        any_meter.start()
        clock.advance(15.0)
        clock.suspend(60.0)
        clock.advance(15.0)
        assert Reason.SUSPENDED in any_meter.stop().reasons

    def test_the_wall_clock_is_not_asked(
        self, any_meter: Meter, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A step of the wall clock in mid-window changes nothing, since nobody looks at it."""
        monkeypatch.setattr("time.time", lambda: 1 / 0)
        assert measure(any_meter, clock).is_valid


def test_a_counter_that_goes_back_is_a_reset(clock: FakeClock) -> None:
    """A counter that began anew gives counter_reset and no energy: no negative, no absolute, no partial sum."""
    meter = make_counter_meter(clock, lambda now_s: steady_mj(now_s) if now_s < 1015 else 0)
    reading = measure(meter, clock)
    assert (reading.energy_j, reading.reasons) == (None, (Reason.COUNTER_RESET,))


def test_the_uncertainty_is_a_step_at_either_edge(clock: FakeClock) -> None:
    """At 300 W and steps of 100 ms, edges anywhere are uncertain by 60 J and a count."""
    assert pytest.approx(60.001) == measure(make_counter_meter(clock), clock).uncertainty_j


def test_equal_readings_are_stale_not_zero_power(clock: FakeClock) -> None:
    """A counter that steps every 2 s, read every 0.5 s, draws steady power and never 0 W."""
    trace = measure(make_counter_meter(clock, lambda now_s: int(now_s / 2) * 600_000), clock).trace
    assert [pytest.approx(300.0)] * 15 == [sample.power_w for sample in trace]


def test_a_counter_that_cannot_be_read_at_the_end_has_no_energy(clock: FakeClock) -> None:
    """A counter lost in mid-window gives None and device_lost."""

    def count_mj(now_s: float) -> float:
        if now_s > 1015:
            raise DeviceLost("gone")
        return steady_mj(now_s)

    reading = measure(make_counter_meter(clock, count_mj), clock)
    assert (reading.energy_j, reading.reasons) == (None, ("device_lost",))


def test_a_gap_does_not_hurt_a_counter_that_never_wraps(clock: FakeClock) -> None:
    """The counter went on counting, so the energy is valid and the gap is a note."""
    meter = make_counter_meter(clock)
    meter.start()
    clock.advance(10.0)
    clock.jump(5.0)
    clock.advance(10.0)
    reading = meter.stop()
    assert pytest.approx(7500.0) == reading.energy_j
    assert reading.notes == (Note.SAMPLING_GAP,)
