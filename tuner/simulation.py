"""A simulated engine on a simulated device, opened for one job, with its rig: nothing real is measured or set.

Knows neither what is searched nor where results are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.serving import ServingEngine
from engine.settings import EngineSettings
from engine.simulated.engine import SimulatedEngine
from engine.simulated.measured import ChooseTimes
from engine.simulated.shapes import ModelShape, load_shape
from probes.control.seam import DeviceControl
from probes.errors import ProbeError
from probes.settings import DeviceSettings
from probes.settle import idle_power
from probes.simulated.control import SimulatedControl
from probes.simulated.device import SimulatedDevice
from probes.simulated.names import open_simulated, parse_name
from probes.validity import Reason
from tuner.aic import PACKAGE, choose_step_times, load_library
from tuner.errors import InvalidRequest
from tuner.knobs import SIMULATED, launch_s
from tuner.request import TuneRequest
from tuner.rig import DeviceRig
from tuner.window import Watch
from tuner.workload import max_context


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What a job on a simulated device runs on."""

    device: SimulatedDevice
    shape: ModelShape
    #: Looks for measured times of kernels, where the device's name asks for them.
    choose_times: ChooseTimes | None = None

    def open_engine(self, settings: EngineSettings) -> ServingEngine:
        """Lay the model out on the device; see `SimulatedEngine`. A launch takes the time that one usually takes."""
        engine = SimulatedEngine(settings, self.shape, self.device, choose_times=self.choose_times)
        self.device.clock.advance_to(self.device.clock.now_s + launch_s(SIMULATED))
        return engine

    def open_rig(self) -> DeviceRig:
        """Return the rig of the device, on the device's own clock."""
        return SimulatedRig(self.device, SimulatedControl(self.device))


def open_simulation(request: TuneRequest) -> Simulation:
    """Open the device and read the model's shape; the job's seed is the device's.

    Raises UnknownDevice, UnknownModel or CheckpointError, and InvalidRequest for a load beyond the model's context.
    """
    device = open_simulated(request.device, seed=request.seed)
    choose_times = _measured_times(request.device, device)
    shape = load_shape(request.model)
    longest = max_context(request.workload)
    if longest > shape.max_context:
        remedy = f"{request.model} has a context of {shape.max_context} tokens; nothing is truncated"
        raise InvalidRequest("workload", f"up to {longest} prompt + output tokens", remedy)
    return Simulation(device=device, shape=shape, choose_times=choose_times)


def _measured_times(name: str, device: SimulatedDevice) -> ChooseTimes | None:
    """Return who looks for measured times of kernels; None unless the device's name asks for them."""
    if not parse_name(name).has_measured_times:
        return None
    library = load_library()
    if library is None:
        raise InvalidRequest("device", name, f"{PACKAGE} is not installed; pip install 'wattfront[aic]' brings it")
    return lambda settings, max_context: choose_step_times(
        settings, accelerator=device.accelerator.key, max_context=max_context, library=library
    )


class SimulatedRig(DeviceRig):
    """A rig whose device is settled at once, so that nothing waits: waiting would be idle time amid the load."""

    def __init__(self, device: SimulatedDevice, control: DeviceControl) -> None:
        super().__init__(device, control=control, clock=device.clock)
        self._simulated = device

    def watch(self, settings: DeviceSettings, seed: str) -> Watch:
        """Return what a window asks of the device: whether its clock keeps the cap, and what was set."""
        return Watch(
            unattained=lambda: self._above_cap(settings.sm_clock_cap_mhz),
            problems=lambda: self.problems(settings),
            power_w=self._power_w,
        )

    def idle_power_w(self, seconds: float, pids: Sequence[int]) -> float | None:
        """Return what the device draws with a model loaded and nothing to do; None where no seconds are asked."""
        if seconds <= 0:
            return None
        self._simulated.begin("idle")  # from then on a model counts as loaded
        return idle_power(self._simulated, self._simulated.clock, seconds=seconds, pids=pids).mean_power_w

    def _above_cap(self, cap_mhz: int | None) -> tuple[str, ...]:
        if cap_mhz is None:
            return ()
        try:
            clock_mhz = self._simulated.status().clock_mhz
        except ProbeError:
            clock_mhz = None
        is_kept = clock_mhz is not None and clock_mhz <= cap_mhz
        return () if is_kept else (Reason.CLOCK_NOT_ATTAINED,)
