"""What NVML's numbers mean, and what cannot be true."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from probes.errors import (
    ImplausibleReading,
    NotSupported,
)
from probes.nvidia.nvml import Nvml
from probes.nvidia.nvml_values import (
    board_ceiling_w,
    decoded,
    limit_w,
    named_error,
    normalised_pci_id,
    plausible_w,
)
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_nvml import FakeGpu, FakeNvml, install

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


@pytest.mark.parametrize("written", ["00000000:AF:00.0", "0000:af:00.0", b"0000:AF:00.0"])
def test_pci_ids_have_one_form(written: str | bytes) -> None:
    """POWER-43: domains of four and eight digits, either case, bytes and text name the same device."""
    assert normalised_pci_id(written) == "0000:af:00.0"


@pytest.mark.parametrize(("value_type", "bits"), [(1, 32), (2, 64), (3, 64), (6, 16)])
def test_all_ones_in_a_fields_own_width_is_no_value(value_type: int, bits: int) -> None:
    """POWER-12: 0xFFFF, 0xFFFFFFFF and the 64-bit sentinel are None's stand-ins in their own type."""
    members = dict.fromkeys(("uiVal", "ulVal", "ullVal", "usVal"), 2**bits - 1)
    with pytest.raises(NotSupported, match="stands for no value"):
        decoded(value_type, SimpleNamespace(**members))


@pytest.mark.parametrize("text", ["N/A", "[Not Supported]", None, True])
def test_what_is_no_number_is_not_supported(text: object) -> None:
    """POWER-12: words in place of a number are never turned into one."""
    with pytest.raises(NotSupported):
        plausible_w(text, "GPU-1", CEILING_W)


@pytest.mark.parametrize("milliwatts", [0, 2**32 - 1])
def test_zero_and_the_sentinel_are_not_supported(milliwatts: int) -> None:
    """POWER-11: 0 mW from a GPU that answers is a missing sensor, not data."""
    with pytest.raises(NotSupported):
        plausible_w(milliwatts, "GPU-1", CEILING_W)


@pytest.mark.parametrize("milliwatts", [3_690_000_000_000_000, 3_700_000, -5, float("nan"), float("inf")])
def test_absurd_power_is_rejected(milliwatts: float) -> None:
    """POWER-10: 3.69e12 W, 3.7 kW, negative power and not-a-number are implausible."""
    with pytest.raises(ImplausibleReading):
        plausible_w(milliwatts, "GPU-1", CEILING_W)


def test_the_ceiling_is_one_and_a_half_limits_or_two_kilowatts() -> None:
    """POWER-10: a 700 W board may read 1050 W; one without a limit 2000 W."""
    assert [board_ceiling_w(700.0), board_ceiling_w(None)] == [1050.0, 2000.0]


@pytest.mark.parametrize(("raw", "expected"), [(700_000, 700.0), (0, None), (2**32 - 1, None), ("N/A", None)])
def test_a_limit_that_is_no_limit_is_none(raw: object, expected: float | None) -> None:
    """POWER-12: sentinels in place of a limit do not become a limit."""
    assert expected == limit_w(raw)


def test_a_code_without_a_name_has_its_number() -> None:
    """A code of a later driver is still reported."""
    assert "code 77" in str(named_error(77, "GPU-1"))
