"""`/v1/devices`: the devices that jobs ran on."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.stores import Stores
from tests.db.factories import make_capability, make_device


@pytest.fixture
def client(stores: Stores) -> TestClient:
    return TestClient(create_app(stores), base_url="http://localhost")


def test_no_devices_is_an_empty_list(client: TestClient) -> None:
    """A fresh database has seen no devices."""
    assert client.get("/v1/devices").json() == {"items": []}


def test_a_device_tells_what_it_is_and_can_do(client: TestClient, stores: Stores) -> None:
    """A device is answered with its kind, driver, details, capabilities, aware times and who sets it."""
    stores.devices.seen(make_device(), [make_capability()])
    device = client.get("/v1/devices/GPU-1").json()
    assert device["last_seen"].endswith(("Z", "+00:00"))
    assert device["last_seen"] == device["first_seen"]
    assert device | {"last_seen": "", "first_seen": ""} == {
        "uuid": "GPU-1",
        "name": "NVIDIA H200",
        "kind": "gpu",
        "driver": "580.65.06",
        "details": {"pci": "0000:01:00.0", "power_limit_w": "700"},
        "capabilities": [{"name": "energy_counter", "is_available": True, "reason": "read 123.4 J"}],
        "first_seen": "",
        "last_seen": "",
        "control_state": "observed",
        "control_detail": None,
    }


def test_every_device_is_listed_with_who_sets_it(client: TestClient, stores: Stores) -> None:
    """The list has all devices, and tells a job's control and a failed restore with its detail."""
    for uuid in ("GPU-1", "GPU-2", "GPU-3"):
        stores.devices.seen(make_device(uuid=uuid), [])
    stores.devices.set_control("GPU-2", "controlled", "the guard at /run/wattfront/guard.sock")
    stores.devices.set_control("GPU-3", "restore_failed", "not permitted")
    items = client.get("/v1/devices").json()["items"]
    assert {(item["uuid"], item["control_state"], item["control_detail"]) for item in items} == {
        ("GPU-1", "observed", None),
        ("GPU-2", "controlled", "the guard at /run/wattfront/guard.sock"),
        ("GPU-3", "restore_failed", "not permitted"),
    }


@pytest.mark.parametrize("uuid", ["GPU-9", "GPU-", "%00", "a b"])
def test_an_unknown_device_is_a_problem(client: TestClient, stores: Stores, uuid: str) -> None:
    """A device that was never seen, or only the beginning of one, is answered with 404 and a problem body."""
    stores.devices.seen(make_device(), [])
    answer = client.get(f"/v1/devices/{uuid}")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert answer.json()["title"] == "no such device"


def test_a_group_of_devices_is_found_by_all_its_uuids(client: TestClient, stores: Stores) -> None:
    """Several GPUs that a job used as one are one device whose UUID joins theirs."""
    stores.devices.seen(make_device(uuid="GPU-1+GPU-2"), [])
    assert client.get("/v1/devices/GPU-1+GPU-2").json()["uuid"] == "GPU-1+GPU-2"
