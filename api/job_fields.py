"""A request back as the fields of a job file, and such fields as YAML: for copies of jobs and for the files of people.

What a request does not say otherwise is left out, so that the file says what somebody chose. Knows nothing of where a
job is stored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from api.job_schemas import JobIn, WindowIn
from tuner.knobs import usual_engine
from tuner.request import QualityGate, TuneRequest, WindowRule, WorkloadSpec

#: Of a file that people read.
_WIDTH = 100
_BLOCKS = ("budget", "repeats", "reuse")
_PLAIN = ("server", "allow_device_control", "name", "latency_metric", "sampler", "preset", "seed")


def fields_of(request: TuneRequest) -> dict[str, Any]:
    """Return the fields that `JobIn` makes this request of, without those that have their usual value."""
    fields: dict[str, Any] = {"model": request.model}
    if request.engine != usual_engine(request.device):
        fields["engine"] = request.engine
    if request.device != JobIn.model_fields["device"].default:
        fields["device"] = request.device
    fields |= {name: getattr(request, name) for name in _PLAIN if getattr(request, name) != _usual(name)}
    blocks: dict[str, Any] = {
        "workload": _workload(request.workload),
        "sla": {limit.metric: limit.bound_ms for limit in request.sla},
        "knobs": {knob.name: list(knob.values) for knob in request.knobs},
        **{name: _changed(getattr(request, name)) for name in _BLOCKS},
        "window": _window(request.window),
        "quality": _quality(request.quality),
    }
    return fields | {name: block for name, block in blocks.items() if block}


def yaml_of(fields: Mapping[str, Any]) -> str:
    """Return a job's fields as the content of a job file, which `wattfront tune` takes."""
    import yaml  # when it is needed: a service starts sooner

    plain: str = yaml.safe_dump(
        dict(fields), sort_keys=False, allow_unicode=True, width=_WIDTH, default_flow_style=None
    )
    return plain


def _usual(name: str) -> Any:
    return JobIn.model_fields[name].default


def _changed(block: Any) -> dict[str, Any]:
    """Return the fields of a record that are not as they usually are."""
    values = {field.name: (getattr(block, field.name), field.default) for field in dataclasses.fields(block)}
    return {name: value for name, (value, usual) in values.items() if value != usual}


def _workload(spec: WorkloadSpec) -> dict[str, Any]:
    found = _changed(spec)
    found.pop("trace_sha256", None)  # the service notes it anew
    for name in ("prompt_tokens", "output_tokens"):
        if name in found:
            low, high = found[name]
            found[name] = low if low == high else f"{low}-{high}"
    return found


def _window(rule: WindowRule) -> dict[str, Any]:
    """Return what has to be said of a window: a longest time that follows from the others is left out."""
    found = _changed(rule)
    implied = WindowIn(warmup_s=rule.warmup_s, window_s=rule.window_s).to_rule()
    for name in ("max_warmup_s", "max_window_s"):
        if getattr(rule, name) == getattr(implied, name):
            found.pop(name, None)
        else:
            found[name] = getattr(rule, name)
    return found


def _quality(gate: QualityGate) -> dict[str, Any]:
    found = _changed(gate)
    return found | {"tasks": list(gate.tasks)} if "tasks" in found else found
