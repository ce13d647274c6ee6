"""Control of a simulated device: the same promises as of a real one."""

from __future__ import annotations

import pytest

from probes.control.seam import DeviceControl
from probes.errors import InvalidSetting, RestoreFailed, Uncontrolled
from probes.settings import DeviceSettings
from probes.simulated.control import SimulatedControl
from probes.simulated.device import SimulatedDevice
from probes.simulated.faults import Fault, FaultKind
from probes.simulated.options import SimulationOptions
from tests.probes.simulated.toys import make_device

FOUND = DeviceSettings(power_cap_w=500)
CAPPED = DeviceSettings(sm_clock_cap_mhz=900, power_cap_w=400)


@pytest.fixture
def device() -> SimulatedDevice:
    """An administrator limited it to 500 W."""
    device = make_device()
    device.configure(FOUND)
    return device


def refusing(from_s: float, until_s: float, kind: FaultKind = FaultKind.WRITE_REFUSED) -> SimulatedDevice:
    fault = Fault(kind=kind, from_s=from_s, until_s=until_s)
    device = make_device(options=SimulationOptions(faults=(fault,)))
    device.configure(FOUND)
    return device


def test_settings_come_and_go(device: SimulatedDevice) -> None:
    """What is applied holds until it is restored, then all is as found; restoring again changes nothing."""
    control: DeviceControl = SimulatedControl(device)
    control.apply(CAPPED)
    assert (device.settings, control.problems()) == (CAPPED, ())
    control.restore()
    control.restore()
    assert (device.settings, control.problems()) == (FOUND, ())


def test_closing_restores(device: SimulatedDevice) -> None:
    """Close gives everything back, and can be repeated."""
    control = SimulatedControl(device)
    control.apply(CAPPED)
    control.close()
    control.close()
    assert device.settings == FOUND


def test_a_knob_that_is_no_longer_named_is_as_it_was_found(device: SimulatedDevice) -> None:
    """After a second apply only its own knobs differ from what was found."""
    control = SimulatedControl(device)
    control.apply(CAPPED)
    control.apply(DeviceSettings(sm_clock_cap_mhz=600))
    assert device.settings == DeviceSettings(sm_clock_cap_mhz=600, power_cap_w=500)
    control.restore()
    assert device.settings == FOUND


@pytest.mark.parametrize("settings", [DeviceSettings(sm_clock_cap_mhz=901), DeviceSettings(power_cap_w=900)])
def test_a_value_that_the_device_lacks_is_refused(device: SimulatedDevice, settings: DeviceSettings) -> None:
    """It is not snapped in silence, and the former settings are put back too."""
    control = SimulatedControl(device)
    control.apply(CAPPED)
    with pytest.raises(InvalidSetting):
        control.apply(settings)
    assert (device.settings, control.problems()) == (FOUND, ())


def test_a_knob_that_the_device_lacks_is_uncontrolled(device: SimulatedDevice) -> None:
    """A GPU has no CPU clock; the message names device and knob."""
    with pytest.raises(Uncontrolled, match=r"SIM-TOY-X1: .*cpu_clock_cap_mhz; nothing is set"):
        SimulatedControl(device).apply(DeviceSettings(cpu_clock_cap_mhz=2000))
    assert device.settings == FOUND


def test_a_refused_write_is_uncontrolled() -> None:
    """Where the device refuses, nothing is set and nothing has to be put back."""
    device = refusing(1.0, 9.0)
    device.advance_to(1.0)
    control = SimulatedControl(device)
    with pytest.raises(Uncontrolled, match="refuses"):
        control.apply(CAPPED)
    control.close()
    assert device.settings == FOUND


@pytest.mark.parametrize("kind", [FaultKind.WRITE_REFUSED, FaultKind.DEVICE_LOST])
def test_a_failed_restore_is_tried_again(kind: FaultKind) -> None:
    """Restore raises every time while the device does not take back what was found; closing succeeds once it does."""
    device = refusing(1.0, 9.0, kind)
    control = SimulatedControl(device)
    control.apply(CAPPED)
    device.advance_to(1.0)
    for _ in range(2):
        with pytest.raises(RestoreFailed, match="sm_clock_cap_mhz"):
            control.restore()
    device.advance_to(9.0)
    control.close()
    assert device.settings == FOUND


def test_a_change_by_others_is_a_problem(device: SimulatedDevice) -> None:
    """What is set is held against what was applied."""
    control = SimulatedControl(device)
    control.apply(CAPPED)
    device.configure(DeviceSettings(power_cap_w=650))
    assert control.problems() == ("external_change",)


def test_a_lost_device_is_a_problem() -> None:
    """A device that no longer answers keeps no settings that anybody could know of."""
    device = refusing(1.0, 9.0, FaultKind.DEVICE_LOST)
    control = SimulatedControl(device)
    control.apply(CAPPED)
    device.advance_to(1.0)
    assert control.problems() == ("device_lost",)


def test_it_says_that_nothing_real_is_set(device: SimulatedDevice) -> None:
    """The description leaves no doubt."""
    assert "nothing real" in SimulatedControl(device).description
