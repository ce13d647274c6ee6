"""Control of a simulated device: nothing real is set, so nobody's permission is asked and nothing is kept on disk.

What is set is gone with the process, like the device itself. Knows nothing of what a cap does.
"""

from __future__ import annotations

from probes.errors import DeviceLost, NotPermitted, NotSupported, RestoreFailed, Uncontrolled
from probes.settings import DeviceSettings
from probes.simulated.device import SimulatedDevice
from probes.validity import Reason


class SimulatedControl:
    """Sets the knobs of one simulated device; a `probes.control.seam.DeviceControl`."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._found: DeviceSettings | None = None
        self._wanted: DeviceSettings | None = None

    @property
    def description(self) -> str:
        """The simulation itself."""
        return "the simulation (nothing real is set)"

    def apply(self, settings: DeviceSettings) -> None:
        """Set these knobs, the others as they were found; on any failure all is as it was found.

        Raises InvalidSetting, Uncontrolled (the device lacks the knob, or refuses by script), RestoreFailed.
        """
        if self._found is None:
            self._found = self._device.settings
        wanted = DeviceSettings(**{**self._found.as_dict(), **settings.as_dict()})
        try:
            self._device.configure(wanted)
        except (NotSupported, NotPermitted, DeviceLost) as error:
            self.restore()
            raise Uncontrolled(f"{self._device.info.uuid}: {error}; nothing is set") from error
        except BaseException:
            self.restore()
            raise
        self._wanted = wanted

    def problems(self) -> tuple[str, ...]:
        """Return why what was applied no longer holds."""
        if self._wanted is None:
            return ()
        try:
            self._device.status()
        except DeviceLost as error:
            return (error.kind,)
        return () if self._device.settings == self._wanted else (Reason.EXTERNAL_CHANGE,)

    def restore(self) -> None:
        """Put back what was found. Idempotent. Raises RestoreFailed where the device refuses by script."""
        self._wanted = None
        found = self._found
        if found is not None and found != self._device.settings:
            try:
                self._device.configure(found)
            except (NotPermitted, DeviceLost) as error:
                raise RestoreFailed(
                    f"{self._device.info.uuid}: {', '.join(self._device.settings.as_dict())}: {error}"
                ) from error
        self._found = None

    def close(self) -> None:
        """Restore."""
        self.restore()
