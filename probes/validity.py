"""Every reason against a reading, and every note beside one.

`docs/measuring.md` explains each; a test holds the two together. Knows the codes, not when they apply.
"""

from __future__ import annotations

from enum import StrEnum

from probes import errors


class Reason(StrEnum):
    """Why a figure must not be used."""

    NOT_STARTED = "not_started"
    SUSPENDED = "suspended"
    SAMPLER_DIED = "sampler_died"
    SAMPLING_GAP = "sampling_gap"
    NOT_BRACKETED = "not_bracketed"
    WINDOW_TOO_SHORT = "window_too_short"
    COUNTER_RESET = "counter_reset"
    COUNTER_STUCK = "counter_stuck"
    ENERGY_CROSSCHECK_FAILED = "energy_crosscheck_failed"
    IMPLAUSIBLE_READING = "implausible_reading"
    ENGINE_PROCESS_GONE = "engine_process_gone"
    FOREIGN_CPU_LOAD = "foreign_cpu_load"
    FOREIGN_GPU_PROCESS = "foreign_gpu_process"
    GPU_COUNT_MISMATCH = "gpu_count_mismatch"
    HW_THERMAL = "hw_thermal"
    SW_THERMAL = "sw_thermal"
    HW_SLOWDOWN = "hw_slowdown"
    POWER_BRAKE = "power_brake"
    SYNC_BOOST = "sync_boost"
    CLOCK_NOT_ATTAINED = "clock_not_attained"
    CLOCK_NOT_HELD = "clock_not_held"
    LIMIT_OVERRIDDEN = "limit_overridden"
    EXTERNAL_CHANGE = "external_change"
    PERSISTENCE_LOST = "persistence_lost"


class Note(StrEnum):
    """What a reader of a usable figure should know."""

    WHOLE_GPU_SHARED = "whole_gpu_shared"
    WHOLE_HOST = "whole_host"
    AVERAGED_POWER = "averaged_power"
    NO_CROSSCHECK = "no_crosscheck"
    COUNTER_STUCK = "counter_stuck"
    SAMPLING_GAP = "sampling_gap"
    READINGS_REJECTED = "readings_rejected"
    FOREIGN_CPU_LOAD = "foreign_cpu_load"
    POWER_LIMITED = "power_limited"
    UNALIGNED_EDGES = "unaligned_edges"
    GPU_PROCESSES_UNKNOWN = "gpu_processes_unknown"
    VIRTUAL_GPU = "virtual_gpu"


def with_value(note: Note, value: float) -> str:
    """Return the note with its figure, as in `foreign_cpu_load:0.31`."""
    return f"{note}:{value:.2f}"


def all_codes() -> frozenset[str]:
    """Return every code that can stand in a reading's reasons or notes.

    A reading that failed at an edge carries the kind of the ProbeError, so those belong here too.
    """
    kinds = {error.kind for error in vars(errors).values() if is_probe_error(error)}
    return frozenset({*map(str, Reason), *map(str, Note), *kinds})


def is_probe_error(thing: object) -> bool:
    """Return whether `thing` is ProbeError or one of its kinds."""
    return isinstance(thing, type) and issubclass(thing, errors.ProbeError)
