"""Looks at a card, and at who computes on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from probes.device import UNSET
from probes.errors import DeviceLost, ImplausibleReading, NotSupported, ProbeError
from probes.metering.gpu_watch import CardReads, GpuEye, ProcessWatch
from probes.settings import DeviceSettings
from probes.validity import Note, Reason
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_host import FakeProc
from tests.probes.scripted_card import UUID, make_reads, make_watch

ENGINE, CHILD, GRANDCHILD, STRANGER = 100, 101, 102, 200


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """An engine with a child and its child, this process, and a stranger."""
    proc = FakeProc(tmp_path / "proc")
    proc.write_process(os.getpid())
    proc.write_process(ENGINE)
    proc.write_process(CHILD, ppid=ENGINE)
    proc.write_process(GRANDCHILD, ppid=CHILD)
    proc.write_process(STRANGER)
    return proc


def make_processes(
    proc: FakeProc, here: Iterable[int] | Callable[[], Iterable[int]], elsewhere: Iterable[int] = ()
) -> ProcessWatch:
    ask = here if callable(here) else lambda: here
    return ProcessWatch([ENGINE], here=ask, elsewhere=lambda: elsewhere, proc=proc.root)


def refusing(error: Exception) -> Callable[..., float]:
    def read(*_asked: object) -> float:
        raise error

    return read


def test_a_look_holds_everything(clock: FakeClock) -> None:
    """Power, clocks, temperature, limit in force and clock events by name."""
    status = GpuEye(make_reads(clock, event_bits=lambda: 0x44), clock=clock).look().status
    assert (status.time_s, status.power_w, status.clock_mhz, status.memory_clock_mhz) == (1000.0, 300.0, 1980, 2619)
    assert (status.temperature_c, status.power_limit_w, status.events) == (45, 700.0, ("sw_power_cap", "hw_thermal"))


def test_bad_power_does_not_lose_the_clocks(clock: FakeClock) -> None:
    """A reading that cannot be true is a failure of the power alone."""
    look = GpuEye(make_reads(clock, power_w=refusing(ImplausibleReading("3.69e12 W"))), clock=clock).look()
    assert look.power_failure is not None
    assert look.power_failure.kind == "implausible_reading"
    assert (look.status.power_w, look.status.clock_mhz) == (None, 1980)


@pytest.mark.parametrize("name", ["clock_mhz", "memory_clock_mhz", "temperature_c", "event_bits", "enforced_limit_w"])
@pytest.mark.parametrize("is_offered", [True, False])
def test_anything_missing_loses_nothing_else(clock: FakeClock, name: str, is_offered: bool) -> None:
    """A figure that fails, or that the card does not offer, is None beside a good power."""
    read = refusing(NotSupported("not now")) if is_offered else None
    look = GpuEye(make_reads(clock, **{name: read}), clock=clock).look()
    assert (look.status.power_w, look.power_failure) == (300.0, None)
    missing = {"event_bits": "events", "enforced_limit_w": "power_limit_w"}.get(name, name)
    assert getattr(look.status, missing) in (None, ())


def test_the_limit_is_asked_once_a_second(clock: FakeClock) -> None:
    """Ten looks a second cost one look at the limit, which is carried on in between."""
    asked: list[float] = []

    def enforced_w() -> float:
        asked.append(clock.monotonic_s())
        return 700.0

    eye = GpuEye(make_reads(clock, enforced_limit_w=enforced_w), clock=clock)
    limits = []
    for _ in range(31):
        limits.append(eye.look().status.power_limit_w)
        clock.advance(0.1)
    assert pytest.approx(asked, abs=0.11) == [1000.0, 1001.0, 1002.0, 1003.0]
    assert limits == [700.0] * 31


def test_a_status_of_a_lost_card_is_an_error(clock: FakeClock) -> None:
    """One look at a card that fell off the bus raises DeviceLost."""
    reads = make_reads(clock, temperature_c=refusing(DeviceLost("off the bus")))
    with pytest.raises(DeviceLost, match="off the bus"):
        GpuEye(reads, clock=clock).status()


def test_a_status_of_a_card_that_says_nothing_is_empty(clock: FakeClock) -> None:
    """What is not offered is None, and that is no error."""
    status = GpuEye(CardReads(), clock=clock).status()
    assert (status.power_w, status.clock_mhz, status.power_limit_w, status.events) == (None, None, None, ())


def test_the_engine_and_ourselves_may_compute(proc: FakeProc) -> None:
    """The engine's descendants and our own process are not foreign."""
    watch = make_processes(proc, [ENGINE, CHILD, GRANDCHILD, os.getpid()])
    watch.look()
    assert watch.judged() == ((), ())


def test_a_stranger_is_foreign_although_it_left_again(proc: FakeProc) -> None:
    """Whoever was seen once during the window counts."""
    seen = [[CHILD], [CHILD, STRANGER], [CHILD]]
    watch = make_processes(proc, lambda: seen.pop(0))
    for _ in range(3):
        watch.look()
    assert watch.judged() == ((Reason.FOREIGN_GPU_PROCESS,), ())


def test_numbers_of_another_namespace_are_not_judged(proc: FakeProc) -> None:
    """In a container the driver may tell the host's numbers: nobody there is the engine, and nobody is accused."""
    watch = make_processes(proc, [70_001, 70_002])
    watch.look()
    assert watch.judged() == ((), (Note.GPU_PROCESSES_UNKNOWN,))


def test_a_worker_that_starts_later_is_the_engines(proc: FakeProc) -> None:
    """A child that the engine starts in mid-window is looked up when it appears."""
    seen = [[ENGINE], [ENGINE, 103]]
    watch = make_processes(proc, lambda: seen.pop(0))
    watch.look()
    proc.write_process(103, ppid=ENGINE)
    watch.look()
    assert watch.judged() == ((), ())


def test_the_process_table_is_read_only_for_newcomers(proc: FakeProc) -> None:
    """Once everybody on the card is known, the table may vanish without anybody noticing."""
    watch = make_processes(proc, [CHILD])
    watch.look()
    for pid in (os.getpid(), ENGINE, CHILD, GRANDCHILD, STRANGER):
        proc.end_process(pid)
    watch.look()
    assert watch.judged() == ((), ())


def test_an_engine_on_another_card_is_a_mismatch(proc: FakeProc) -> None:
    """Energy of a part of the cards that the engine uses is not the engine's."""
    watch = make_processes(proc, [ENGINE], elsewhere=[CHILD])
    watch.look()
    watch.look_elsewhere()
    assert watch.judged() == ((Reason.GPU_COUNT_MISMATCH,), ())


def test_others_on_another_card_do_not_matter(proc: FakeProc) -> None:
    """A neighbour on a card that is not measured is none of our business."""
    watch = make_processes(proc, [ENGINE], elsewhere=[STRANGER])
    watch.look()
    watch.look_elsewhere()
    assert watch.judged() == ((), ())


def test_a_driver_that_does_not_list_processes_is_not_held_against_anybody(proc: FakeProc) -> None:
    """Without a list there is nothing to judge."""

    def refuse() -> Iterable[int]:
        raise NotSupported("no list")

    watch = make_processes(proc, refuse)
    watch.look()
    assert watch.judged() == ((), ())


def test_a_process_table_that_hides_others_is_not_judged_by(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /proc shows only our own processes, whose children compute cannot be told."""
    watch = make_processes(proc, [CHILD, STRANGER])
    monkeypatch.setattr("probes.metering.gpu_watch.read_processes", refusing(PermissionError("hidepid")))
    watch.look()
    assert watch.judged() == ((), (Note.GPU_PROCESSES_UNKNOWN,))


def test_only_looks_within_the_window_count(clock: FakeClock) -> None:
    """Clocks before the start and after the end are not in the conditions."""
    clocks = {1000.0: 300, 1001.0: 1200, 1002.0: 1200, 1003.0: 300}
    watch = make_watch(make_reads(clock, clock_mhz=lambda: clocks[clock.monotonic_s()]), clock)
    looks = [watch.begin()]
    for _ in range(3):
        clock.advance(1.0)
        looks.append(watch.look())
    conditions, judgement = watch.judged(looks, 1000.5, 1002.5)
    assert (conditions.device_uuid, conditions.num_samples, conditions.mean_clock_mhz) == (UUID, 2, 1200)
    assert judgement == ((), ())


@pytest.mark.parametrize(
    ("offered", "reasons"),
    [(("power_w", "clock_mhz"), (Reason.SAMPLING_GAP,)), (("power_w",), (Reason.SAMPLING_GAP,)), ((), ())],
)
def test_a_look_that_shows_nothing_is_no_look(
    clock: FakeClock, offered: tuple[str, ...], reasons: tuple[str, ...]
) -> None:
    """A card whose power and clock both fail was not seen; what it does not offer is not held against it."""
    failing = refusing(ProbeError("busy"))
    reads = replace(
        make_reads(clock, power_w=None),
        power_w=failing if "power_w" in offered else None,
        clock_mhz=failing if "clock_mhz" in offered else None,
    )
    watch = make_watch(reads, clock)
    looks = [watch.begin()]
    for _ in range(5):
        clock.advance(1.0)
        looks.append(watch.look())
    assert watch.judged(looks, 1000.0, 1005.0)[1] == (reasons, ())


def test_processes_and_limits_are_looked_at_once_a_second(clock: FakeClock, proc: FakeProc) -> None:
    """Ten looks a second ask for the processes once, and again at the end."""
    asked: list[float] = []

    def here() -> Iterable[int]:
        asked.append(clock.monotonic_s())
        return [ENGINE]

    watch = make_watch(make_reads(clock), clock, processes=make_processes(proc, here))
    watch.begin()
    for _ in range(20):
        clock.advance(0.1)
        watch.look()
    watch.end()
    assert pytest.approx(asked, abs=0.11) == [1000.0, 1001.0, 1002.0, 1002.0]


@pytest.mark.parametrize(
    ("settings", "reasons"), [(UNSET, ()), (DeviceSettings(sm_clock_cap_mhz=990), (Reason.CLOCK_NOT_HELD,))]
)
def test_looks_are_held_against_the_settings(
    clock: FakeClock, settings: DeviceSettings, reasons: tuple[str, ...]
) -> None:
    """A card at 1980 MHz does not hold a cap of 990 MHz, and needs to hold nothing without one."""
    watch = make_watch(make_reads(clock), clock, settings=settings)
    look = watch.begin()
    _conditions, (found, _notes) = watch.judged([look], 1000.0, 1001.0)
    assert reasons == found
