"""NVML through the unmodified bindings, over a fake library."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pynvml
import pytest

from probes.errors import (
    DeviceLost,
    ImplausibleReading,
    NotPermitted,
    NotSupported,
    ProbeError,
    UnknownDevice,
)
from probes.nvml import Nvml
from probes.nvml_values import (
    PowerField,
    board_ceiling_w,
    decoded,
    limit_w,
    named_error,
    normalised_pci_id,
    plausible_w,
)
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_nvml import FIRST_UUID, NOT_SUPPORTED, SECOND_UUID, FakeGpu, FakeNvml, Field, install

CEILING_W = 1050.0


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
    """When two GPUs of one model swap indexes, as after a reboot, each UUID still reads its own power."""
    library.gpus.append(FakeGpu(clock=clock, uuid=SECOND_UUID, pci_id="00000000:3A:00.0", power_mw=400_000))
    before = (nvml.cards(), [nvml.power_w(uuid, ceiling_w=CEILING_W) for uuid in (FIRST_UUID, SECOND_UUID)])
    library.gpus.reverse()
    nvml.close()
    after = (nvml.cards(), [nvml.power_w(uuid, ceiling_w=CEILING_W) for uuid in (FIRST_UUID, SECOND_UUID)])
    assert before == after
    assert before[1] == [300.0, 400.0]


def test_uuids_are_text_and_pci_ids_have_the_kernels_form(nvml: Nvml) -> None:
    """UUIDs come as str, and a domain of eight digits becomes one of four."""
    (card,) = nvml.cards()
    assert (card.uuid, card.pci_id) == (FIRST_UUID, "0000:18:00.0")


@pytest.mark.parametrize("written", ["00000000:AF:00.0", "0000:af:00.0", b"0000:AF:00.0"])
def test_pci_ids_have_one_form(written: str | bytes) -> None:
    """Domains of four and eight digits, either case, bytes and text name the same device."""
    assert normalised_pci_id(written) == "0000:af:00.0"


def test_energy_is_a_whole_number_past_32_bits(nvml: Nvml, gpu: FakeGpu) -> None:
    """The counter is an int of any size; nothing is taken modulo 2**32."""
    gpu.energy_mj = lambda _now_s: 2**32 + 12_345
    assert nvml.energy_mj(FIRST_UUID) == 2**32 + 12_345


@pytest.mark.parametrize("sentinel", [0, 2**64 - 1])
def test_a_counter_without_a_value_is_not_supported(nvml: Nvml, gpu: FakeGpu, sentinel: int) -> None:
    """Zero and all ones stand for no value."""
    gpu.energy_mj = lambda _now_s: sentinel
    with pytest.raises(NotSupported, match="stands for no value"):
        nvml.energy_mj(FIRST_UUID)


def test_a_refused_field_is_absent_though_the_call_succeeds(nvml: Nvml, gpu: FakeGpu) -> None:
    """An entry's own code decides; another field of the same GPU is still read."""
    gpu.fields[(185, 0)] = lambda _now_s: Field(value=250_000)
    with pytest.raises(NotSupported, match="field 186"):
        instant_power_w(nvml)
    assert nvml.power_field_w(FIRST_UUID, PowerField.AVERAGE, ceiling_w=CEILING_W) == 250.0


@pytest.mark.parametrize("value_type", range(7))
def test_a_field_is_decoded_by_its_type(nvml: Nvml, gpu: FakeGpu, value_type: int) -> None:
    """All seven value types give the same watts; the rest of the union is rubbish and not looked at."""
    gpu.fields[(186, 0)] = lambda _now_s: Field(value=60_000, value_type=value_type)
    assert instant_power_w(nvml) == 60.0


def test_an_unknown_type_is_an_error_not_a_guess(nvml: Nvml, gpu: FakeGpu) -> None:
    """A value type of a later driver is refused."""
    gpu.fields[(186, 0)] = lambda _now_s: Field(value=60_000, value_type=7)
    with pytest.raises(ProbeError, match="unknown value type 7"):
        instant_power_w(nvml)


@pytest.mark.parametrize(("value_type", "bits"), [(1, 32), (2, 64), (3, 64), (6, 16)])
def test_all_ones_in_a_fields_own_width_is_no_value(value_type: int, bits: int) -> None:
    """0xFFFF, 0xFFFFFFFF and the 64-bit sentinel are None's stand-ins in their own type."""
    members = dict.fromkeys(("uiVal", "ulVal", "ullVal", "usVal"), 2**bits - 1)
    with pytest.raises(NotSupported, match="stands for no value"):
        decoded(value_type, SimpleNamespace(**members))


def test_65535_mw_is_real_power_in_a_wider_type(nvml: Nvml, gpu: FakeGpu) -> None:
    """A GPU idling at 65.535 W is not taken for a 16-bit sentinel."""
    gpu.fields[(186, 0)] = lambda _now_s: Field(value=65_535)
    assert instant_power_w(nvml) == 65.535


@pytest.mark.parametrize("text", ["N/A", "[Not Supported]", None, True])
def test_what_is_no_number_is_not_supported(text: object) -> None:
    """Words in place of a number are never turned into one."""
    with pytest.raises(NotSupported):
        plausible_w(text, "GPU-1", CEILING_W)


@pytest.mark.parametrize("milliwatts", [0, 2**32 - 1])
def test_zero_and_the_sentinel_are_not_supported(milliwatts: int) -> None:
    """0 mW from a GPU that answers is a missing sensor, not data."""
    with pytest.raises(NotSupported):
        plausible_w(milliwatts, "GPU-1", CEILING_W)


@pytest.mark.parametrize("milliwatts", [3_690_000_000_000_000, 3_700_000, -5, float("nan"), float("inf")])
def test_absurd_power_is_rejected(milliwatts: float) -> None:
    """3.69e12 W, 3.7 kW, negative power and not-a-number are implausible."""
    with pytest.raises(ImplausibleReading):
        plausible_w(milliwatts, "GPU-1", CEILING_W)


def test_the_ceiling_is_one_and_a_half_limits_or_two_kilowatts() -> None:
    """A 700 W board may read 1050 W; one without a limit 2000 W."""
    assert [board_ceiling_w(700.0), board_ceiling_w(None)] == [1050.0, 2000.0]


@pytest.mark.parametrize(("raw", "expected"), [(700_000, 700.0), (0, None), (2**32 - 1, None), ("N/A", None)])
def test_a_limit_that_is_no_limit_is_none(raw: object, expected: float | None) -> None:
    """Sentinels in place of a limit do not become a limit."""
    assert expected == limit_w(raw)


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
    """Without a driver the message says that the library was not found."""
    install(monkeypatch, None)
    with pytest.raises(NotSupported, match=r"library libnvidia-ml\.so\.1 not found"):
        Nvml().cards()


def test_a_driver_mismatch_is_named(nvml: Nvml, library: FakeNvml) -> None:
    """After a driver update without a restart the message says what to do."""
    library.init_code = 18
    with pytest.raises(NotSupported, match="differ in version; restart"):
        nvml.cards()


def test_an_old_driver_without_a_call_is_not_supported(nvml: Nvml, library: FakeNvml) -> None:
    """A symbol that the library lacks is not_supported, and other calls go on working."""
    library.missing.add("nvmlDeviceGetFieldValues")
    with pytest.raises(NotSupported, match="too old"):
        instant_power_w(nvml)
    assert nvml.power_w(FIRST_UUID, ceiling_w=CEILING_W) == 300.0


def test_another_package_of_that_name_is_named(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third-party pynvml in place of nvidia-ml-py is told apart and named before it is used."""
    monkeypatch.delattr(pynvml, "_nvmlGetFunctionPointer")
    with pytest.raises(NotSupported, match="another package than nvidia-ml-py"):
        nvml.cards()


def test_inits_and_shutdowns_balance(nvml: Nvml, library: FakeNvml) -> None:
    """However often it is used and closed, each init has one shutdown."""
    nvml.cards()
    nvml.driver_version()
    nvml.close()
    nvml.close()
    nvml.cards()
    nvml.close()
    assert (library.num_inits, library.num_shutdowns) == (2, 2)


def test_a_forked_child_has_a_connection_of_its_own(nvml: Nvml, library: FakeNvml) -> None:
    """A child forked after init inits anew and reads; what it does leaves the parent's connection alone."""
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
    """Closing in a process that never used it makes no call."""
    nvml.cards()
    monkeypatch.setattr("os.getpid", lambda: -1)
    nvml.close()
    assert library.num_shutdowns == 0


def test_a_code_without_a_name_has_its_number() -> None:
    """A code of a later driver is still reported."""
    assert "code 77" in str(named_error(77, "GPU-1"))
