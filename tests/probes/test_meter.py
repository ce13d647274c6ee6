"""Meters over a scripted counter and scripted power."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from probes.counting import Counter
from probes.device import Meter, Method, PowerSource, Reading, Scope
from probes.errors import DeviceLost, ImplausibleReading
from probes.findings import Subject
from probes.meter import CounterMeter, PowerMeter, PowerReader
from probes.validity import Note, Reason
from tests.probes.fake_clock import FakeClock

COUNTER = PowerSource(scope=Scope.GPU, method=Method.COUNTER, detail="counter", resolution_s=0.1)
POWER = PowerSource(scope=Scope.GPU, method=Method.INTEGRATED, detail="power")
AVERAGED = PowerSource(scope=Scope.GPU, method=Method.INTEGRATED_AVERAGE, detail="averaged power")

Read = Callable[[float], float]


def steady_mj(now_s: float) -> float:
    """300 W, in steps of 100 ms."""
    return round(now_s * 10) * 30_000


def make_counter_meter(clock: FakeClock, count_mj: Read = steady_mj, power_w: Read | None = None) -> CounterMeter:
    counter = Counter(read=lambda: int(count_mj(clock.monotonic_s())), counts_per_joule=1000)
    check = PowerReader(source=POWER, read_w=lambda: power_w(clock.monotonic_s())) if power_w else None
    subject = Subject(source=COUNTER, device_uuids=("GPU-1",))
    return CounterMeter(lambda: counter, subject, clock=clock, check=check)


def make_power_meter(clock: FakeClock, power_w: Read = lambda _: 300.0, source: PowerSource = POWER) -> PowerMeter:
    reader = PowerReader(source=source, read_w=lambda: power_w(clock.monotonic_s()))
    return PowerMeter(reader, Subject(source=source, device_uuids=("GPU-1",)), clock=clock)


def measure(meter: Meter, clock: FakeClock, seconds: float = 30.0) -> Reading:
    meter.start()
    clock.advance(seconds)
    return meter.stop()


@pytest.fixture(params=["counter", "checked counter", "power"])
def any_meter(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[Meter]:
    meters: dict[str, Meter] = {
        "counter": make_counter_meter(clock),
        "checked counter": make_counter_meter(clock, power_w=lambda _: 300.0),
        "power": make_power_meter(clock),
    }
    yield meters[request.param]
    for meter in meters.values():
        meter.close()


class TestEveryMeter:
    """What holds for all of them."""

    def test_reports_the_energy_of_the_stretch(self, any_meter: Meter, clock: FakeClock) -> None:
        """300 W for 30 s are 9 kJ, valid, between the instants that start and stop name."""
        start_s = any_meter.start()
        clock.advance(30.0)
        reading = any_meter.stop()
        assert pytest.approx(9000.0, rel=0.01) == reading.energy_j
        assert reading.is_valid
        assert start_s == reading.start_s
        assert pytest.approx(30.0) == reading.duration_s
        assert reading.device_uuids == ("GPU-1",)
        assert pytest.approx(300.0, rel=0.01) == reading.mean_power_w

    def test_what_happens_outside_does_not_count(self, any_meter: Meter, clock: FakeClock) -> None:
        """A second stretch after a pause has its own energy only."""
        measure(any_meter, clock, 20.0)
        clock.advance(100.0)
        assert pytest.approx(3000.0, rel=0.02) == measure(any_meter, clock, 10.0).energy_j

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
    """A driver reload gives counter_reset and no energy: no negative, no absolute, no partial sum."""
    meter = make_counter_meter(clock, lambda now_s: steady_mj(now_s) if now_s < 1015 else 0)
    reading = measure(meter, clock)
    assert (reading.energy_j, reading.reasons) == (None, (Reason.COUNTER_RESET,))


def test_a_counter_that_went_back_and_caught_up_is_a_reset(clock: FakeClock) -> None:
    """A counter that ends above where it began but fell in between is not believed."""
    meter = make_counter_meter(clock, lambda now_s: steady_mj(now_s) - (9_000_000 if now_s >= 1002 else 0))
    clock.advance(1.0)
    reading = measure(meter, clock, 60.0)
    assert (reading.energy_j, reading.reasons) == (None, (Reason.COUNTER_RESET,))


def test_a_counter_that_stands_still_is_stuck(clock: FakeClock) -> None:
    """An unchanged counter over more than a second is None and counter_stuck, not 0 J."""
    reading = measure(make_counter_meter(clock, lambda _: 5_000_000), clock)
    assert (reading.energy_j, reading.reasons) == (None, (Reason.COUNTER_STUCK,))


def test_power_readings_take_the_place_of_a_stuck_counter(clock: FakeClock) -> None:
    """With power readings at hand, a stuck counter's stretch is integrated and says so."""
    reading = measure(make_counter_meter(clock, lambda _: 5_000_000, power_w=lambda _: 300.0), clock)
    assert pytest.approx(9000.0) == reading.energy_j
    assert (reading.method, reading.notes) == (Method.INTEGRATED, (Note.COUNTER_STUCK,))
    assert reading.is_valid


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.99])
def test_a_window_of_fewer_than_ten_ticks_is_too_short(clock: FakeClock, seconds: float) -> None:
    """Below ten steps of the counter there is window_too_short, not 0 J."""
    reading = measure(make_counter_meter(clock), clock, seconds)
    assert (reading.energy_j, reading.reasons) == (None, (Reason.WINDOW_TOO_SHORT,))


def test_the_counter_may_pass_32_bits(clock: FakeClock) -> None:
    """Energy is right across 2**32 mJ and at counts no double can hold."""
    across = measure(make_counter_meter(clock, lambda now_s: 2**32 - 1_000_000 + steady_mj(now_s - 1000)), clock)
    assert pytest.approx(9000.0) == across.energy_j
    now_s = clock.monotonic_s()
    huge = measure(make_counter_meter(clock, lambda t: 2**62 + 1 + int(steady_mj(t - now_s))), clock)
    assert huge.energy_j == 9000.0


def test_uncertainty_is_two_steps_of_the_counter(clock: FakeClock) -> None:
    """Unaligned edges may be wrong by a step each: 2 x 0.1 s x 300 W."""
    assert pytest.approx(60.0) == measure(make_counter_meter(clock), clock).uncertainty_j


def test_equal_readings_are_stale_not_zero_power(clock: FakeClock) -> None:
    """A counter that steps every 2 s, read every 0.5 s, draws steady power and never 0 W."""
    meter = make_counter_meter(clock, lambda now_s: int(now_s / 2) * 600_000)
    trace = measure(meter, clock).trace
    assert [pytest.approx(300.0)] * len(trace) == [sample.power_w for sample in trace]
    assert len(trace) == 15


def test_counter_and_power_that_disagree_fail_the_crosscheck(clock: FakeClock) -> None:
    """More than 5 % apart the counted energy is kept for the record but invalid."""
    reading = measure(make_counter_meter(clock, power_w=lambda _: 330.0), clock)
    assert pytest.approx(9000.0) == reading.energy_j
    assert reading.reasons == (Reason.ENERGY_CROSSCHECK_FAILED,)
    assert not reading.is_valid


def test_counter_and_power_that_nearly_agree_pass(clock: FakeClock) -> None:
    """4 % apart is within the tolerance."""
    assert measure(make_counter_meter(clock, power_w=lambda _: 312.0), clock).is_valid


def test_without_power_readings_the_counter_stands_unchecked(clock: FakeClock) -> None:
    """Power that cannot be read leaves the counted energy valid, with a note."""

    def refuse(_now_s: float) -> float:
        raise DeviceLost("no power")

    reading = measure(make_counter_meter(clock, power_w=refuse), clock)
    assert reading.is_valid
    assert reading.notes == (Note.NO_CROSSCHECK,)


def test_a_counter_that_cannot_be_read_at_the_end_has_no_energy(clock: FakeClock) -> None:
    """A GPU lost in mid-window gives None and device_lost."""

    def count_mj(now_s: float) -> float:
        if now_s > 1015:
            raise DeviceLost("off the bus")
        return steady_mj(now_s)

    reading = measure(make_counter_meter(clock, count_mj), clock)
    assert (reading.energy_j, reading.reasons) == (None, ("device_lost",))


@pytest.mark.parametrize("is_counting", [True, False])
def test_a_dead_sampler_makes_the_window_invalid(clock: FakeClock, is_counting: bool) -> None:
    """A crash of the sampling thread is noticed; the window is not silently shorter."""

    def power_w(now_s: float) -> float:
        if now_s > 1010:
            raise ZeroDivisionError
        return 300.0

    meter = make_counter_meter(clock, power_w=power_w) if is_counting else make_power_meter(clock, power_w)
    assert Reason.SAMPLER_DIED in measure(meter, clock).reasons


def test_a_gap_in_power_readings_is_not_bridged(clock: FakeClock) -> None:
    """More than 3 s without a reading is sampling_gap and no energy."""

    def power_w(now_s: float) -> float:
        if 1010 < now_s < 1014:
            raise DeviceLost("for a while")
        return 300.0

    reading = measure(make_power_meter(clock, power_w), clock)
    assert (reading.energy_j, reading.reasons) == (None, (Reason.SAMPLING_GAP,))


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


def test_power_that_cannot_be_read_at_an_edge_is_not_bracketed(clock: FakeClock) -> None:
    """Without a reading at the end the window is not bracketed and has no energy."""

    def power_w(now_s: float) -> float:
        if now_s > 1029.95:
            raise DeviceLost("gone")
        return 300.0

    reading = measure(make_power_meter(clock, power_w), clock)
    assert (reading.energy_j, reading.reasons) == (None, ("device_lost", Reason.NOT_BRACKETED))


def test_averaged_power_is_labelled(clock: FakeClock) -> None:
    """Trailing averages are integrated under a method of their own, with a note."""
    reading = measure(make_power_meter(clock, source=AVERAGED), clock)
    assert (reading.method, reading.notes) == (Method.INTEGRATED_AVERAGE, (Note.AVERAGED_POWER,))
    assert reading.is_valid


@pytest.mark.parametrize(("every_s", "is_valid"), [(30.0, True), (1.0, False)])
def test_few_rejected_readings_are_a_note_and_many_a_reason(clock: FakeClock, every_s: float, is_valid: bool) -> None:
    """Up to 1 % of nonsense is left out and noted; more makes the window invalid."""

    def power_w(now_s: float) -> float:
        if (now_s - 1000.55) % every_s < 0.1:
            raise ImplausibleReading("3.69e12 W")
        return 300.0

    reading = measure(make_power_meter(clock, power_w), clock)
    assert is_valid is reading.is_valid
    assert pytest.approx(9000.0) == reading.energy_j
    assert any(note.startswith(f"{Note.READINGS_REJECTED}:") for note in reading.notes)
    assert is_valid is (Reason.IMPLAUSIBLE_READING not in reading.reasons)
