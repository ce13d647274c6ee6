"""Reading a sensor over virtual time."""

from __future__ import annotations

from probes.device import Method
from probes.errors import DeviceLost
from probes.metering.sampler import Failure
from probes.simulated.clock import VirtualClock
from probes.simulated.description import source_of
from probes.simulated.options import Sensor
from probes.simulated.polling import CounterPolling, PowerPolling
from tests.probes.simulated.toys import make_accelerator

SOURCE = source_of(make_accelerator(), Sensor.COUNTER)


def test_a_sensor_is_read_at_both_ends_and_ten_times_a_second_between() -> None:
    """Readings begin with the stretch and end with it."""
    clock = VirtualClock()
    clock.advance_to(5.0)
    polling = CounterPolling(lambda: round(clock.now_s * 1000), clock)
    clock.add(polling)
    clock.advance_to(5.35)
    assert [sample.value for sample in polling.run().samples] == [5000, 5100, 5200, 5300, 5350]


def test_a_counter_gives_joules_between_the_ends() -> None:
    """The difference of a counter in mJ is energy, over as many of its steps as a figure needs."""
    clock = VirtualClock()
    polling = CounterPolling(lambda: round(clock.now_s * 40_000), clock)
    clock.add(polling)
    clock.advance_to(2.0)
    assert polling.found(SOURCE).energy_j == 80.0


def test_power_is_integrated() -> None:
    """A rising power gives the area below it."""
    clock = VirtualClock()
    polling = PowerPolling(lambda: 100 * clock.now_s, clock, Method.INTEGRATED)
    clock.add(polling)
    clock.advance_to(2.0)
    found = polling.found(SOURCE)
    assert round(found.energy_j or 0, 6) == 200.0
    assert found.notes == ()


def test_a_reading_that_fails_is_kept_as_a_failure() -> None:
    """Reading goes on after it, and an edge that failed is a reason."""
    clock = VirtualClock()

    def read() -> int:
        if clock.now_s >= 1.95:
            raise DeviceLost("gone")
        return round(clock.now_s * 1000)

    polling = CounterPolling(read, clock)
    clock.add(polling)
    clock.advance_to(2.0)
    run = polling.run()
    assert run.failures[0] == Failure(time_s=run.failures[0].time_s, kind="device_lost", message="gone")
    assert polling.found(SOURCE).reasons == ("device_lost",)
