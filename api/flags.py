"""Command-line options as job-file fields, by dotted name. Knows nothing of what the fields mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from api.errors import UsageError

_FIELDS = {
    "model": "model",
    "engine": "engine",
    "profile": "server",
    "device": "device",
    "allow_device_control": "allow_device_control",
    "name": "name",
    "scenario": "scenario",
    "seed": "seed",
    "trials": "budget.trials",
    "minutes": "budget.minutes",
    "device_hours": "budget.device_hours",
    "joules": "budget.joules",
    "plateau": "budget.plateau_trials",
    "repeats": "repeats.windows",
    "reuse": "reuse.max_age_hours",
    "sampler": "sampler",
    "latency": "latency_metric",
    "window": "window.window_s",
    "warmup": "window.warmup_s",
    "task_limit": "quality.task_limit",
    "min_task_share": "quality.min_task_share",
}
_WORKLOAD_FIELDS = {
    "prompt": "prompt_tokens",
    "output": "output_tokens",
    "concurrency": "concurrency",
    "rate": "rate_per_s",
    "trace": "trace_file",
    "time_scale": "time_scale",
    "seed": "seed",
    "burstiness": "burstiness",
    "ramp_to": "ramp_to_per_s",
    "ramp_s": "ramp_s",
    "clip_prompt": "clip_prompt_tokens",
    "clip_output": "clip_output_tokens",
    "repeat": "repeat",
}
_WORDS = {"yes": True, "no": False}


def job_fields(options: dict[str, Any]) -> dict[str, Any]:
    """Return what the options of `wattfront tune` say; raise UsageError naming the option."""
    flags = {_FIELDS[name]: value for name, value in options.items() if name in _FIELDS and value is not None}
    if options["task"]:
        flags["quality.tasks"] = list(options["task"])
    for text in (part for group in options["sla"] for part in group.split(",") if part.strip()):
        metric, _, bound = text.replace("<=", "=").partition("=")
        _add(flags, f"sla.{metric.strip()}", _number(f"--sla {metric.strip()}", bound))
    for text in options["knob"]:
        name, separator, values = text.partition("=")
        if not separator:
            raise UsageError(f"--knob is {text!r}: write NAME=V1,V2, as in max_batch=1,4,16")
        _add(flags, f"knobs.{name.strip()}", [_value(part) for part in values.split(",") if part.strip()])
    if options["workload"] is not None:
        flags |= _workload_flags(options["workload"])
    return flags


def _workload_flags(text: str) -> dict[str, Any]:
    path = text.partition(",")[0]
    if Path(path).expanduser().is_file():  # FILE, or FILE,time_scale=0.1
        text = f"{_file_scenario(path)}:trace={text}"
    scenario, _, rest = text.partition(":")
    flags: dict[str, Any] = {"workload.scenario": scenario}
    for part in filter(None, rest.split(",")):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in _WORKLOAD_FIELDS:
            raise UsageError(
                f"--workload has {part!r}: its parts are {', '.join(f'{field}=...' for field in _WORKLOAD_FIELDS)}"
            )
        _add(
            flags,
            f"workload.{_WORKLOAD_FIELDS[name]}",
            value if name in ("prompt", "output", "trace") else _WORDS.get(value, _value(value)),
        )
    return flags


def _file_scenario(path: str) -> str:
    """Return what is done with a file that nothing is said of: its times are replayed where it has any."""
    from tuner.request_trace import load_trace  # most commands name no file

    return "trace" if load_trace(path).has_times else "closed"


def _add(flags: dict[str, Any], field: str, value: Any) -> None:
    """Set a field that may be named once: of two values it cannot be known which is meant."""
    if field in flags:
        raise UsageError(f"{field} is given twice, as {flags[field]!r} and as {value!r}; keep one of the two")
    flags[field] = value


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text.strip())
        except ValueError:
            continue
    return text.strip()


def _number(field: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{field} is {text!r}: give a number of milliseconds, as in ttft_p99_ms<=500") from None
