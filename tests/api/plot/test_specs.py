"""Specifications by name. That loading the service loads no Altair is held by tests/api/test_app.py."""

from __future__ import annotations

import json

import pytest

from api.plot.specs import Asked, Name, spec_json


@pytest.mark.parametrize("name", ["front", "hypervolume", "trace", "comparison"])
def test_every_chart_has_a_specification(name: Name) -> None:
    """Each name gives a Vega-Lite specification without rows, the same bytes each time."""
    shown = json.loads(spec_json(name, Asked(scheme="dark")))
    assert "vega-lite" in shown["$schema"]
    assert not {"front", "growth", "samples", "fronts"} & set(shown.get("datasets", {}))
    assert spec_json(name, Asked(scheme="dark")) is spec_json(name, Asked(scheme="dark"))
