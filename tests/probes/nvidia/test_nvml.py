"""NVML through the unmodified bindings, over a fake library."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from threading import Event, Thread

import pynvml
import pytest

from probes.errors import (
    DeviceLost,
    NotPermitted,
    NotSupported,
    ProbeError,
    UnknownDevice,
)
from probes.nvidia.nvml import Nvml
from probes.nvidia.nvml_values import (
    PowerField,
)
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_nvml import FIRST_UUID, NOT_SUPPORTED, SECOND_UUID, FakeGpu, FakeNvml, Field, install

CEILING_W = 1050.0

NOT_AVAILABLE_U32 = 2**32 - 1

#: Longer than any call of the fake takes; a child that waits for a lock for ever is ended.
CHILD_TIMEOUT_S = 20.0


@pytest.fixture
def gpu(clock: FakeClock) -> FakeGpu:
    return FakeGpu(clock=clock)


@pytest.fixture
def library(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    library = FakeNvml(gpu)
    install(monkeypatch, library)
    return library


@pytest.fixture
def nvml(library: FakeNvml) -> Nvml:
    return Nvml()


def instant_power_w(nvml: Nvml) -> float:
    return nvml.power_field_w(FIRST_UUID, PowerField.INSTANT, ceiling_w=CEILING_W)


def test_cards_are_known_by_uuid_whatever_their_index(
    nvml: Nvml, library: FakeNvml, gpu: FakeGpu, clock: FakeClock
) -> None:
    """POWER-44: when two GPUs of one model swap indexes, as after a reboot, each UUID still reads its own power."""
    library.gpus.append(FakeGpu(clock=clock, uuid=SECOND_UUID, pci_id="00000000:3A:00.0", power_mw=400_000))
    before = (nvml.cards(), [nvml.power_w(uuid, ceiling_w=CEILING_W) for uuid in (FIRST_UUID, SECOND_UUID)])
    library.gpus.reverse()
    nvml.close()
    after = (nvml.cards(), [nvml.power_w(uuid, ceiling_w=CEILING_W) for uuid in (FIRST_UUID, SECOND_UUID)])
    assert before == after
    assert before[1] == [300.0, 400.0]


def test_uuids_are_text_and_pci_ids_have_the_kernels_form(nvml: Nvml) -> None:
    """POWER-43: UUIDs come as str, and a domain of eight digits becomes one of four."""
    (card,) = nvml.cards()
    assert (card.uuid, card.pci_id) == (FIRST_UUID, "0000:18:00.0")


def test_energy_is_a_whole_number_past_32_bits(nvml: Nvml, gpu: FakeGpu) -> None:
    """POWER-7: the counter is an int of any size; nothing is taken modulo 2**32."""
    gpu.energy_mj = lambda _now_s: 2**32 + 12_345
    assert nvml.energy_mj(FIRST_UUID) == 2**32 + 12_345


@pytest.mark.parametrize("sentinel", [0, 2**64 - 1])
def test_a_counter_without_a_value_is_not_supported(nvml: Nvml, gpu: FakeGpu, sentinel: int) -> None:
    """POWER-12: zero and all ones stand for no value."""
    gpu.energy_mj = lambda _now_s: sentinel
    with pytest.raises(NotSupported, match="stands for no value"):
        nvml.energy_mj(FIRST_UUID)


def test_a_refused_field_is_absent_though_the_call_succeeds(nvml: Nvml, gpu: FakeGpu) -> None:
    """POWER-8: an entry's own code decides; another field of the same GPU is still read."""
    gpu.fields[(185, 0)] = lambda _now_s: Field(value=250_000)
    with pytest.raises(NotSupported, match="field 186"):
        instant_power_w(nvml)
    assert nvml.power_field_w(FIRST_UUID, PowerField.AVERAGE, ceiling_w=CEILING_W) == 250.0


@pytest.mark.parametrize("value_type", range(7))
def test_a_field_is_decoded_by_its_type(nvml: Nvml, gpu: FakeGpu, value_type: int) -> None:
    """POWER-9: all seven value types give the same watts; the rest of the union is rubbish and not looked at."""
    gpu.fields[(186, 0)] = lambda _now_s: Field(value=60_000, value_type=value_type)
    assert instant_power_w(nvml) == 60.0


def test_an_unknown_type_is_an_error_not_a_guess(nvml: Nvml, gpu: FakeGpu) -> None:
    """POWER-9: a value type of a later driver is refused."""
    gpu.fields[(186, 0)] = lambda _now_s: Field(value=60_000, value_type=7)
    with pytest.raises(ProbeError, match="unknown value type 7"):
        instant_power_w(nvml)


def test_65535_mw_is_real_power_in_a_wider_type(nvml: Nvml, gpu: FakeGpu) -> None:
    """POWER-12: a GPU idling at 65.535 W is not taken for a 16-bit sentinel."""
    gpu.fields[(186, 0)] = lambda _now_s: Field(value=65_535)
    assert instant_power_w(nvml) == 65.535


def test_a_board_without_limits_has_none(nvml: Nvml, gpu: FakeGpu) -> None:
    """Laptop boards refuse both limit calls, and that is no error."""
    gpu.refusals["nvmlDeviceGetPowerManagementLimitConstraints"] = NOT_SUPPORTED
    gpu.refusals["nvmlDeviceGetEnforcedPowerLimit"] = NOT_SUPPORTED
    assert (nvml.max_power_limit_w(FIRST_UUID), nvml.power_limit_w(FIRST_UUID)) == (None, None)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (3, NotSupported),
        (4, NotPermitted),
        (6, UnknownDevice),
        (13, NotSupported),
        (15, DeviceLost),
        (16, DeviceLost),
        (999, ProbeError),
        (12345, ProbeError),
    ],
)
def test_codes_become_named_errors_from_the_drivers_own(
    nvml: Nvml, gpu: FakeGpu, code: int, kind: type[ProbeError]
) -> None:
    """Each code raises its own error, with the code in the message and the binding's error as its cause."""
    gpu.refusals["nvmlDeviceGetPowerUsage"] = code
    with pytest.raises(ProbeError, match=f"code {code}") as caught:
        nvml.power_w(FIRST_UUID, ceiling_w=CEILING_W)
    assert kind is type(caught.value)
    assert isinstance(caught.value.__cause__, pynvml.NVMLError)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """POWER-47: without a driver the message says that the library was not found."""
    install(monkeypatch, None)
    with pytest.raises(NotSupported, match=r"library libnvidia-ml\.so\.1 not found"):
        Nvml().cards()


def test_a_driver_mismatch_is_named(nvml: Nvml, library: FakeNvml) -> None:
    """POWER-47: after a driver update without a restart the message says what to do."""
    library.init_code = 18
    with pytest.raises(NotSupported, match="differ in version; restart"):
        nvml.cards()


def test_an_old_driver_without_a_call_is_not_supported(nvml: Nvml, library: FakeNvml) -> None:
    """POWER-47: a symbol that the library lacks is not_supported, and other calls go on working."""
    library.missing.add("nvmlDeviceGetFieldValues")
    with pytest.raises(NotSupported, match="too old"):
        instant_power_w(nvml)
    assert nvml.power_w(FIRST_UUID, ceiling_w=CEILING_W) == 300.0


def test_another_package_of_that_name_is_named(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """POWER-48: the third-party pynvml in place of nvidia-ml-py is told apart and named before it is used."""
    monkeypatch.delattr(pynvml, "_nvmlGetFunctionPointer")
    with pytest.raises(NotSupported, match="another package than nvidia-ml-py"):
        nvml.cards()


def test_inits_and_shutdowns_balance(nvml: Nvml, library: FakeNvml) -> None:
    """POWER-46: however often it is used and closed, each init has one shutdown."""
    nvml.cards()
    nvml.driver_version()
    nvml.close()
    nvml.close()
    nvml.cards()
    nvml.close()
    assert (library.num_inits, library.num_shutdowns) == (2, 2)


def test_a_forked_child_has_a_connection_of_its_own(nvml: Nvml, library: FakeNvml) -> None:
    """POWER-45: a child forked after init inits anew and reads; what it does leaves the parent's connection alone."""
    nvml.cards()
    child = os.fork()
    if child == 0:
        nvml.power_w(FIRST_UUID, ceiling_w=CEILING_W)
        os._exit(library.num_inits)
    _pid, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2
    assert library.num_inits == 1


def test_a_child_does_not_shut_down_its_parents_connection(
    nvml: Nvml, library: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """POWER-45: closing in a process that never used it makes no call."""
    nvml.cards()
    monkeypatch.setattr("os.getpid", lambda: -1)
    nvml.close()
    assert library.num_shutdowns == 0


def test_clocks_are_those_of_the_sm_and_of_the_memory(nvml: Nvml, gpu: FakeGpu) -> None:
    """The SM clock follows a lock, the memory clock does not."""
    before = nvml.sm_clock_mhz(FIRST_UUID), nvml.memory_clock_mhz(FIRST_UUID)
    gpu.locked = (210, 900)
    after = nvml.sm_clock_mhz(FIRST_UUID), nvml.memory_clock_mhz(FIRST_UUID)
    assert (before, after) == ((1980, 2619), (900, 2619))


@pytest.mark.parametrize("sentinel", [0, NOT_AVAILABLE_U32])
def test_a_clock_without_a_value_is_not_supported(nvml: Nvml, gpu: FakeGpu, sentinel: int) -> None:
    """POWER-12: 0 MHz and all ones are no clocks."""
    gpu.sm_clock_mhz = gpu.memory_clock_mhz = sentinel
    for read in (nvml.sm_clock_mhz, nvml.memory_clock_mhz):
        with pytest.raises(NotSupported, match=f"a clock reads {sentinel} MHz, which stands for no value"):
            read(FIRST_UUID)


@pytest.mark.parametrize("missing", [set(), {"nvmlDeviceGetTemperatureV"}])
def test_temperature_is_read_by_either_call(nvml: Nvml, gpu: FakeGpu, library: FakeNvml, missing: set[str]) -> None:
    """POWER-47: a driver without the newer call is asked by the older one."""
    gpu.temperature_c = 61
    library.missing |= missing
    assert nvml.temperature_c(FIRST_UUID) == 61


def test_bindings_without_the_newer_temperature_call_are_used_too(
    nvml: Nvml, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest bindings that are allowed here lack the newer call, and temperature is read all the same."""
    gpu.temperature_c = 61
    monkeypatch.delattr(pynvml, "nvmlDeviceGetTemperatureV")
    assert nvml.temperature_c(FIRST_UUID) == 61


def test_without_a_sensor_there_is_no_temperature(nvml: Nvml, gpu: FakeGpu) -> None:
    """A GPU that refuses both calls has none, and a lost one is not asked twice."""
    gpu.refusals = dict.fromkeys(("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"), NOT_SUPPORTED)
    with pytest.raises(NotSupported):
        nvml.temperature_c(FIRST_UUID)
    gpu.refusals = {"nvmlDeviceGetTemperatureV": pynvml.NVML_ERROR_GPU_IS_LOST}
    with pytest.raises(DeviceLost):
        nvml.temperature_c(FIRST_UUID)


def test_event_bits_are_passed_on(nvml: Nvml, gpu: FakeGpu) -> None:
    """All 64 bits come through; their meaning is `probes.clock_events`'s."""
    gpu.event_bits = 2**63 | 0x44
    assert nvml.event_bits(FIRST_UUID) == 2**63 | 0x44


@pytest.mark.parametrize(("code", "expected"), [(0, True), (NOT_SUPPORTED, None)])
def test_persistence_is_a_fact_or_not_known(nvml: Nvml, gpu: FakeGpu, code: int, expected: bool | None) -> None:
    """Whether the driver stays loaded is read, and None where it does not say."""
    gpu.refusals["nvmlDeviceGetPersistenceMode"] = code
    assert nvml.is_persistent(FIRST_UUID) is expected
    gpu.is_persistent = False
    assert nvml.is_persistent(FIRST_UUID) is (None if code else False)


@pytest.mark.parametrize(("mode", "expected"), [(0, False), (1, False), (2, True), (3, False)])
def test_a_guests_share_of_a_card_is_virtual(nvml: Nvml, gpu: FakeGpu, mode: int, expected: bool) -> None:
    """Only mode 2, vGPU, is a share; a whole card passed through to a guest is not, nor is a host."""
    gpu.virtualization = mode
    assert nvml.is_virtual(FIRST_UUID) is expected
    gpu.refusals["nvmlDeviceGetVirtualizationMode"] = NOT_SUPPORTED
    assert not nvml.is_virtual(FIRST_UUID)


@pytest.mark.parametrize("pids", [(), (4321,), tuple(range(100, 140))])
def test_compute_pids_are_all_of_them(nvml: Nvml, gpu: FakeGpu, pids: tuple[int, ...]) -> None:
    """None, one or forty processes: the driver is asked again with enough room."""
    gpu.compute_pids = pids
    assert nvml.compute_pids(FIRST_UUID) == frozenset(pids)


def test_one_lost_card_leaves_the_others(nvml: Nvml, library: FakeNvml, gpu: FakeGpu, clock: FakeClock) -> None:
    """POWER-18: of two GPUs one falls off the bus; the other is listed with the lost one's error beside it."""
    library.gpus.append(FakeGpu(clock=clock, uuid=SECOND_UUID, pci_id="00000000:3A:00.0"))
    gpu.lost_from_s = clock.monotonic_s() + 5.0
    assert len(nvml.cards()) == 2
    clock.advance(5.0)
    cards, failures = nvml.cards_and_failures()
    assert ([card.uuid for card in cards], [type(error) for error in failures]) == ([SECOND_UUID], [DeviceLost])
    with pytest.raises(DeviceLost, match="GPU 0"):
        nvml.cards()
    with pytest.raises(DeviceLost):
        nvml.sm_clock_mhz(FIRST_UUID)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # that hazard is what is tested
def test_a_child_forked_while_a_lock_was_held_works(nvml: Nvml) -> None:
    """POWER-45: a thread of the parent holds the lock at the fork; the child, without that thread, still reads."""
    has_begun, may_end = Event(), Event()

    def hold() -> None:
        with nvml._lock:
            has_begun.set()
            may_end.wait(2 * CHILD_TIMEOUT_S)

    nvml.cards()
    holder = Thread(target=hold)
    holder.start()
    assert has_begun.wait(CHILD_TIMEOUT_S)
    exit_code = exit_code_of(forked(lambda: len(nvml.cards())))
    may_end.set()
    holder.join()
    assert exit_code == 1


def test_a_pool_of_forked_children_works(nvml: Nvml) -> None:
    """POWER-45: several children of one parent, and a child of each, read by a connection of their own."""

    def read() -> int:
        return int(nvml.power_w(FIRST_UUID, ceiling_w=CEILING_W) / 100)

    def read_and_fork() -> int:
        own = read()
        childs = exit_code_of(forked(read))
        nvml.close()
        return 10 * own + childs

    nvml.cards()
    children = [forked(read_and_fork) for _ in range(3)]
    assert [exit_code_of(child) for child in children] == [33, 33, 33]


def test_closing_what_was_never_opened_makes_no_call(nvml: Nvml, library: FakeNvml) -> None:
    """POWER-46: closing first, or twice, neither fails nor shuts down what it did not open."""
    nvml.close()
    nvml.close()
    assert (library.num_inits, library.num_shutdowns) == (0, 0)


def forked(work: Callable[[], int]) -> int:
    """Let a forked child do the work and exit with its result; 99 when it raises. Return the child's pid."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(work())
        finally:
            os._exit(99)
    return child


def exit_code_of(child: int) -> int:
    """Wait for a child, and end it when it takes too long."""
    deadline_s = time.monotonic() + CHILD_TIMEOUT_S
    while time.monotonic() < deadline_s:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
