"""The CPU estimate."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.cpu.cpu_estimate import CpuPowerModel, EstimateMeter
from probes.cpu.processes import HostLoadReader
from probes.device import Method, Reading, Scope
from probes.validity import Note, Reason
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_host import FakeProc

ENGINE = 100

seconds = st.floats(min_value=0.1, max_value=1e5)


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    proc = FakeProc(tmp_path / "proc")
    proc.write_process(os.getpid())
    proc.write_process(ENGINE, ppid=os.getpid(), cpu_s=10.0)
    return proc


def make_meter(proc: FakeProc, clock: FakeClock, model: CpuPowerModel | None = None) -> EstimateMeter:
    reader = HostLoadReader([ENGINE], proc=proc.root, cores=range(2))
    return EstimateMeter(
        reader.read, model or CpuPowerModel(), cores=2.0, num_cores=2, device_uuid="CPU-1", clock=clock
    )


def measure(
    proc: FakeProc, clock: FakeClock, *, engine_s: float, foreign_s: float = 0.0, wall_s: float = 10.0
) -> Reading:
    meter = make_meter(proc, clock)
    meter.start()
    clock.advance(wall_s)
    proc.write_process(ENGINE, ppid=os.getpid(), cpu_s=10.0 + engine_s)
    proc.work(engine_s + foreign_s)
    return meter.stop()


@pytest.mark.parametrize(("engine_s", "expected_w"), [(0.0, 2 * 0.74), (10.0, 2 * (0.74 + 3.5) / 2), (20.0, 2 * 3.5)])
def test_power_is_linear_in_utilisation(proc: FakeProc, clock: FakeClock, engine_s: float, expected_w: float) -> None:
    """Two cores idle draw twice 0.74 W, busy twice 3.5 W, and half of both in between."""
    assert pytest.approx(expected_w) == measure(proc, clock, engine_s=engine_s).mean_power_w


def test_it_is_labelled_as_an_estimate(proc: FakeProc, clock: FakeClock) -> None:
    """Scope, method and detail say that nothing was measured, and the uncertainty is the stated range."""
    reading = measure(proc, clock, engine_s=20.0)
    assert (reading.scope, reading.method) == (Scope.CPU_SHARE, Method.ESTIMATE)
    assert (reading.is_estimate, reading.is_valid) == (True, True)
    assert "2 cores at 0.74 W idle to 3.5 W busy each, Cloud Carbon Footprint" in reading.detail
    assert reading.energy_j is not None
    assert pytest.approx(0.55 * reading.energy_j) == reading.uncertainty_j


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=20))
def test_energy_is_additive_over_adjacent_windows(windows: list[tuple[float, float]]) -> None:
    """The estimates of windows that meet add up to that of the whole."""
    model = CpuPowerModel()
    parts_j = [model.energy_j(cores=4, wall_s=wall_s, cpu_s=cpu_s) for wall_s, cpu_s in windows]
    wall_s, cpu_s = (sum(column) for column in zip(*windows, strict=True))
    assert pytest.approx(model.energy_j(cores=4, wall_s=wall_s, cpu_s=cpu_s)) == sum(parts_j)


def test_the_trace_has_two_samples_a_second(proc: FakeProc, clock: FakeClock) -> None:
    """Power is drawn at 2 Hz."""
    meter = make_meter(proc, clock)
    meter.start()
    clock.advance(10.0)
    trace = meter.stop().trace
    assert len(trace) == 20
    assert [pytest.approx(1.48)] * 20 == [sample.power_w for sample in trace]


def test_an_engine_that_ends_makes_the_window_invalid(proc: FakeProc, clock: FakeClock) -> None:
    """A process that vanished in the window gives engine_process_gone."""
    meter = make_meter(proc, clock)
    meter.start()
    clock.advance(5.0)
    proc.end_process(ENGINE)
    clock.advance(5.0)
    reading = meter.stop()
    assert reading.reasons == (Reason.ENGINE_PROCESS_GONE,)
    assert reading.energy_j is not None
    assert reading.energy_j > 0


@pytest.mark.parametrize(("foreign_s", "is_valid"), [(6.0, True), (11.0, False)])
def test_others_on_the_cores_are_told(proc: FakeProc, clock: FakeClock, foreign_s: float, is_valid: bool) -> None:
    """Others who use 30 % of the cores are noted, 55 % make the window invalid; they cost the engine no joule."""
    reading = measure(proc, clock, engine_s=5.0, foreign_s=foreign_s)
    assert (f"{Note.FOREIGN_CPU_LOAD}:{foreign_s / 20:.2f}",) == reading.notes
    assert is_valid is reading.is_valid
    assert pytest.approx(2 * 0.74 * 10 + (3.5 - 0.74) * 5) == reading.energy_j


def test_a_window_of_a_few_ticks_is_too_short(proc: FakeProc, clock: FakeClock) -> None:
    """Below ten ticks of CPU time there is no estimate."""
    reading = measure(proc, clock, engine_s=0.0, wall_s=0.05)
    assert (reading.energy_j, reading.reasons) == (None, (Reason.WINDOW_TOO_SHORT,))


def test_a_gap_costs_no_energy(proc: FakeProc, clock: FakeClock) -> None:
    """CPU time adds up unwatched, so a gap is a note."""
    meter = make_meter(proc, clock)
    meter.start()
    clock.jump(10.0)
    reading = meter.stop()
    assert (reading.notes, reading.is_valid) == ((Note.SAMPLING_GAP,), True)


def test_a_suspend_is_a_reason(proc: FakeProc, clock: FakeClock) -> None:
    """A machine that slept in mid-window makes it invalid."""
    meter = make_meter(proc, clock)
    meter.start()
    clock.suspend(9.0)
    clock.advance(10.0)
    assert meter.stop().reasons == (Reason.SUSPENDED,)


def test_stop_without_start_and_close_twice(proc: FakeProc, clock: FakeClock) -> None:
    """A stretch that never began says so, and closing twice does nothing."""
    meter = make_meter(proc, clock)
    meter.close()
    meter.start()
    meter.close()
    meter.close()
    assert (meter.stop().energy_j, meter.stop().reasons) == (None, (Reason.NOT_STARTED,))


def test_another_model_can_be_given(proc: FakeProc, clock: FakeClock) -> None:
    """Watts per core from the settings replace the defaults, and the detail names their origin."""
    meter = make_meter(proc, clock, CpuPowerModel(idle_w=2.0, max_w=9.0, origin="a meter at the wall"))
    meter.start()
    clock.advance(10.0)
    reading = meter.stop()
    assert pytest.approx(4.0) == reading.mean_power_w
    assert reading.detail.endswith("a meter at the wall")


@pytest.mark.parametrize(("idle_w", "max_w"), [(4.0, 3.5), (-1.0, 3.5), (0.7, float("inf"))])
def test_a_model_must_make_sense(idle_w: float, max_w: float) -> None:
    """Idle above maximum, negative and infinite watts are refused with the values."""
    with pytest.raises(ValueError, match="idle_w="):
        CpuPowerModel(idle_w=idle_w, max_w=max_w)


def test_an_uncertainty_must_be_a_share() -> None:
    """An uncertainty above 100 % is refused."""
    with pytest.raises(ValueError, match=r"got 1\.5"):
        CpuPowerModel(relative_uncertainty=1.5)
