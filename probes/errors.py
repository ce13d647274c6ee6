"""What can go wrong when hardware is asked.

ProbeError
 |- UnknownDevice        no such device here
 |- NotPermitted         the kernel or driver refuses this user
 |- NotSupported         the device does not have it
 |- ImplausibleReading   the answer cannot be true
 |- CounterReset         an energy counter went backwards
 |- DeviceInUse          another process measures it
 |- DeviceLost           the device stopped answering
 |- InvalidSetting       the device does not take this value
 |- Uncontrolled         a setting was refused or did not take; everything is as it was found
 |- RestoreFailed        what was found could not be put back
 |- ControlLeaseLost     the guard no longer holds our settings
 '- GuardUnavailable     the guard does not answer, or refuses us
"""

from __future__ import annotations


class ProbeError(Exception):
    """Root of everything a probe raises; `kind` is stored as a reason."""

    kind = "probe_error"


class UnknownDevice(ProbeError):
    """Choose one of the devices that `wattfront doctor` lists."""

    kind = "unknown_device"


class NotPermitted(ProbeError):
    """Give the process the permission that the message names."""

    kind = "not_permitted"


class NotSupported(ProbeError):
    """Use another source of power readings, or go without."""

    kind = "not_supported"


class ImplausibleReading(ProbeError):
    """Measure again; if it persists, the driver's sensor is not to be trusted."""

    kind = "implausible_reading"


class CounterReset(ProbeError):
    """Measure again; a driver reload, a suspend or a hotplugged CPU started the counter anew."""

    kind = "counter_reset"


class DeviceLost(ProbeError):
    """Check the driver's log; the device must be reset or the machine restarted."""

    kind = "device_lost"


class DeviceInUse(ProbeError):
    """Wait until the process that the message names is done, or end it."""

    kind = "device_in_use"


class InvalidSetting(ProbeError):
    """Choose a value that the message allows."""

    kind = "invalid_setting"


class Uncontrolled(ProbeError):
    """Give the process (or the guard) the permission that the message names, or tune without the knob."""

    kind = "uncontrolled"


class RestoreFailed(ProbeError):
    """Run `wattfront restore` as root; until it succeeds no job may use the device."""

    kind = "restore_failed"


class ControlLeaseLost(ProbeError):
    """Measure again: the guard took the settings back because it no longer heard from us."""

    kind = "control_lease_lost"


class GuardUnavailable(ProbeError):
    """Start `wattfront guard`, or correct the setting that the message names."""

    kind = "guard_unavailable"
