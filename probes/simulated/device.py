"""A simulated device: what is asked of any device, answered by GPUs that are not there.

Nothing is measured, and every figure says so. Knows nothing of how long work takes or what it draws: the machine, its
other half, does.
"""

from __future__ import annotations

from collections.abc import Sequence

from probes.device import UNSET, Capability, DeviceInfo, PowerSource, Status
from probes.errors import NotSupported
from probes.metering.findings import Subject
from probes.settings import DeviceSettings
from probes.simulated.accelerators import Accelerator
from probes.simulated.description import capabilities_of, info_of, source_of, uncertainty_of
from probes.simulated.faults import FaultKind
from probes.simulated.machine import Responds, SimulatedMachine
from probes.simulated.meter import SimulatedMeter
from probes.simulated.options import SimulationOptions
from probes.simulated.sensors import Sensors


class SimulatedDevice(SimulatedMachine):
    """`num_gpus` accelerators of one kind as one device: a probes Device, and a machine to a simulated engine."""

    def __init__(
        self,
        accelerator: Accelerator,
        *,
        num_gpus: int = 1,
        seed: int = 0,
        noise: float = 1.0,
        options: SimulationOptions | None = None,
        response: Responds | None = None,
    ) -> None:
        """Put the GPUs on a clock of their own, at 0 s, with nothing loaded.

        `noise` scales all chance, 0 is none. `response` takes the place of the accelerator's own.
        """
        super().__init__(accelerator, num_gpus=num_gpus, seed=seed, noise=noise, options=options, response=response)
        self._info = info_of(accelerator, num_gpus=num_gpus, seed=seed, noise=noise)
        self._sensors = self._switched_on() if self.options.has_sensors else None

    @property
    def info(self) -> DeviceInfo:
        """Which GPUs are simulated, and what their figures rest on."""
        return self._info

    @property
    def power_source(self) -> PowerSource:
        """What meters report from."""
        return source_of(self.accelerator, self.options.sensor)

    @property
    def sensors(self) -> Sensors:
        """The simulated sensors, of all GPUs together. Raises NotSupported where the options have none."""
        if self._sensors is None:
            raise NotSupported(f"{self._info.name} has no sensors; open it with SimulationOptions(has_sensors=True)")
        return self._sensors

    def capabilities(self) -> Sequence[Capability]:
        """Return what can be read and set, all of it simulated."""
        return capabilities_of(self.accelerator, self.options)

    def status(self) -> Status:
        """Look at all GPUs: powers and limits added, the lowest clock in use, the highest temperature, all events.

        At the instant at which work ends, that work is still seen. Raises DeviceLost by script.
        """
        if FaultKind.DEVICE_LOST in self.fault_kinds():
            raise self.lost()
        clock_mhz, events = self.shown_clock()
        return Status(
            time_s=self.clock.now_s,
            power_w=self.ledger.power_w(self.clock.now_s),
            clock_mhz=clock_mhz,
            memory_clock_mhz=self.accelerator.memory_clock_mhz,
            temperature_c=self.temperature_c(),
            power_limit_w=self.power_cap_w() * self.num_gpus,
            events=events,
        )

    def meter(self, pids: Sequence[int] = (), *, settings: DeviceSettings = UNSET) -> SimulatedMeter:
        """Open a meter over all GPUs; there are no processes, so `pids` say nothing."""
        return SimulatedMeter(
            self,
            Subject(source=self.power_source, device_uuids=(self._info.uuid,)),
            settings,
            uncertainty=uncertainty_of(self.accelerator),
            sensors=self._sensors,
        )

    def _switched_on(self) -> Sensors:
        sensors = Sensors(
            lambda: self.ledger.energy(self.clock.now_s),
            faults=self.fault_kinds,
            lost=self.lost,
            tick_s=self.accelerator.counter_tick_s,
            gain=self.options.sensor_gain,
            offset_w=self.options.sensor_offset_w,
        )
        self.clock.add(sensors)
        return sensors
