"""What the form of a job offers: models, devices, engines, traces and metrics that there are, and usual values.

Knobs are asked for by the form itself, as they hang on model and device. Knows nothing of the form's looks.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request

from api import inventory
from api.access import actor_of
from api.job_schemas import JobIn
from api.operator_file import Operator
from api.stores import Stores, utc_now
from db.service import Scope
from db.workloads import UPLOADED
from tuner.request import LATENCIES, LATENCY_METRICS, SAMPLERS, SCENARIOS

#: Uploaded files that the form offers at most, newest first.
_MAX_FILES = 200
_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "end to end"}
_SCENARIOS = {
    "closed": "closed: a fixed number in flight",
    "offline": "offline: as much as it takes",
    "server": "server: random arrivals (Poisson)",
    "interactive": "interactive: random arrivals, tighter SLA",
    "trace": "trace: an uploaded trace, replayed",
}


def job_choices(stores: Stores, operator: Operator) -> dict[str, Any]:
    """Return what the selects of the form have, and the usual value of each field by its dotted name."""
    devices = inventory.devices(stores, operator, utc_now())
    models = inventory.models(operator).items
    files = stores.workloads.list(limit=_MAX_FILES)
    assert set(_NAMES) == set(LATENCIES)
    return {
        "models": {
            "of the operator": [one.name for one in models if one.origin == "operator"],
            "shapes, for simulated devices": [one.name for one in models if one.origin == "catalogue"],
        },
        "named": [one for one in devices.named if not one.is_simulated],
        "simulated": [one for one in devices.named if one.is_simulated],
        "unnamed": [one for one in devices.items if one.kind != "simulated" and not _is_named(one.uuid, operator)],
        "engines": inventory.engines(stores, utc_now()).items,
        "files": [(f"{UPLOADED}{one.name}", f"{one.name}: {one.form}, {one.num_rows} requests") for one in files],
        "metrics": [(name, _metric_words(name)) for name in LATENCY_METRICS],
        "scenarios": [(name, _SCENARIOS[name]) for name in SCENARIOS],
        "samplers": [(name, name) for name in SAMPLERS],
        "usual": JobIn(model="any").model_dump(mode="json"),
    }


def permission(request: Request) -> dict[str, Any]:
    """Return whether whoever asks may start jobs, and what to say where not."""
    held: Scope = getattr(request.state, "scope", Scope.ADMIN)
    return {"may_tune": held.covers(Scope.TUNE), "actor": actor_of(request), "scope": held.value}


def _is_named(uuid: str, operator: Operator) -> bool:
    return any(entry.device == uuid for entry in operator.devices.values())


def _metric_words(name: str) -> str:
    latency, statistic, _ = name.split("_")
    return f"{_NAMES[latency]} {statistic}"
