"""AMD GPUs as devices, over a fake of AMD SMI."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from probes.amd.amd_gpu import AMD_SMI_NAME, AmdDevice, list_amd_gpus
from probes.device import Device, DeviceKind, Method, Reading, Scope
from probes.errors import DeviceLost, NotSupported
from probes.settings import POWER_CAP, SM_CLOCK_CAP
from probes.validity import Note, Reason
from tests.probes.fake_amdsmi import (
    DRIVER_NOT_LOADED,
    FIRST_UUID,
    NOT_AVAILABLE,
    NOT_FOUND,
    NOT_SUPPORTED,
    FakeAmdSmi,
    FakeCard,
    install,
    process,
)
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_host import FakeProc

ENGINE = 100


@pytest.fixture
def card(clock: FakeClock) -> FakeCard:
    """An MI300X that draws 400 W."""
    return FakeCard(clock=clock)


@pytest.fixture
def library(card: FakeCard, monkeypatch: pytest.MonkeyPatch) -> FakeAmdSmi:
    library = FakeAmdSmi(card)
    install(monkeypatch, library)
    return library


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    proc = FakeProc(tmp_path / "proc")
    proc.write_process(os.getpid())
    proc.write_process(ENGINE)
    return proc


@pytest.fixture
def device(library: FakeAmdSmi, clock: FakeClock, proc: FakeProc) -> AmdDevice:
    (device,), _found = list_amd_gpus(clock, proc=proc.root)
    return device


def measure(device: Device, clock: FakeClock, *pids: int) -> Reading:
    meter = device.meter(pids)
    meter.start()
    clock.advance(10.0)
    return meter.stop()


def reasons_of(device: Device) -> dict[str, tuple[bool, str]]:
    return {found.name: (found.is_available, found.reason) for found in device.capabilities()}


def test_a_card_is_a_gpu_by_uuid_and_nobodys_ordinal(device: AmdDevice) -> None:
    """It is known by UUID with its PCI id; amd-smi's order is not HIP's, so it has no CUDA ordinal."""
    info = device.info
    assert (info.uuid, info.kind, info.name) == (f"AMD-{FIRST_UUID}", DeviceKind.GPU, "AMD Instinct MI300X")
    assert info.details == (("pci_id", "0000:0c:00.0"), ("vendor", "amd"))


def test_nothing_can_be_set(device: AmdDevice) -> None:
    """There are no knobs, and the capabilities say why for each."""
    assert device.settables() == ()
    for knob in (SM_CLOCK_CAP, POWER_CAP):
        is_available, reason = reasons_of(device)[knob]
        assert not is_available
        assert "observes AMD GPUs and sets nothing" in reason


class TestCounter:
    """Whether the energy counter is believed."""

    def test_one_that_agrees_with_power_is_used(self, device: AmdDevice, clock: FakeClock) -> None:
        """400 W for 10 s are 4 kJ, counted, with power as a check beside it."""
        reading = measure(device, clock)
        assert pytest.approx(4000.0, rel=1e-3) == reading.energy_j
        assert (reading.method, reading.scope, reading.reasons, reading.notes) == (Method.COUNTER, Scope.GPU, (), ())
        assert reasons_of(device)["AMD SMI energy counter"] == (True, "counts 400.0 W where power reads 400.0 W")

    @pytest.mark.parametrize("stated_unit_uj", [1.0, 15.3 * 1.3, 15.3 * 0.7])
    def test_one_with_a_wrong_unit_is_not(
        self, device: AmdDevice, card: FakeCard, clock: FakeClock, stated_unit_uj: float
    ) -> None:
        """A counter that is off by more than a fifth is told, and power is integrated to the true 4 kJ."""
        card.stated_unit_uj = stated_unit_uj
        reading = measure(device, clock)
        assert pytest.approx(4000.0, rel=0.02) == reading.energy_j
        assert (reading.method, reading.reasons) == (Method.INTEGRATED, ())
        is_available, reason = reasons_of(device)["AMD SMI energy counter"]
        assert not is_available
        assert "where power reads 400.0 W" in reason

    def test_one_that_stands_still_is_not(
        self, device: AmdDevice, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """POWER-4: a counter that the library caches for ever counts 0 W and is not used."""
        monkeypatch.setattr(FakeCard, "counts", lambda _card: 8_152_136)
        assert Method.INTEGRATED is measure(device, clock).method
        assert "counts 0.0 W" in reasons_of(device)["AMD SMI energy counter"][1]

    def test_one_that_is_not_there_is_told(self, device: AmdDevice, card: FakeCard, clock: FakeClock) -> None:
        """POWER-1: without a counter power is integrated, and the reason is the library's."""
        card.refusals = {"energy_count": NOT_SUPPORTED}
        assert Method.INTEGRATED is measure(device, clock).method
        assert "not supported by this GPU" in reasons_of(device)["AMD SMI energy counter"][1]


class TestPower:
    """Which power is taken."""

    def test_averages_are_labelled(self, device: AmdDevice, card: FakeCard, clock: FakeClock) -> None:
        """POWER-13: a Radeon that tells an average alone is integrated from averages, and noted as such."""
        card.power = {"current_socket_power": NOT_AVAILABLE, "average_socket_power": 400, "socket_power": 400}
        card.stated_unit_uj = 1.0
        reading = measure(device, clock)
        assert (reading.method, reading.detail) == (Method.INTEGRATED_AVERAGE, "AMD SMI average socket power")
        assert Note.AVERAGED_POWER in reading.notes

    def test_power_of_unknown_kind_is_taken_for_an_average(self, device: AmdDevice, card: FakeCard) -> None:
        """Where only the unified field answers, the worse of its two meanings is assumed."""
        card.power = {"current_socket_power": NOT_AVAILABLE, "socket_power": 400}
        card.stated_unit_uj = 1.0
        source = device.power_source
        assert source is not None
        assert Method.INTEGRATED_AVERAGE is source.method

    def test_without_power_there_is_no_source(self, device: AmdDevice, card: FakeCard) -> None:
        """POWER-2, POWER-12: N/A everywhere leaves nothing to check the counter with, so nothing is measured."""
        card.power = dict.fromkeys(("current_socket_power", "socket_power"), NOT_AVAILABLE)
        assert device.power_source is None
        assert "no power to hold it against" in reasons_of(device)["AMD SMI energy counter"][1]
        with pytest.raises(NotSupported, match="offers no power"):
            device.meter([ENGINE])

    def test_the_second_die_of_a_card_has_none(self, device: AmdDevice, card: FakeCard) -> None:
        """POWER-11: an MI250's second die reads 0 W, which is no power."""
        card.power = dict.fromkeys(("current_socket_power", "socket_power", "average_socket_power"), 0)
        assert device.power_source is None


class TestStatus:
    """One look at the card."""

    def test_all_figures(self, device: AmdDevice, clock: FakeClock) -> None:
        """Power, clocks, temperature and limit are those of the card."""
        status = device.status()
        assert (status.time_s, status.power_w, status.power_limit_w) == (clock.monotonic_s(), 400, 750)
        assert (status.clock_mhz, status.memory_clock_mhz, status.temperature_c) == (2100, 1300, 62)

    def test_what_is_not_offered_is_none(self, device: AmdDevice, card: FakeCard) -> None:
        """POWER-12: N/A for every figure is None for every figure, and no error."""
        card.power = dict.fromkeys(("current_socket_power", "socket_power"), NOT_AVAILABLE)
        card.power_limit = NOT_AVAILABLE
        card.gfx_mhz = card.memory_mhz = NOT_AVAILABLE
        card.temperatures_c = {}
        status = device.status()
        assert (status.power_w, status.power_limit_w, status.temperature_c) == (None, None, None)
        assert (status.clock_mhz, status.memory_clock_mhz) == (None, None)

    def test_a_card_that_is_gone_is_lost(self, device: AmdDevice, card: FakeCard) -> None:
        """POWER-18: when the card no longer answers the look says so."""
        device.status()
        card.refusals = {"power_info": NOT_FOUND}
        with pytest.raises(DeviceLost, match="no longer there"):
            device.status()


class TestReadings:
    """What stands beside an energy."""

    def test_conditions_are_those_of_the_window(self, device: AmdDevice, clock: FakeClock) -> None:
        """Clock, temperature and limit over the window are in the reading."""
        (conditions,) = measure(device, clock).conditions
        assert (conditions.mean_clock_mhz, conditions.end_temperature_c, conditions.power_limit_w) == (2100, 62, 750)
        assert conditions.num_samples > 50

    def test_a_stranger_on_the_card_invalidates_it(
        self, device: AmdDevice, card: FakeCard, clock: FakeClock, proc: FakeProc
    ) -> None:
        """Another process with memory on the card is foreign_gpu_process; one without memory is nothing."""
        card.processes = [process(ENGINE), process(300, vram_bytes=0)]
        assert measure(device, clock, ENGINE).reasons == ()
        proc.write_process(400)
        card.processes.append(process(400))
        assert measure(device, clock, ENGINE).reasons == (Reason.FOREIGN_GPU_PROCESS,)

    def test_a_card_lost_in_the_window_has_no_energy(self, device: AmdDevice, card: FakeCard, clock: FakeClock) -> None:
        """POWER-18: a card that falls out before the end gives None and device_lost."""
        meter = device.meter([])
        meter.start()
        clock.advance(5.0)
        card.refusals = dict.fromkeys(("power_info", "energy_count", "clock_info"), NOT_FOUND)
        clock.advance(5.0)
        reading = meter.stop()
        assert reading.energy_j is None
        assert DeviceLost.kind in reading.reasons

    def test_a_counter_that_goes_back_is_a_reset(
        self, device: AmdDevice, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """POWER-3: a counter that begins anew in the window gives None, not a negative or partial sum."""
        meter = device.meter([])
        meter.start()
        clock.advance(5.0)
        monkeypatch.setattr(FakeCard, "counts", lambda _card: 1)
        clock.advance(5.0)
        reading = meter.stop()
        assert (reading.energy_j, reading.reasons) == (None, (Reason.COUNTER_RESET,))


class TestListing:
    """Which GPUs there are."""

    def test_how_many_is_told(self, library: FakeAmdSmi, clock: FakeClock) -> None:
        """The capability counts the GPUs, and says which were left out."""
        library.cards.append(FakeCard(clock=clock, uuid="other", refusals={"uuid": NOT_SUPPORTED}))
        devices, found = list_amd_gpus(clock)
        assert (len(devices), found.name, found.is_available) == (1, AMD_SMI_NAME, True)
        assert found.reason == "1 GPUs; AMD SMI: GPU 1 of amd-smi: not supported by this GPU"

    def test_without_the_library_there_are_none(self, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
        """POWER-47: a machine without ROCm has no AMD GPUs, with the reason and without an error."""
        install(monkeypatch, None)
        devices, found = list_amd_gpus(clock)
        assert (devices, found.is_available) == ((), False)
        assert "not installed" in found.reason

    @pytest.mark.parametrize(("code", "words"), [(DRIVER_NOT_LOADED, "amdgpu is not loaded"), (0, "0 GPUs")])
    def test_without_a_driver_or_a_card_there_are_none(
        self, library: FakeAmdSmi, clock: FakeClock, code: int, words: str
    ) -> None:
        """POWER-47: bindings without a driver, or a driver without a card, are told apart."""
        library.cards.clear()
        library.init_code = code
        devices, found = list_amd_gpus(clock)
        assert (devices, found.is_available) == ((), False)
        assert words in found.reason
