"""Names that a request may use for what only this machine knows: the operator's devices and models, uploaded traces.

The stored request keeps the names; what runs has UUIDs and paths. Knows nothing of queues.
"""

from __future__ import annotations

import dataclasses

from api.operator_file import Operator, is_name, load_operator
from api.settings import Settings
from api.workload_cache import materialised
from db.workloads import WorkloadStore
from tuner.errors import InvalidRequest
from tuner.request import TuneRequest


def resolved(request: TuneRequest, settings: Settings, workloads: WorkloadStore | None) -> TuneRequest:
    """Return a request with this machine's devices, paths and files in place of names.

    What is no name in the operator's file stays as it is. Raises UsageError for a file that cannot be used,
    InvalidRequest for a device that the operator lets nobody set, and for an uploaded trace that is not to be had.
    """
    operator = load_operator(settings.operator_file)
    _require_permission(request, operator, settings)
    entry = operator.devices.get(request.device)
    return dataclasses.replace(
        request,
        device=request.device if entry is None else entry.device,
        model=operator.models.get(request.model, request.model),
        workload=materialised(request.workload, workloads, settings.cache_dir),
    )


def lacking(words: str, kind: str, name: str, settings: Settings) -> str:
    """Return a sentence about something unknown; of what could be a name it says that the operator's file lacks it."""
    if not is_name(name):
        return words
    if settings.operator_file is None:
        return f"{words}; no WATTFRONT_OPERATOR_FILE is set on this machine that could name the {kind}"
    return f"{words}; WATTFRONT_OPERATOR_FILE {settings.operator_file} of this machine names no {kind} {name!r}"


def _require_permission(request: TuneRequest, operator: Operator, settings: Settings) -> None:
    """Refuse to set a device whose entry does not allow it; the worker's own settings are asked later."""
    entry = operator.devices.get(request.device)
    if entry is not None and request.allow_device_control and not entry.allow_device_control:
        raise InvalidRequest(
            "allow_device_control",
            True,
            f"WATTFRONT_OPERATOR_FILE {settings.operator_file} of this machine lets nobody set {request.device}; leave "
            "it out, and the device is only observed",
        )
