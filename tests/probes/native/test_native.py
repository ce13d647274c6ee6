"""More than one process on one fake driver, through the unmodified bindings and a real shared library."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from ctypes import sizeof
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.probes.native.fake_library import FIRST_UUID, SECOND_UUID, NativeNvml

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 60

LOCK_AND_WAIT = f"""
import sys
from probes.nvidia.nvml import Nvml
Nvml().set_sm_clock_range("{FIRST_UUID}", 210, 900)
print("locked", flush=True)
sys.stdin.read()
"""

TRY_EVERY_WRITE = f"""
import json
from probes.errors import ProbeError
from probes.nvidia.nvml import Nvml
nvml, kinds = Nvml(), []
for call in (
    lambda: nvml.set_sm_clock_range("{FIRST_UUID}", 210, 900),
    lambda: nvml.reset_sm_clock_range("{FIRST_UUID}"),
    lambda: nvml.set_power_limit_mw("{FIRST_UUID}", 400_000),
):
    try:
        call()
        kinds.append("done")
    except ProbeError as error:
        kinds.append(error.kind)
print(json.dumps(kinds))
"""

READ_EVERYTHING = f"""
import dataclasses, json
from probes.nvidia.nvml import Nvml
from probes.nvidia.nvml_values import PowerField
nvml, uuid = Nvml(), "{FIRST_UUID}"
read = dict(
    cards=[dataclasses.asdict(card) for card in nvml.cards()],
    driver=nvml.driver_version(),
    vbios=nvml.vbios_version(uuid),
    architecture=nvml.architecture(uuid),
    is_mig_enabled=nvml.is_mig_enabled(uuid),
    power_w=nvml.power_w(uuid, ceiling_w=1050),
    instant_w=nvml.power_field_w(uuid, PowerField.INSTANT, ceiling_w=1050),
    average_w=nvml.power_field_w(uuid, PowerField.AVERAGE, ceiling_w=1050),
    sm_clock_mhz=nvml.sm_clock_mhz(uuid),
    memory_clock_mhz=nvml.memory_clock_mhz(uuid),
    temperature_c=nvml.temperature_c(uuid),
    event_bits=nvml.event_bits(uuid),
    clocks=nvml.supported_sm_clocks_mhz(uuid)[::59],
    limits=dataclasses.asdict(nvml.power_limits(uuid)),
    is_persistent=nvml.is_persistent(uuid),
    is_virtual=nvml.is_virtual(uuid),
    compute_pids=sorted(nvml.compute_pids(uuid)),
)
nvml.close()
print(json.dumps(read))
"""

WATCH_THE_COUNTER = f"""
import json, time
from probes.nvidia.nvml import Nvml
nvml, seen = Nvml(), []
while len(seen) < 4:
    value = nvml.energy_mj("{FIRST_UUID}")
    if not seen or value != seen[-1]:
        seen.append(value)
print(json.dumps(seen))
"""

LIST_CARDS = """
import json
from probes.errors import ProbeError
from probes.nvidia.nvml import Nvml
try:
    cards, failures = Nvml().cards_and_failures()
    print(json.dumps([[card.uuid for card in cards], [error.kind for error in failures]]))
except ProbeError as error:
    print(json.dumps(str(error)))
"""


def answer_of(script: str, environ: dict[str, str]) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, cwd=ROOT, capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")
    return json.loads(done.stdout)


def test_a_lock_outlives_the_process_that_set_it(native_nvml: NativeNvml) -> None:
    """After SIGKILL of the setter the clock stays where it was locked, as on a GPU."""
    environ = native_nvml.environ(is_privileged=True)
    with subprocess.Popen(
        [sys.executable, "-c", LOCK_AND_WAIT], env=environ, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"locked\n"
        child.kill()
        assert child.wait(TIMEOUT_S) == -signal.SIGKILL
    assert (native_nvml.gpu().locked, native_nvml.gpu().sm_clock_mhz) == ((210, 900), 900)
    assert answer_of(READ_EVERYTHING, native_nvml.environ(is_privileged=False))["sm_clock_mhz"] == 900


def test_without_privilege_every_write_is_refused(native_nvml: NativeNvml) -> None:
    """The driver's refusal becomes NotPermitted, and nothing is changed."""
    kinds = answer_of(TRY_EVERY_WRITE, native_nvml.environ(is_privileged=False))
    gpu = native_nvml.gpu()
    assert kinds == ["not_permitted"] * 3
    assert (gpu.locked, gpu.limit_mw, gpu.num_writes) == (None, 700_000, 0)


def test_with_privilege_every_write_takes_effect(native_nvml: NativeNvml) -> None:
    """A lock, its reset and a limit are done and seen here."""
    kinds = answer_of(TRY_EVERY_WRITE, native_nvml.environ(is_privileged=True))
    gpu = native_nvml.gpu()
    assert kinds == ["done"] * 3
    assert (gpu.locked, gpu.limit_mw, gpu.num_writes) == (None, 400_000, 3)


def test_a_driver_that_asks_for_no_privilege_takes_writes_from_anyone(native_nvml: NativeNvml) -> None:
    """An unprivileged process may write where the script says that none is needed."""
    native_nvml.needs_privilege = False
    assert answer_of(TRY_EVERY_WRITE, native_nvml.environ(is_privileged=False)) == ["done"] * 3


@pytest.mark.parametrize(
    ("refusal", "kinds"),
    [
        ("lock_refusal", ["device_lost", "done", "done"]),
        ("reset_refusal", ["done", "device_lost", "done"]),
        ("limit_refusal", ["done", "done", "device_lost"]),
    ],
)
def test_each_write_can_be_refused_alone(native_nvml: NativeNvml, refusal: str, kinds: list[str]) -> None:
    """A scripted code meets the one call that it belongs to."""
    setattr(native_nvml.gpu(), refusal, 15)
    assert kinds == answer_of(TRY_EVERY_WRITE, native_nvml.environ(is_privileged=True))


def test_everything_can_be_read(native_nvml: NativeNvml) -> None:
    """Every reading call of `probes.nvidia.nvml` gives what the script says, in our units."""
    native_nvml.show_pids(4321, 1234)
    native_nvml.gpu().event_bits = 4
    assert answer_of(READ_EVERYTHING, native_nvml.environ(is_privileged=False)) == {
        "cards": [{"uuid": FIRST_UUID, "name": "NVIDIA H100 80GB HBM3", "pci_id": "0000:18:00.0"}],
        "driver": "570.86.10",
        "vbios": "96.00.89",
        "architecture": 9,
        "is_mig_enabled": False,
        **dict.fromkeys(("power_w", "instant_w", "average_w"), 400.0),
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "temperature_c": 45,
        "event_bits": 4,
        "clocks": [210, 1095, 1980],
        "limits": {"lowest_w": 200, "highest_w": 700, "enforced_w": 700, "default_mw": 700_000, "set_mw": 700_000},
        "is_persistent": True,
        "is_virtual": False,
        "compute_pids": [1234, 4321],
    }


def test_the_counter_rises_in_ticks_of_power_times_time(native_nvml: NativeNvml) -> None:
    """Each step of the counter is a whole number of ticks at what the GPU draws."""
    tick_mj = native_nvml.gpu().power_mw * native_nvml.gpu().tick_us // 1_000_000
    seen = answer_of(WATCH_THE_COUNTER, native_nvml.environ(is_privileged=False))
    assert tick_mj == 4000
    # The first step may begin within a tick, from where counting was last settled.
    num_ticks = [(later - earlier) / tick_mj for earlier, later in pairwise(seen[1:])]
    assert [max(1, round(ticks)) for ticks in num_ticks] == pytest.approx(num_ticks, abs=0.001)


def test_what_was_drawn_before_a_change_stays_counted(native_nvml: NativeNvml) -> None:
    """When the load ends the counter goes on from what it had, at the idle power."""
    before_uj = native_nvml.gpu().counted_uj
    with native_nvml.changing() as gpu:
        gpu.is_active = 0
    assert native_nvml.gpu().counted_uj > before_uj
    seen = answer_of(WATCH_THE_COUNTER, native_nvml.environ(is_privileged=False))
    assert sorted(seen) == seen
    assert seen[0] >= native_nvml.gpu().counted_uj // 1000
    assert answer_of(READ_EVERYTHING, native_nvml.environ(is_privileged=False))["power_w"] == 70.0


def test_a_lower_clock_draws_less(native_nvml: NativeNvml) -> None:
    """Power above idle is in proportion to the clock, so that a lock can be told from the watts."""
    native_nvml.gpu().locked_min_mhz, native_nvml.gpu().locked_max_mhz = 210, 990
    assert answer_of(READ_EVERYTHING, native_nvml.environ(is_privileged=False))["power_w"] == 235.0
    assert native_nvml.gpu().power_mw == 235_000


def test_one_lost_gpu_leaves_the_other(native_library: Path, tmp_path: Path) -> None:
    """Of two GPUs one is lost; the other is still listed, and the lost one has its own error."""
    nvml = NativeNvml(native_library, tmp_path / "two", uuids=(FIRST_UUID, SECOND_UUID))
    nvml.gpu(0).is_lost = 1
    assert answer_of(LIST_CARDS, nvml.environ(is_privileged=False)) == [[SECOND_UUID], ["device_lost"]]
    nvml.close()


def test_a_file_of_another_layout_is_refused(native_nvml: NativeNvml) -> None:
    """When the two sides of the layout differ, the library says so instead of reading rubbish."""
    native_nvml._state.version += 1
    assert "differ in version" in answer_of(LIST_CARDS, native_nvml.environ(is_privileged=False))
    native_nvml._state.version -= 1
    native_nvml._state_path.write_bytes(bytes(sizeof(type(native_nvml._state)) + 8))
    assert "differ in version" in answer_of(LIST_CARDS, native_nvml.environ(is_privileged=False))


def test_without_a_state_file_there_is_no_driver(native_nvml: NativeNvml) -> None:
    """A child that is not told where the GPUs are finds no driver."""
    environ = {**native_nvml.environ(is_privileged=False), "WATTFRONT_FAKE_NVML_STATE": "/nonexistent"}
    assert "kernel driver is not loaded" in answer_of(LIST_CARDS, environ)
