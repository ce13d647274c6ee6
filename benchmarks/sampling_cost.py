"""What looking at eight GPUs beside an engine costs, in percent of one core.

No hardware: a C library stands in the driver's place, under the unmodified NVML bindings and the product's own meters,
sampling threads included. Its calls are cheaper than a driver's, which go to the kernel; so this is the cost on our
side of the driver, and a driver's own comes on top. Nothing is subtracted. CPU time is that of the whole process,
which does nothing else, from the meter's start to its stop, its edges included.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from benchmarks.machine import finish
from probes.detect import find_device, list_devices
from probes.device import Device
from probes.metering import gpu_meter
from probes.metering.group import members_of
from tests.probes.native.fake_library import NativeNvml, build

NUM_GPUS = 8
RATES_HZ = (20, 10)
NUM_LOOKS = 2_000
CHILD_OPTION = "--behind-the-fake"


def main() -> None:
    """Build the library, then measure in a child process that finds it first."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="real time of each measurement (default 30)")
    parser.add_argument(CHILD_OPTION, action="store_true", help="measure: the environment is that of the fake driver")
    arguments = parser.parse_args()
    if arguments.behind_the_fake:
        _measure(arguments.seconds)
        return
    with tempfile.TemporaryDirectory() as folder:
        uuids = tuple(f"GPU-{number:08x}-1111-2222-3333-444455556666" for number in range(1, NUM_GPUS + 1))
        nvml = NativeNvml(build(Path(folder)), Path(folder) / "gpus", uuids=uuids)
        command = [sys.executable, "-m", "benchmarks.sampling_cost", CHILD_OPTION, "--seconds", str(arguments.seconds)]
        subprocess.run(command, env=nvml.environ(is_privileged=False), check=True)
        nvml.close()


def _measure(seconds: float) -> None:
    """Print the table and the JSON line."""
    devices = list_devices()
    num_gpus = len(members_of(find_device("gpu:all", devices)))
    if num_gpus != NUM_GPUS:
        raise SystemExit(f"{num_gpus} GPUs are visible, not the {NUM_GPUS} of the fake driver")
    figures = {}
    print(f"{NUM_GPUS} GPUs behind a fake driver, one meter over all, {seconds:.0f} s each")
    for rate_hz in RATES_HZ:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_meter, "LOOK_INTERVAL_S", 1 / rate_hz)
            core_pct, num_looks = _core_pct(find_device("gpu:all", devices), seconds)
        print(
            f"looks at {rate_hz} Hz: {core_pct:.2f} % of one core ({num_looks / seconds / NUM_GPUS:.1f} looks/s a GPU)"
        )
        figures["sampling_core_pct" if rate_hz == RATES_HZ[0] else f"sampling_core_pct_{rate_hz}hz"] = core_pct
    figures["status_us"] = _status_us(devices[0])
    print(f"one status of one GPU: {figures['status_us']:.1f} us")
    finish("sampling_cost", figures)


def _core_pct(group: Device, seconds: float) -> tuple[float, int]:
    """Return the CPU time of metering in percent of the real time, and the number of looks in the reading."""
    meter = group.meter([os.getpid()])
    begun_s, begun_cpu_s = time.monotonic(), time.process_time()
    meter.start()
    time.sleep(seconds)
    reading = meter.stop()
    cpu_s, real_s = time.process_time() - begun_cpu_s, time.monotonic() - begun_s
    if not reading.is_valid:
        raise SystemExit(f"the reading was refused: {', '.join(reading.reasons)}")
    return 100 * cpu_s / real_s, sum(conditions.num_samples for conditions in reading.conditions)


def _status_us(device: Device) -> float:
    begun_s = time.process_time()
    for _ in range(NUM_LOOKS):
        device.status()
    return (time.process_time() - begun_s) / NUM_LOOKS * 1e6


if __name__ == "__main__":
    main()
