"""What is done with a device around a window: waiting, watching, metering, giving back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probes.device import DeviceKind, Method, PowerSource, Scope, Status
from probes.errors import DeviceLost, RestoreFailed, Uncontrolled
from probes.settings import SM_CLOCK_CAP, DeviceSettings, Settable
from tests.probes.fake_clock import FakeClock
from tests.tuner.scripted import SOURCE, ScriptedControl, ScriptedDevice
from tuner.rig import LONGEST_COOL_DOWN_S, DeviceRig

CAPPED = DeviceSettings(sm_clock_cap_mhz=990)


def gpu(clock: FakeClock, **shown: float) -> ScriptedDevice:
    """Return a GPU that shows these figures at all times."""
    return ScriptedDevice(
        kind=DeviceKind.GPU,
        knobs=(Settable(name=SM_CLOCK_CAP, values=(210, 975, 990, 1980)),),
        shows=lambda _: replace(Status(time_s=clock.monotonic_s()), **shown),  # type: ignore[arg-type] # by name
    )


class TestCoolDown:
    """Between two windows."""

    def test_the_first_window_is_not_waited_for(self, clock: FakeClock) -> None:
        """Before the first window there is nothing to cool down to."""
        begun_s = clock.monotonic_s()
        DeviceRig(gpu(clock, temperature_c=60.0), clock=clock).cool_down()
        assert begun_s == clock.monotonic_s()

    def test_a_later_window_begins_as_warm_as_the_first(self, clock: FakeClock) -> None:
        """A GPU that was 40 degrees at first and is 60 now is waited for until it is within 2 degrees of that."""
        device = gpu(clock)
        rig = DeviceRig(device, clock=clock)
        device.shows = lambda _: Status(time_s=clock.monotonic_s(), temperature_c=40.0)
        rig.cool_down()
        begun_s = clock.monotonic_s()
        device.shows = lambda _: Status(
            time_s=clock.monotonic_s(), temperature_c=60.0 - (clock.monotonic_s() - begun_s)
        )
        rig.cool_down()
        assert pytest.approx(18.0, abs=1.0) == clock.monotonic_s() - begun_s

    def test_it_is_not_waited_for_ever(self, clock: FakeClock) -> None:
        """A GPU that stays hot is measured after a minute all the same."""
        device = gpu(clock, temperature_c=40.0)
        rig = DeviceRig(device, clock=clock)
        rig.cool_down()
        device.shows = lambda _: Status(time_s=clock.monotonic_s(), temperature_c=80.0)
        begun_s = clock.monotonic_s()
        rig.cool_down()
        assert pytest.approx(LONGEST_COOL_DOWN_S, abs=1.0) == clock.monotonic_s() - begun_s

    def test_a_lost_device_is_for_the_window_to_find(self, clock: FakeClock) -> None:
        """A status that fails ends no trial here."""
        device = gpu(clock)

        def lost(_: float) -> Status:
            raise DeviceLost("gone")

        device.shows = lost
        DeviceRig(device, clock=clock).cool_down()


class TestApplied:
    """Settings for one trial."""

    def test_an_error_inside_gives_back_too(self, clock: FakeClock) -> None:
        """POWER-33: whatever ends the trial, what was found is put back first."""
        control = ScriptedControl()
        rig = DeviceRig(gpu(clock), control=control, clock=clock)
        with pytest.raises(KeyboardInterrupt), rig.applied(CAPPED):
            raise KeyboardInterrupt
        assert control.calls == ["apply {'sm_clock_cap_mhz': 990}", "restore"]

    def test_nothing_is_set_by_an_observer(self, clock: FakeClock) -> None:
        """Without a control a setting is refused by the device's name."""
        with pytest.raises(Uncontrolled, match="Scripted CPU is only observed"), DeviceRig(gpu(clock)).applied(CAPPED):
            pass

    def test_after_a_failed_restore_nothing_is_measured(self, clock: FakeClock) -> None:
        """The error is kept, and met again by the next trial, even one that sets nothing."""
        control = ScriptedControl(restore_error=RestoreFailed("clock: not permitted"))
        rig = DeviceRig(gpu(clock), control=control, clock=clock)
        with rig.applied(CAPPED):
            pass
        assert control.restore_error is rig.restore_error
        with pytest.raises(RestoreFailed), rig.applied(DeviceSettings()):
            pass

    def test_a_restore_that_succeeds_later_is_a_restore(self, clock: FakeClock) -> None:
        """What could not be put back after the trial and is put back when the rig closes is no failure any more."""
        control = ScriptedControl(restore_error=RestoreFailed("clock: busy"))
        rig = DeviceRig(gpu(clock), control=control, clock=clock)
        with rig.applied(CAPPED):
            pass
        rig.close()
        assert None is rig.restore_error

    def test_closing_lets_go_of_the_control(self, clock: FakeClock) -> None:
        """The control is closed with the rig, which restores as well."""
        control = ScriptedControl()
        DeviceRig(gpu(clock), control=control, clock=clock).close()
        assert control.calls == ["close"]


class TestWatch:
    """What a window asks of the device."""

    def test_a_clock_at_its_cap_is_attained(self, clock: FakeClock) -> None:
        """A clock at the cap raises nothing."""
        rig = DeviceRig(gpu(clock, clock_mhz=990.0), clock=clock)
        assert rig.watch(CAPPED, "seed").unattained() == ()

    def test_a_clock_above_its_cap_is_not(self, clock: FakeClock) -> None:
        """POWER-26: a clock that stays above the cap for ten seconds gives the reason."""
        rig = DeviceRig(gpu(clock, clock_mhz=1980.0), clock=clock)
        assert rig.watch(CAPPED, "seed").unattained() == ("clock_not_attained",)

    def test_no_cap_asks_for_no_clock(self, clock: FakeClock) -> None:
        """A point without a clock cap is attained whatever the clock is."""
        rig = DeviceRig(gpu(clock, clock_mhz=1980.0), clock=clock)
        assert rig.watch(DeviceSettings(power_cap_w=400), "seed").unattained() == ()

    def test_a_gpu_says_what_it_draws(self, clock: FakeClock) -> None:
        """A GPU's power can end a window early; a CPU's is of everybody's work, and says nothing of the engine's."""
        device = gpu(clock, power_w=300.0)
        assert DeviceRig(device, clock=clock).watch(CAPPED, "seed").power_w() == 300.0
        device.kind = DeviceKind.CPU
        assert DeviceRig(device, clock=clock).watch(CAPPED, "seed").power_w() is None

    def test_starts_are_spread_and_repeatable(self, clock: FakeClock) -> None:
        """The delay of a GPU's window is within a second, differs between points and is the same for the same seed."""
        rig = DeviceRig(gpu(clock), clock=clock)
        first, again, other = (rig.watch(CAPPED, seed).delay_s for seed in ("a", "a", "b"))
        assert first == again != other
        assert 0.0 <= first < 1.0

    def test_a_cpu_has_no_part_time_sensor(self, clock: FakeClock) -> None:
        """A CPU's window starts undelayed and is not waited for."""
        watch = DeviceRig(ScriptedDevice(), clock=clock).watch(DeviceSettings(), "seed")
        assert (watch.delay_s, watch.is_settled()) == (0.0, True)

    def test_a_gpu_settles_after_ten_steady_seconds(self, clock: FakeClock) -> None:
        """Power and temperature must have stood still for ten seconds."""
        watch = DeviceRig(gpu(clock, power_w=300.0, temperature_c=50.0), clock=clock).watch(DeviceSettings(), "seed")
        settled_s = []
        for _ in range(30):
            if watch.is_settled():
                settled_s.append(clock.monotonic_s() - 1000.0)
            clock.advance(0.5)
        assert pytest.approx(10.0, abs=0.5) == settled_s[0]


class TestMeter:
    """The device's meter with the host's around it."""

    def test_the_host_is_read_beside_the_device(self, clock: FakeClock) -> None:
        """The reading is the device's, the host's is kept apart, and its stretch encloses the device's."""
        host = ScriptedDevice(power_w=20.0)
        device = ScriptedDevice(kind=DeviceKind.GPU, clock=host.clock)
        meter = DeviceRig(device, host=host, clock=clock).meter((7,), DeviceSettings())
        meter.start()
        host.clock.now_s += 10.0
        reading = meter.stop()
        meter.close()
        assert meter.host_reading is not None
        assert (reading.energy_j, meter.host_reading.energy_j) == (500.0, 200.0)
        assert host.metered_pids == [(7,)]
        assert host.meters[0].calls == ["start", "stop", "close"]

    def test_without_a_host_there_is_no_second_reading(self, clock: FakeClock) -> None:
        """Where the host's CPU is not measured nothing stands in for it."""
        meter = DeviceRig(ScriptedDevice(), clock=clock).meter((), DeviceSettings())
        meter.start()
        meter.stop()
        assert None is meter.host_reading


class TestIdle:
    """Power with nothing to do."""

    def test_an_estimate_is_not_idled_for(self, clock: FakeClock) -> None:
        """A formula knows idle power without waiting half a minute for it."""
        source = PowerSource(scope=Scope.CPU_SHARE, method=Method.ESTIMATE, detail="a formula")
        device = ScriptedDevice(source=source)
        assert None is DeviceRig(device, clock=clock).idle_power_w(30.0, ())
        assert device.meters == []

    def test_nought_seconds_are_not_measured(self, clock: FakeClock) -> None:
        """A job may leave idle power out."""
        device = ScriptedDevice()
        assert None is DeviceRig(device, clock=clock).idle_power_w(0.0, ())
        assert device.meters == []

    def test_a_measured_device_is(self, clock: FakeClock) -> None:
        """Elsewhere the device is metered for that long, with the engine's processes."""
        device = ScriptedDevice(source=SOURCE)

        class Ticking(FakeClock):
            def advance(self, seconds: float) -> None:
                super().advance(seconds)
                device.clock.now_s += seconds

        assert DeviceRig(device, clock=Ticking()).idle_power_w(30.0, (7,)) == 50.0
        assert device.metered_pids == [(7,)]
