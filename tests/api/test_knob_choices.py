"""`/v1/knobs`: what a job may ask for on a device, and the reason beside the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from api.stores import Stores
from api.submit import read_request
from tests.api.test_submit import problem
from tests.db.factories import make_capability, make_device
from tuner.simulation import open_simulation
from tuner.space import search_space

OPERATOR = (
    "devices:\n  open: {device: GPU-1, allow_device_control: true}\n  closed: {device: GPU-1}\n"
    "  unseen: {device: GPU-2, allow_device_control: true}\nmodels: {chat-8b: /models/llama}\n"
)


@pytest.fixture
def client(stores: Stores, settings: Settings, tmp_path: Path) -> Iterator[TestClient]:
    """A service whose operator named three devices, one of which jobs may not set."""
    path = tmp_path / "operator.yaml"
    path.write_text(OPERATOR, encoding="utf-8")
    app = create_app(stores, settings.model_copy(update={"operator_file": path, "nightly": False}))
    with TestClient(app, base_url="http://127.0.0.1:8710") as client:
        yield client


def knobs(client: TestClient, model: str, device: str, **more: Any) -> dict[str, dict[str, Any]]:
    """Return the knobs by name."""
    answer = client.get("/v1/knobs", params={"model": model, "device": device, **more})
    assert answer.status_code == 200, answer.text
    return {one["name"]: one for one in answer.json()["knobs"]}


def test_usual_values_are_those_of_a_job_that_names_none(client: TestClient) -> None:
    """Values of usual knobs are what a job without knobs would search, and their defaults its default point's."""
    found = knobs(client, "llama-3.1-8b", "simulated:h100-sxm")
    request = read_request({"model": "llama-3.1-8b", "device": "simulated:h100-sxm"})
    space = search_space(request, open_simulation(request).device)
    usual = {name: one for name, one in found.items() if one["is_usual"]}
    assert {knob.name: (list(knob.values), knob.default) for knob in space.knobs} == {
        name: (one["tried"], one["default"]) for name, one in usual.items()
    }
    assert (found["sm_clock_cap_mhz"]["lowest"], found["sm_clock_cap_mhz"]["unit"]) == (345, "MHz")


def test_what_cannot_be_had_has_its_reason(client: TestClient) -> None:
    """Words that the device lacks, layouts of one GPU and knobs of other devices are there, each with why not."""
    found = knobs(client, "llama-3.1-8b", "simulated:h100-sxm")
    nvfp4 = next(one for one in found["precision"]["choices"] if one["value"] == "nvfp4")
    assert nvfp4["is_possible"] is False
    assert nvfp4["reason"].startswith("precision is 'nvfp4', which this machine does not compute in at speed")
    assert (found["tensor_parallel"]["is_settable"], found["tensor_parallel"]["reason"]) == (
        False,
        "the device is one GPU",
    )
    assert (found["cpu_clock_cap_mhz"]["is_settable"], found["cpu_clock_cap_mhz"]["reason"]) == (
        False,
        "this device has no such knob",
    )


def test_several_gpus_have_layouts(client: TestClient) -> None:
    """On eight GPUs every power of two up to eight may be tried, and what has no experts cannot spread them."""
    found = knobs(client, "llama-3.1-8b", "simulated:h200-sxm:8")
    assert [one["value"] for one in found["tensor_parallel"]["choices"]] == [1, 2, 4, 8]
    assert found["tensor_parallel"]["is_settable"] is True
    assert "has no experts" in found["expert_parallel"]["reason"]


def test_of_a_real_device_it_is_said_what_is_known(client: TestClient, stores: Stores) -> None:
    """Clocks may be set where operator and job allow it and the device was seen to take it; else the reason is told."""
    able = make_capability(name="sm_clock_cap_mhz", reason="345 to 1980 MHz")
    unable = make_capability(name="power_cap_w", is_available=False, reason="no permission")
    stores.devices.seen(make_device(), [able, unable])
    asked = {"allow_device_control": True}
    found = knobs(client, "chat-8b", "open", **asked)
    assert (found["sm_clock_cap_mhz"]["is_settable"], found["sm_clock_cap_mhz"]["reason"]) == (True, "345 to 1980 MHz")
    assert (found["power_cap_w"]["is_settable"], found["power_cap_w"]["reason"]) == (False, "no permission")
    assert "has to ask for it" in knobs(client, "chat-8b", "open")["sm_clock_cap_mhz"]["reason"]
    assert "lets nobody set closed" in knobs(client, "chat-8b", "closed")["sm_clock_cap_mhz"]["reason"]
    assert "when its worker opens it" in knobs(client, "chat-8b", "unseen", **asked)["sm_clock_cap_mhz"]["reason"]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"model": "llama-3.1-8b", "device": "simulated:/etc/passwd.json"}, "device"),
        ({"model": "/etc/passwd", "device": "simulated:h100-sxm"}, "model"),
        ({"model": "llama-3.1-8b", "device": "simulated:h100-sxm", "engine": "embedded"}, "engine"),
        ({"model": "chat-8b", "device": "open", "engine": "simulated"}, "engine"),
        ({"model": "chat-8b", "device": "cpu"}, "device"),
    ],
)
def test_what_a_job_may_not_name_is_refused(client: TestClient, asked: dict[str, str], field: str) -> None:
    """No path is looked at, and what does not fit together is refused, by the field's name."""
    answer = client.get("/v1/knobs", params=asked)
    assert problem(answer)[0] == 422
    assert [one["field"] for one in answer.json()["errors"]] == [field]
