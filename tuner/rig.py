"""What is done with the device around a window: let it cool, set it, verify, watch, meter, put back.

Knows nothing of engines or of what a window is for.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import structlog

from probes.clock import Clock, SystemClock
from probes.control.attain import cap_attained
from probes.control.seam import DeviceControl
from probes.device import Device, DeviceKind, Meter, Method, Reading
from probes.errors import ProbeError, RestoreFailed, Uncontrolled
from probes.settings import SM_CLOCK_CAP, DeviceSettings
from probes.settle import LONGEST_DELAY_S, Settling, cool_down, idle_power
from tuner.window import Watch

#: A GPU hotter than this window's block began costs more watts for the same work; waiting longer costs more than that.
LONGEST_COOL_DOWN_S = 60.0
SHORTEST_COOL_DOWN_S = 1.0
#: A CPU's clock is read as a mean over cores and milliseconds, so it may stand this share above its cap.
CPU_CLOCK_TOLERANCE = 0.02

log = structlog.get_logger()


class DeviceRig:
    """One job's device, as its bench uses it."""

    def __init__(
        self,
        device: Device,
        *,
        control: DeviceControl | None = None,
        host: Device | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._device = device
        self._control = control
        self._host = host
        self._clock = clock or SystemClock()
        self._first_temperature_c: float | None = None
        #: Why what was found could not be put back; nothing may be measured after that.
        self.restore_error: RestoreFailed | None = None

    def now_s(self) -> float:
        """Return the instant on the clock that the device's time is counted by: virtual where the device is."""
        return self._clock.monotonic_s()

    def cool_down(self) -> None:
        """Wait until the device is about as warm as before the job's first window; a device without one is let be."""
        temperature_c = self._temperature_c()
        if temperature_c is None:
            return
        if self._first_temperature_c is None:
            self._first_temperature_c = temperature_c
            return
        cooled = cool_down(
            self._device.status,
            target_c=self._first_temperature_c,
            shortest_s=SHORTEST_COOL_DOWN_S,
            longest_s=LONGEST_COOL_DOWN_S,
            clock=self._clock,
        )
        log.info("cooled_down", seconds=round(cooled.waited_s, 1), has_reached=cooled.has_reached)

    @contextmanager
    def applied(self, settings: DeviceSettings) -> Iterator[None]:
        """Set the knobs while the context is open and put back what was found after it, come what may.

        Raises what `DeviceControl.apply` raises. A restore that fails is kept in `restore_error`: what was measured is
        measured, but nothing else may be.
        """
        if self.restore_error is not None:
            raise self.restore_error
        if settings.is_empty:
            yield
            return
        if self._control is None:
            raise Uncontrolled(
                f"{self._device.info.name} is only observed: nobody was asked to set {settings.as_dict()}"
            )
        try:
            self._control.apply(settings)
        except RestoreFailed as error:  # it failed, and so did undoing it
            self._note(error)
            raise
        try:
            yield
        finally:
            self._restore(self._control)

    def watch(self, settings: DeviceSettings, seed: str) -> Watch:
        """Return what a window asks of this device while these settings are in force."""
        is_gpu = self._device.info.kind is DeviceKind.GPU
        return Watch(
            is_settled=Settling(self._device.status, self._clock).is_settled if is_gpu else lambda: True,
            unattained=lambda: self._unattained(settings),
            problems=lambda: self.problems(settings),
            power_w=self._power_w if is_gpu else lambda: None,  # a CPU's is of everybody's work, its meter's is not
            delay_s=random.Random(seed).uniform(0, LONGEST_DELAY_S) if is_gpu else 0.0,
        )

    def meter(self, pids: Sequence[int], settings: DeviceSettings) -> RigMeter:
        """Open the device's meter, and beside it the host CPU's where that can be measured."""
        host = self._host.meter(pids) if self._host else None
        return RigMeter(self._device.meter(pids, settings=settings), host)

    def idle_power_w(self, seconds: float, pids: Sequence[int]) -> float | None:
        """Measure the device with the model loaded and nothing to do; None where nothing can be measured."""
        source = self._device.power_source
        if seconds <= 0 or source is None or source.method in (Method.ESTIMATE, Method.SIMULATED):
            return None
        reading = idle_power(self._device, self._clock, seconds=seconds, pids=pids)
        return reading.mean_power_w if reading.is_valid else None

    def problems(self, settings: DeviceSettings) -> tuple[str, ...]:
        """Return why what was set is no longer in force; nothing where nothing was set."""
        return () if self._control is None or settings.is_empty else self._control.problems()

    def close(self) -> None:
        """Put back whatever is still set, and let go of the control; what failed before may succeed now."""
        if self._control is None:
            return
        try:
            self._control.close()
        except RestoreFailed as error:
            self._note(error)
        else:
            self.restore_error = None

    def _restore(self, control: DeviceControl) -> None:
        try:
            control.restore()
        except RestoreFailed as error:
            self._note(error)

    def _note(self, error: RestoreFailed) -> None:
        log.error("restore_failed", error=str(error))
        self.restore_error = error

    def _unattained(self, settings: DeviceSettings) -> tuple[str, ...]:
        cap_mhz = settings.sm_clock_cap_mhz or settings.cpu_clock_cap_mhz
        if cap_mhz is None:
            return ()
        return cap_attained(self._clock_mhz, cap_mhz, self._step_mhz(settings), self._clock)

    def _step_mhz(self, settings: DeviceSettings) -> float:
        """Return by how much a clock may differ from its cap: one step of the list, or what reading it is worth."""
        if settings.sm_clock_cap_mhz is None:
            return CPU_CLOCK_TOLERANCE * (settings.cpu_clock_cap_mhz or 0)
        caps = {settable.name: settable for settable in self._device.settables()}
        return caps[SM_CLOCK_CAP].step_below(settings.sm_clock_cap_mhz) if SM_CLOCK_CAP in caps else 1

    def _clock_mhz(self) -> float | None:
        try:
            return self._device.status().clock_mhz
        except ProbeError:
            return None

    def _power_w(self) -> float | None:
        try:
            return self._device.status().power_w
        except ProbeError:
            return None

    def _temperature_c(self) -> float | None:
        if self._device.info.kind is not DeviceKind.GPU:
            return None
        try:
            return self._device.status().temperature_c
        except ProbeError:
            return None


class RigMeter:
    """The device's meter with the host CPU's around it, so that the device's instants are the ones that count."""

    def __init__(self, device: Meter, host: Meter | None) -> None:
        self._device = device
        self._host = host
        #: The host's energy over the last stretch.
        self.host_reading: Reading | None = None

    def start(self) -> float:
        """Begin both; return the device's start."""
        if self._host:
            self._host.start()
        return self._device.start()

    def stop(self) -> Reading:
        """End both; return the device's reading."""
        reading = self._device.stop()
        if self._host:
            self.host_reading = self._host.stop()
        return reading

    def close(self) -> None:
        """Stop both."""
        self._device.close()
        if self._host:
            self._host.close()
