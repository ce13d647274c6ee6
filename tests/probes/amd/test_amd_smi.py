"""What AMD SMI answers, through a fake of its bindings."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable
from typing import Any

import pytest

from probes.amd.amd_smi import AmdPower, AmdSmi, named_error, number_in
from probes.errors import DeviceLost, ImplausibleReading, NotPermitted, NotSupported, ProbeError
from tests.probes.fake_amdsmi import (
    DRIVER_NOT_LOADED,
    FIRST_UUID,
    NO_PERMISSION,
    NOT_AVAILABLE,
    NOT_FOUND,
    NOT_SUPPORTED,
    SECOND_UUID,
    UNIT_UJ,
    AmdSmiException,
    FakeAmdSmi,
    FakeCard,
    install,
    process,
)
from tests.probes.fake_clock import FakeClock

UUID = f"AMD-{FIRST_UUID}"


@pytest.fixture
def card(clock: FakeClock) -> FakeCard:
    return FakeCard(clock=clock)


@pytest.fixture
def library(card: FakeCard, monkeypatch: pytest.MonkeyPatch) -> FakeAmdSmi:
    library = FakeAmdSmi(card)
    install(monkeypatch, library)
    return library


@pytest.fixture
def smi(library: FakeAmdSmi) -> AmdSmi:
    return AmdSmi()


class TestCards:
    """Which GPUs there are."""

    def test_they_are_known_by_uuid_and_come_by_pci_id(
        self, smi: AmdSmi, library: FakeAmdSmi, clock: FakeClock
    ) -> None:
        """amd-smi's own order is not kept: cards are sorted by PCI id, and the UUID has our prefix and no capitals."""
        library.cards.append(FakeCard(clock=clock, uuid=SECOND_UUID.upper(), bdf="0000:03:00.0"))
        cards, left_out = smi.cards()
        assert [card.uuid for card in cards] == [f"AMD-{SECOND_UUID}", UUID]
        assert [card.pci_id for card in cards] == ["0000:03:00.0", "0000:0c:00.0"]
        assert (cards[1].name, cards[1].driver, left_out) == ("AMD Instinct MI300X", "6.12.12", ())

    def test_a_swapped_order_changes_nothing(self, smi: AmdSmi, library: FakeAmdSmi, clock: FakeClock) -> None:
        """POWER-44: when the library lists its cards in another order, each UUID still means the same card."""
        second = FakeCard(clock=clock, uuid=SECOND_UUID, bdf="0000:03:00.0", gfx_mhz=900)
        library.cards.append(second)
        before = smi.clock_mhz(UUID), smi.clock_mhz(f"AMD-{SECOND_UUID}")
        library.cards.reverse()
        assert before == (AmdSmi().clock_mhz(UUID), AmdSmi().clock_mhz(f"AMD-{SECOND_UUID}")) == (2100, 900)

    def test_cards_that_share_a_uuid_are_left_out(self, smi: AmdSmi, library: FakeAmdSmi, clock: FakeClock) -> None:
        """Partitions that cannot be told apart are nobody's device, and the reason says so."""
        library.cards.append(FakeCard(clock=clock, bdf="0000:0c:00.1"))
        assert smi.cards() == ((), (f"2 GPUs share the UUID {UUID}",))

    def test_a_card_that_does_not_answer_hides_no_other(
        self, smi: AmdSmi, library: FakeAmdSmi, clock: FakeClock
    ) -> None:
        """The card that fails is told with its error, and the others are there."""
        library.cards.append(FakeCard(clock=clock, uuid=SECOND_UUID, refusals={"asic_info": NO_PERMISSION}))
        cards, left_out = smi.cards()
        assert [card.uuid for card in cards] == [UUID]
        assert left_out == (
            "AMD SMI: GPU 1 of amd-smi: not permitted; join the groups render and video, or run as root",
        )

    def test_an_unknown_uuid_is_lost(self, smi: AmdSmi) -> None:
        """A UUID that the library no longer lists is an error by name."""
        with pytest.raises(DeviceLost, match="AMD-other is no longer there"):
            smi.clock_mhz("AMD-other")


class TestEnergy:
    """The energy counter."""

    def test_counts_become_microjoules(self, smi: AmdSmi, card: FakeCard, clock: FakeClock) -> None:
        """Counts of 15.3 uJ are whole microjoules; 400 W for 10 s are 4 kJ, but for the unit's rounding."""
        before_uj = smi.energy_uj(UUID)
        clock.advance(10.0)
        assert pytest.approx(4_000_000_000, abs=100) == smi.energy_uj(UUID) - before_uj

    def test_no_microjoule_is_lost_after_years(self, smi: AmdSmi, monkeypatch: pytest.MonkeyPatch) -> None:
        """POWER-7: beyond what a double counts exactly, one count more is still 15 or 16 microjoules."""
        counts = 2**60
        monkeypatch.setattr(FakeCard, "counts", lambda _card: counts)
        before_uj = smi.energy_uj(UUID)
        counts += 1
        assert smi.energy_uj(UUID) - before_uj in (15, 16)
        assert float(before_uj + 15) == float(before_uj)

    def test_the_older_name_of_the_counter_is_known(
        self, smi: AmdSmi, library: FakeAmdSmi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Until ROCm 6.2 the accumulator was called power."""
        answer = {"power": 1000, "counter_resolution": UNIT_UJ}
        monkeypatch.setattr(library, "amdsmi_get_energy_count", lambda _handle: answer)
        assert smi.energy_uj(UUID) == 15_300

    @pytest.mark.parametrize("answer", [{"energy_accumulator": 0}, {"energy_accumulator": NOT_AVAILABLE}, {}])
    def test_no_count_is_not_supported(
        self, smi: AmdSmi, library: FakeAmdSmi, monkeypatch: pytest.MonkeyPatch, answer: dict[str, object]
    ) -> None:
        """POWER-1, POWER-12: zero, N/A and nothing at all are no energy."""
        answer = {"counter_resolution": UNIT_UJ, **answer}
        monkeypatch.setattr(library, "amdsmi_get_energy_count", lambda _handle: answer)
        with pytest.raises(NotSupported, match="stands for no value"):
            smi.energy_uj(UUID)


class TestPower:
    """Power and its limit."""

    def test_a_card_with_the_present_power(self, smi: AmdSmi) -> None:
        """MI300 tells the present power and no average: N/A is None."""
        expected = AmdPower(current_w=400, average_w=None, either_w=400, limit_w=750)
        assert expected == smi.power(UUID)

    @pytest.mark.parametrize("nothing", [NOT_AVAILABLE, 0, 2**16 - 1, 2**32 - 1, None, True])
    def test_what_stands_for_no_value_is_none(self, smi: AmdSmi, card: FakeCard, nothing: object) -> None:
        """POWER-11, POWER-12: N/A, zero, all bits set and no number at all are None."""
        card.power = {"current_socket_power": nothing, "average_socket_power": 300, "socket_power": nothing}
        expected = AmdPower(current_w=None, average_w=300, either_w=None, limit_w=750)
        assert expected == smi.power(UUID)

    @pytest.mark.parametrize("absurd", [-5, 4_991_201])
    def test_absurd_power_is_implausible(self, smi: AmdSmi, card: FakeCard, absurd: int) -> None:
        """POWER-10: what no board draws is an error, not a figure."""
        card.power = {"current_socket_power": absurd}
        with pytest.raises(ImplausibleReading, match=f"current_socket_power reads {absurd} W"):
            smi.power(UUID)

    @pytest.mark.parametrize(("limit", "expected"), [(750, 750), (750_000_000, 750), (NOT_AVAILABLE, None), (0, None)])
    def test_limits_come_in_watts_or_microwatts(
        self, smi: AmdSmi, card: FakeCard, limit: float | str, expected: float | None
    ) -> None:
        """Versions differ in the unit of the limit, by a factor that leaves no doubt."""
        card.power_limit = limit
        assert expected == smi.power(UUID).limit_w


class TestTheRest:
    """Clocks, temperature, processes."""

    def test_clocks_by_either_name(self, smi: AmdSmi, library: FakeAmdSmi, monkeypatch: pytest.MonkeyPatch) -> None:
        """Both clocks are told; until ROCm 6.1 the field had another name."""
        assert (smi.clock_mhz(UUID), smi.memory_clock_mhz(UUID)) == (2100, 1300)
        monkeypatch.setattr(library, "amdsmi_get_clock_info", lambda _handle, _kind: {"cur_clk": 1700})
        assert smi.clock_mhz(UUID) == 1700

    def test_no_clock_is_not_supported(self, smi: AmdSmi, card: FakeCard) -> None:
        """N/A is no clock of 0 MHz."""
        card.gfx_mhz = NOT_AVAILABLE
        with pytest.raises(NotSupported, match="GFX clock"):
            smi.clock_mhz(UUID)

    def test_the_hottest_spot_else_the_edge(self, smi: AmdSmi, card: FakeCard) -> None:
        """Cards without a hotspot sensor are read at the edge; with neither there is no temperature."""
        assert smi.temperature_c(UUID) == 62
        card.temperatures_c = {"EDGE": 48}
        assert smi.temperature_c(UUID) == 48
        card.temperatures_c = {"HOTSPOT": NOT_AVAILABLE}
        with pytest.raises(NotSupported):
            smi.temperature_c(UUID)

    def test_processes_without_memory_do_not_compute(self, smi: AmdSmi, card: FakeCard) -> None:
        """Of the processes listed only those with memory on the card count."""
        card.processes = [process(100), process(200, vram_bytes=0)]
        assert smi.compute_pids(UUID) == (100,)


class TestErrors:
    """What can go wrong has names."""

    def test_a_missing_library_says_where_it_comes_from(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """POWER-47: without the package it is not_supported, with the place where ROCm has it."""
        install(monkeypatch, None)
        with pytest.raises(NotSupported, match=r"not installed.*/opt/rocm/share/amd_smi"):
            AmdSmi().cards()

    @pytest.mark.parametrize("error", [OSError("libamd_smi.so"), AttributeError("symbol"), KeyError("ROCM_HOME")])
    def test_a_library_that_does_not_fit_is_not_supported(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
    ) -> None:
        """POWER-47: bindings that fail to load are named with their error, and what they print is not passed on."""
        real_import = builtins.__import__

        def failing(name: str, *arguments: Any, **keywords: Any) -> Any:
            if name == "amdsmi":
                print("Unable to find libamd_smi.so")  # noqa: T201 - as the bindings do
                raise error
            return real_import(name, *arguments, **keywords)

        monkeypatch.setattr(builtins, "__import__", failing)
        with pytest.raises(NotSupported, match="cannot be loaded"):
            AmdSmi().cards()
        assert capsys.readouterr().out == ""

    def test_a_missing_driver_is_not_supported(self, smi: AmdSmi, library: FakeAmdSmi) -> None:
        """POWER-47: bindings without the kernel driver say which driver, and work once it is there."""
        library.init_code = DRIVER_NOT_LOADED
        with pytest.raises(NotSupported, match="amdgpu is not loaded"):
            smi.cards()
        library.init_code = 0
        assert len(smi.cards()[0]) == 1

    @pytest.mark.parametrize(
        ("code", "kind"),
        [(NOT_SUPPORTED, NotSupported), (NO_PERMISSION, NotPermitted), (NOT_FOUND, DeviceLost), (7, ProbeError)],
    )
    def test_statuses_have_names(self, smi: AmdSmi, card: FakeCard, code: int, kind: type[ProbeError]) -> None:
        """A status of the library is the error it means, with the card's UUID; an unknown one keeps its number."""
        card.refusals = {"power_info": code}
        with pytest.raises(ProbeError, match=UUID) as caught:
            smi.power(UUID)
        assert kind is type(caught.value)
        assert type(named_error(code, "")) is kind

    def test_other_exceptions_of_the_bindings_are_ours(
        self, smi: AmdSmi, library: FakeAmdSmi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The bindings' own root exception, which has no status, is a probe_error."""

        def refuse(_handle: FakeCard) -> None:
            raise AmdSmiException("wrong parameter")

        monkeypatch.setattr(library, "amdsmi_get_power_info", refuse)
        with pytest.raises(ProbeError, match="wrong parameter"):
            smi.power(UUID)

    @pytest.mark.parametrize("ask", [AmdSmi.clock_mhz, AmdSmi.compute_pids])
    def test_another_version_of_the_bindings_is_told(
        self, smi: AmdSmi, library: FakeAmdSmi, monkeypatch: pytest.MonkeyPatch, ask: Callable[[AmdSmi, str], object]
    ) -> None:
        """A call that is not there, or answers with other rows, is not_supported instead of a crash."""
        monkeypatch.setattr(library, "AmdSmiClkType", object())
        monkeypatch.setattr(library, "amdsmi_get_gpu_process_list", lambda _handle: [123])
        with pytest.raises(NotSupported, match="answers otherwise"):
            ask(smi, UUID)


class TestLifetime:
    """Opening and closing."""

    def test_it_is_opened_once_and_closed_once(self, smi: AmdSmi, library: FakeAmdSmi) -> None:
        """POWER-46: many calls open the library once, and closing twice closes it once."""
        smi.cards()
        smi.power(UUID)
        assert library.num_open == 1
        smi.close()
        smi.close()
        assert library.num_open == 0

    def test_a_forked_child_opens_it_anew(
        self, smi: AmdSmi, library: FakeAmdSmi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """POWER-45: in another process the library is opened again, and not shut down for the parent."""
        smi.cards()
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert smi.power(UUID).current_w == 400
        assert library.num_open == 2


@pytest.mark.parametrize(("value", "expected"), [(5, 5), (2.5, 2.5), ("5", None), (True, None), (2**64 - 1, None)])
def test_only_numbers_are_numbers(value: object, expected: float | None) -> None:
    """Text, truth values and all bits set are no figures."""
    assert expected == number_in({"field": value}, "absent", "field")
