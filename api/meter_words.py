"""Readings, devices and what speaks against them in words, for `watch` and `measure`. Decides nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from api.measure import Measured, Run
from probes.device import Conditions, Method, PowerSource, Reading
from tuner.measurement import Estimate

#: Every reason and note of `probes.validity` in a few words; docs/measuring.md has the remedies.
WORDS = {
    "averaged_power": "from one-second averages",
    "clock_not_attained": "the clock never came to its cap",
    "clock_not_held": "the clock left its cap",
    "control_lease_lost": "the guard took the settings back",
    "counter_reset": "an energy counter went backwards",
    "counter_stuck": "the energy counter did not move",
    "device_in_use": "another process measures the device",
    "device_lost": "the device stopped answering",
    "energy_crosscheck_failed": "counter and integrated power disagree",
    "engine_process_gone": "a measured process ended too soon",
    "external_change": "somebody else changed a setting meanwhile",
    "foreign_cpu_load": "others used the cores",
    "foreign_gpu_process": "another process computed on the GPU",
    "gpu_count_mismatch": "not every GPU answered",
    "gpu_processes_unknown": "the driver does not tell who computes on the GPU",
    "guard_unavailable": "the guard does not answer",
    "hw_slowdown": "the hardware slowed the clocks down",
    "hw_thermal": "too hot: the hardware slowed the clocks down",
    "implausible_reading": "readings that cannot be true",
    "invalid_setting": "the device does not take a setting",
    "limit_overridden": "a lower power limit than the one set is in force",
    "no_crosscheck": "the counter could not be checked against power readings",
    "not_bracketed": "no power reading at an edge",
    "not_permitted": "the kernel or the driver refuses this user",
    "not_started": "the meter never started",
    "not_supported": "the device does not have this reading",
    "persistence_lost": "the driver may have been unloaded meanwhile",
    "power_brake": "an external power brake slowed the clocks down",
    "power_limited": "the power limit held the clocks down",
    "probe_error": "the driver or the kernel answered with an error",
    "readings_rejected": "this share of readings was left out",
    "restore_failed": "what was found could not be put back",
    "sampler_died": "sampling ended early",
    "sampling_gap": "too long without a reading",
    "suspended": "the machine slept meanwhile",
    "sw_thermal": "too hot: the driver slowed the clocks down",
    "sync_boost": "another GPU of its group held the clocks down",
    "unaligned_edges": "begins or ends between two steps of the counter",
    "uncontrolled": "a setting was refused",
    "unknown_device": "the device is no longer there",
    "virtual_gpu": "a guest's share of a card, whose power is not its own",
    "whole_gpu_shared": "the whole card's, of which this is a slice",
    "whole_host": "of all processes of the machine",
    "window_too_short": "too short for this source",
}


def code_words(code: str) -> str:
    """Return a code with what it means, as in `foreign_cpu_load:0.31 (others used the cores)`."""
    words = WORDS.get(code.partition(":")[0])
    return f"{code} ({words})" if words else code


def watts_words(power_w: float | None) -> str:
    """Return watts, or `-` where there are none: never 0 in their place."""
    return "-" if power_w is None else f"{power_w:.1f} W"


def source_words(source: PowerSource | None) -> str:
    """Return where energy figures come from."""
    if source is None:
        return "no source of power readings"
    kind = "ESTIMATE, nothing is measured; " if source.method in (Method.ESTIMATE, Method.SIMULATED) else ""
    return f"{kind}scope {source.scope}, method {source.method} ({source.detail})"


def run_words(run: Run) -> str:
    """Return one run's figures and whether they may be used."""
    reading = run.reading
    figures = f"{_joules(reading)}, mean {watts_words(reading.mean_power_w)} over {reading.duration_s:.3g} s"
    ended = "" if run.exit_code == 0 else f", exit code {run.exit_code}"
    return f"{figures}{ended}; {_validity(reading)}"


def measured_lines(measured: Measured) -> list[str]:
    """Return everything that must stand beside the figures of a command, and their means where it ran repeatedly."""
    reading = measured.runs[-1].reading
    kind = "ESTIMATE, nothing was measured; " if reading.is_estimate else ""
    lines = [
        f"command: {shlex.join(measured.command)}",
        f"device: {measured.device.name} {measured.device.uuid}",
        f"energy: {kind}scope {reading.scope}, method {reading.method} ({reading.detail})",
    ]
    if len(measured.runs) == 1:
        lines.append(run_words(measured.runs[0]))
    if measured.num_repeats > 1:
        lines += _mean_lines(measured)
    lines += [f"note: {code_words(note)}" for note in _all_notes(measured.runs)]
    lines += [_condition_words(one) for one in reading.conditions]
    if measured.idle is not None:
        idle = measured.idle
        lines.append(
            f"idle before it: {watts_words(idle.mean_power_w)} over {idle.duration_s:.3g} s, subtracted from nothing; "
            f"{_validity(idle)}"
        )
    return lines


def _mean_lines(measured: Measured) -> list[str]:
    energy, power, duration = measured.energy_j(), measured.mean_power_w(), measured.duration_s()
    counted = f"{len(measured.counted)} of {measured.num_repeats} runs"
    if energy is None or power is None or duration is None:
        return [f"mean of {counted}: -"]
    return [
        f"mean of {counted}: {_interval(energy, 'J')}; {_interval(power, 'W')}; {_interval(duration, 's')}"
        " (95 % intervals of the runs' scatter alone)"
    ]


def _joules(reading: Reading) -> str:
    if reading.energy_j is None:
        return "- J"
    if reading.uncertainty_j is None:
        return f"{reading.energy_j:.4g} J"
    return f"{reading.energy_j:.4g} J ±{reading.uncertainty_j:.2g} J"


def _validity(reading: Reading) -> str:
    if reading.is_valid:
        return "valid"
    return "INVALID: " + (", ".join(map(code_words, reading.reasons)) or "no energy")


def _all_notes(runs: Sequence[Run]) -> Iterable[str]:
    return dict.fromkeys(note for run in runs for note in run.reading.notes)


def _condition_words(conditions: Conditions) -> str:
    parts = [
        _of(conditions.mean_clock_mhz, "clock {:.0f} MHz"),
        _of(conditions.mean_memory_clock_mhz, "memory {:.0f} MHz"),
        _of(conditions.highest_temperature_c, "up to {:.0f} °C"),
        _of(conditions.power_limit_w, "limit {:.0f} W"),
        *(f"{event} {100 * share:.2g} % of the time" for event, share in conditions.event_shares),
    ]
    return f"{conditions.device_uuid}: {', '.join(parts)}"


def _of(figure: float | None, form: str) -> str:
    """Return a figure in its form; `-` in place of one that is not there."""
    return form.format(figure) if figure is not None else form.replace("{:.0f}", "-")


def _interval(estimate: Estimate, unit: str) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4g} {unit}"
    return f"{estimate.value:.4g} {unit} ({estimate.low:.4g} to {estimate.high:.4g})"
