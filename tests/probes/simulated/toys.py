"""A simulated device whose figures can be worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

from probes.simulated.accelerators import ACCELERATORS, Accelerator
from probes.simulated.device import SimulatedDevice
from probes.simulated.machine import Responds
from probes.simulated.options import SimulationOptions
from probes.simulated.work import Work

IDLE_W = 60.0
LOADED_W = 100.0
HIGHEST_MHZ = 1800
#: Of a GPU at work at the highest clock.
BUSY_W = 550.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyWork:
    """Work that takes `seconds` at the highest clock and draws `BUSY_W * load` or less."""

    seconds: float = 0.5
    num_gpus: int = 1
    load: float = 1.0
    arithmetic: str = "bf16"
    gemm_flops: float = 0.0
    attention_flops: float = 0.0
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0
    num_layers: int = 1
    num_tokens: int = 1
    num_sampled: int = 1
    num_experts: float = 0.0
    scale_up_bytes: float = 0.0
    num_scale_up: float = 0.0
    scale_out_bytes: float = 0.0
    num_scale_out: float = 0.0
    num_stages: int = 1
    kernel_s: float = 0.0


class ToyResponse:
    """Time goes with the clock's inverse, power is 100 W and 0.25 W for each MHz, times the work's load."""

    def settle(
        self, work: Work, *, clock_cap_mhz: float, power_cap_w: float, from_clock_mhz: float
    ) -> tuple[float, float, float]:
        assert isinstance(work, ToyWork)
        clock_mhz = clock_cap_mhz
        while clock_mhz > 300 and watts(clock_mhz) * work.load > power_cap_w:
            clock_mhz -= 15
        return work.seconds * HIGHEST_MHZ / clock_mhz, watts(clock_mhz) * work.load, clock_mhz


def watts(clock_mhz: float) -> float:
    """Return what a GPU draws at full load."""
    return 100 + 0.25 * clock_mhz


def make_accelerator(**changes: object) -> Accelerator:
    toy = replace(
        ACCELERATORS["h100-sxm"],
        key="toy",
        name="Toy",
        tdp_w=700.0,
        power_limit_w=(200.0, 700.0),
        clocks_mhz=tuple(range(300, HIGHEST_MHZ + 1, 15)),
        idle_w=IDLE_W,
        idle_loaded_w=LOADED_W,
        counter_tick_s=0.1,
        domain_size=8,
    )
    return replace(toy, **changes)  # type: ignore[arg-type] # whichever fields a test names


def make_device(
    *,
    num_gpus: int = 1,
    seed: int = 0,
    noise: float = 0.0,
    options: SimulationOptions | None = None,
    response: Responds | None = None,
    accelerator: Accelerator | None = None,
) -> SimulatedDevice:
    return SimulatedDevice(
        accelerator or make_accelerator(),
        num_gpus=num_gpus,
        seed=seed,
        noise=noise,
        options=options,
        response=response or ToyResponse(),
    )


def work_for(device: SimulatedDevice, work: ToyWork, num_steps: int = 1, *, until_s: float | None = None) -> float:
    """Do steps one after the other, so many or until an instant; return the end of the last."""
    left = num_steps
    while device.now_s() < until_s if until_s is not None else left > 0:
        device.advance_to(device.run(work, device.now_s()))
        left -= 1
    return device.now_s()
