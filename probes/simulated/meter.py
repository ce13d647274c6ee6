"""The meter of a simulated device: the energy of a stretch of its virtual time.

Either the model's own energy, exactly, or what one of the simulated sensors shows, read and judged as a meter of a real
GPU does. Every reading is of method `simulated`. Never lets time pass, nor waits for a counter's step.
"""

from __future__ import annotations

from dataclasses import replace

from probes.clock import Mark
from probes.device import Method, Reading
from probes.errors import DeviceLost
from probes.metering.findings import Findings, Stretch, Subject, not_started
from probes.settings import DeviceSettings
from probes.simulated.faults import FaultKind
from probes.simulated.machine import SimulatedMachine
from probes.simulated.options import Sensor
from probes.simulated.polling import CounterPolling, PowerPolling, polling_of
from probes.simulated.sensors import Sensors
from probes.simulated.watch import MachineWatch, thinned
from probes.validity import Reason


class SimulatedMeter:
    """Measures one simulated device."""

    def __init__(
        self,
        machine: SimulatedMachine,
        subject: Subject,
        settings: DeviceSettings,
        *,
        uncertainty: float,
        sensors: Sensors | None = None,
    ) -> None:
        """Measure `subject` while `settings` hold; `uncertainty` is the model's, as a share of the energy.

        With `sensors`, the one that the machine's options name is read.
        """
        self._machine = machine
        self._subject = subject
        self._settings = settings
        self._uncertainty = uncertainty
        self._sensors = sensors
        self._watch: MachineWatch | None = None
        self._polling: CounterPolling | PowerPolling | None = None

    def start(self) -> float:
        """Begin a stretch now; nothing is aligned with any sensor."""
        self.close()
        clock, sensor = self._machine.clock, self._machine.options.sensor
        if self._sensors is not None and sensor is not Sensor.EXACT:
            self._polling = polling_of(sensor, self._sensors, clock)
            clock.add(self._polling)
        self._watch = MachineWatch(self._machine, self._settings)
        clock.add(self._watch)
        return self._watch.start_s

    def stop(self) -> Reading:
        """End the stretch now."""
        watch, clock = self._watch, self._machine.clock
        if watch is None:
            return not_started(self._subject, clock)
        found = self._exact(watch) if self._polling is None else self._polling.found(self._subject.source)
        conditions, (reasons, notes) = watch.judged(self._subject.device_uuids[0])
        found = replace(
            found,
            method=Method.SIMULATED,
            uncertainty_j=self._uncertain_j(found),
            reasons=(*found.reasons, *reasons),
            notes=(*found.notes, *notes),
            trace=thinned(found.trace),
            conditions=(conditions,),
        )
        stretch = Stretch(begin=Mark.now(clock), start_s=watch.start_s)
        self.close()
        return stretch.reading(self._subject, found, end_s=clock.now_s, clock=clock)

    def close(self) -> None:
        """Stop looking and forget the stretch. Idempotent."""
        for visitor in (self._watch, self._polling):
            if visitor is not None:
                self._machine.clock.remove(visitor)
        self._watch = self._polling = None

    def _exact(self, watch: MachineWatch) -> Findings:
        is_lost = FaultKind.DEVICE_LOST in self._machine.fault_kinds()
        is_empty = self._machine.clock.now_s <= watch.start_s
        reasons = (*((DeviceLost.kind,) if is_lost else ()), *((Reason.WINDOW_TOO_SHORT,) if is_empty else ()))
        return Findings(
            energy_j=None if reasons else watch.energy_j(),
            method=Method.SIMULATED,
            detail=self._subject.source.detail,
            reasons=reasons,
            trace=watch.trace(),
        )

    def _uncertain_j(self, found: Findings) -> float | None:
        """Return the model's uncertainty with that of the sensor on top."""
        if found.energy_j is None:
            return None
        return self._uncertainty * found.energy_j + (found.uncertainty_j or 0.0)
