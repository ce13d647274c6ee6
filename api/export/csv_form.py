"""A point as two lines of CSV for spreadsheets: names, and values."""

from __future__ import annotations

import csv
import io

from api.export.recipe import Recipe

NAME = "csv"
#: A cell that begins so is a formula to spreadsheets.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def render(recipe: Recipe) -> bytes:
    """Return head and row; an unknown figure is an empty cell."""
    row = row_of(recipe)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(row)
    writer.writerow(_cell(value) for value in row.values())
    return text.getvalue().encode()


def row_of(recipe: Recipe) -> dict[str, object]:
    """Return the row by column."""
    result, evidence = recipe.result, recipe.result.evidence
    return {
        "job": result.job_id,
        "trial": result.number,
        "label": recipe.label or "measured",
        "model": recipe.model,
        "device": recipe.request.device,
        "energy_scope": evidence.scope,
        "energy_method": evidence.method,
        **recipe.knobs,
        "tok_per_j": result.tok_per_j,
        "tok_per_j_low": evidence.tok_per_j.low,
        "tok_per_j_high": evidence.tok_per_j.high,
        "output_tok_s": result.output_tok_s,
        "mean_power_w": result.mean_power_w,
        **{one.name: one.estimate.value for one in evidence.latencies},
        "quality": result.quality,
        "num_windows": evidence.num_windows,
        "measured_at": result.measured_at.isoformat(),
    }


def _cell(value: object) -> object:
    if value is None:
        return ""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
