"""Readings in words: every code explained, and what must stand beside a figure."""

from __future__ import annotations

import pytest

from api.measure import Measured, Run
from api.meter_words import WORDS, code_words, measured_lines, run_words, source_words
from probes.device import Method, PowerSource, Reading, Scope
from probes.validity import all_codes
from tests.db.factories import make_conditions, make_device, make_reading


def measured(*readings: Reading, idle: Reading | None = None) -> Measured:
    return Measured(
        device=make_device(),
        command=("sh", "-c", "echo x"),
        num_repeats=len(readings),
        runs=tuple(Run(exit_code=0, reading=reading) for reading in readings),
        idle=idle,
    )


@pytest.mark.parametrize("code", sorted(all_codes()))
def test_every_code_has_words(code: str) -> None:
    """Each reason and note that a reading can carry is told in a few words of its own."""
    assert WORDS[code]


def test_no_words_are_for_nothing() -> None:
    """Each code that is explained is one that a reading can carry."""
    assert set(WORDS) <= all_codes()


def test_a_code_keeps_its_figure() -> None:
    """A note with a figure is explained with it, and a code that nobody explained is shown as it is."""
    assert code_words("foreign_cpu_load:0.31") == "foreign_cpu_load:0.31 (others used the cores)"
    assert code_words("brand_new") == "brand_new"


def test_a_valid_run_has_all_its_figures() -> None:
    """A run is told with joules and their uncertainty, mean watts, seconds, and that it is valid."""
    assert run_words(Run(exit_code=0, reading=make_reading())) == "300 J ±0.5 J, mean 10.0 W over 30 s; valid"


def test_an_invalid_run_says_why() -> None:
    """An invalid run says so with each reason and what it means; joules that are not there are `-`, never 0."""
    words = run_words(Run(exit_code=3, reading=make_reading(energy_j=None, reasons=("counter_reset", "suspended"))))
    assert words == (
        "- J, mean - over 30 s, exit code 3; INVALID: counter_reset (an energy counter went backwards), "
        "suspended (the machine slept meanwhile)"
    )


@pytest.mark.parametrize("method", [Method.ESTIMATE, Method.SIMULATED])
def test_an_estimate_is_labelled(method: Method) -> None:
    """What was not measured is an ESTIMATE beside its scope and method, as a source and as a figure."""
    source = PowerSource(scope=Scope.CPU_SHARE, method=method, detail="2 cores")
    assert source_words(source) == f"ESTIMATE, nothing is measured; scope cpu_share, method {method} (2 cores)"
    lines = measured_lines(measured(make_reading(scope=Scope.CPU_SHARE, method=method)))
    assert any(line.startswith("energy: ESTIMATE, nothing was measured; scope cpu_share") for line in lines)


def test_a_measurement_is_no_estimate() -> None:
    """Figures of a counter stand with scope, method and detail alone."""
    lines = measured_lines(measured(make_reading()))
    assert "energy: scope gpu, method counter (total energy counter)" in lines
    assert "estimate" not in " ".join(lines).lower()
    assert source_words(None) == "no source of power readings"


def test_repeats_are_told_with_their_intervals() -> None:
    """Several runs have a mean with its 95 % interval, of the usable ones, and how many those were."""
    readings = [make_reading(energy_j=energy_j) for energy_j in (10.0, 12.0)]
    lines = measured_lines(measured(*readings, make_reading(energy_j=1e9, reasons=("counter_reset",))))
    (mean,) = [line for line in lines if line.startswith("mean of")]
    assert mean.startswith("mean of 2 of 3 runs: 11 J (0 to 23.71); ")
    assert "mean of 0 of 1 runs: -" not in lines


def test_without_a_usable_run_the_mean_is_a_dash() -> None:
    """Repeats of which none is usable have no mean."""
    bad = make_reading(energy_j=None, reasons=("counter_reset",))
    assert "mean of 0 of 2 runs: -" in measured_lines(measured(bad, bad))


def test_conditions_and_notes_stand_beside_the_figure() -> None:
    """Clocks, temperature, limit and clock events of each device, and every note once, are told."""
    conditions = make_conditions(mean_memory_clock_mhz=None)
    reading = make_reading(notes=("power_limited",), conditions=(conditions,))
    lines = measured_lines(measured(reading, reading))
    assert lines.count("note: power_limited (the power limit held the clocks down)") == 1
    assert (
        "GPU-1: clock 1398 MHz, memory - MHz, up to 62 °C, limit 500 W, sw_power_cap 80 % of the time, "
        "hw_slowdown 0.3 % of the time"
    ) in lines


def test_idle_power_is_told_apart() -> None:
    """Idle power has a line of its own with its own validity, and says that it is subtracted from nothing."""
    lines = measured_lines(measured(make_reading(), idle=make_reading(energy_j=60.0, reasons=("sampling_gap",))))
    assert lines[-1] == (
        "idle before it: 2.0 W over 30 s, subtracted from nothing; INVALID: sampling_gap (too long without a reading)"
    )
