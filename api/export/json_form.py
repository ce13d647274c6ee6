"""A point as JSON for programs: every knob, every figure with its interval, and where they come from.

Figures that other tools have, too, stand once more under AIPerf's names, so that their reports can be put beside ours.
"""

from __future__ import annotations

import json
from typing import Any

from api.export.recipe import Recipe
from db.codec import encode_fields
from probes.device import Scope

NAME = "json"
#: Raised when a field changes its meaning.
SCHEMA = 1
#: AIPerf's power figures are of GPUs.
_GPU_SCOPES = (Scope.GPU, Scope.MODULE)


def render(recipe: Recipe) -> bytes:
    """Return the point as indented JSON."""
    return (json.dumps(document_of(recipe), indent=2, allow_nan=False) + "\n").encode()


def document_of(recipe: Recipe) -> dict[str, Any]:
    """Return the point as plain data."""
    result = recipe.result
    return {
        "schema": SCHEMA,
        "label": recipe.label,
        "is_simulated": result.is_simulated,
        "is_estimate": result.is_estimate,
        "job": result.job_id,
        "trial": result.number,
        "model": recipe.model,
        "asked_model": recipe.request.model,
        "device": recipe.request.device,
        "searched_knobs": result.point.as_dict(),
        "knobs": dict(recipe.knobs),
        "device_settings": recipe.device.as_dict(),
        "tok_per_j": result.tok_per_j,
        "output_tok_s": result.output_tok_s,
        "mean_power_w": result.mean_power_w,
        "quality": result.quality,
        "measured_at": result.measured_at.isoformat(),
        "evidence": encode_fields(result.evidence, "evidence"),
        "aiperf": _aiperf(recipe),
    }


def _aiperf(recipe: Recipe) -> dict[str, float] | None:
    """Return figures under AIPerf's names; None where they are not of a GPU, or nobody measured them."""
    result = recipe.result
    if recipe.label is not None or result.evidence.scope not in _GPU_SCOPES:
        return None
    return {
        "output_tokens_per_joule": result.tok_per_j,
        "output_tps_per_watt": result.tok_per_j,
        "energy_per_output_token": 1e3 / result.tok_per_j,  # millijoules
        "average_gpu_power": result.mean_power_w,
    }
