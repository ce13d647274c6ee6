"""`/v1/devices`: the devices that jobs ran on."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from api import inventory
from api.app import create_app
from api.settings import Settings
from api.stores import Stores, utc_now
from db.job import JobState
from engine.embedded.precision import MODES
from tests.db.factories import make_capability, make_device, make_request
from tuner.knobs import SERVERS


@pytest.fixture
def client(stores: Stores) -> TestClient:
    return TestClient(create_app(stores), base_url="http://localhost")


def test_no_devices_is_an_empty_list(client: TestClient) -> None:
    """A fresh database has seen no devices; simulated ones can be named, and are labelled so."""
    told = client.get("/v1/devices").json()
    assert told["items"] == []
    assert {"simulated:h100-sxm", "simulated:h200-sxm"} <= {one["name"] for one in told["named"]}
    assert all(one["is_simulated"] and not one["allow_device_control"] for one in told["named"])


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
        "running_job": None,
        "worker_host": None,
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


@pytest.mark.parametrize("uuid", ["GPU-9", "GPU-", "a b"])
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


@pytest.fixture
def named(stores: Stores, tmp_path: Path) -> TestClient:
    """A service whose operator names a GPU and a model."""
    file = tmp_path / "operator.yaml"
    file.write_text(
        "devices:\n  rack3-gpu0: {device: GPU-1, allow_device_control: true}\nmodels:\n  chat-8b: /models/secret\n"
    )
    return TestClient(create_app(stores, Settings(operator_file=file)), base_url="http://localhost")


def test_busy_devices_tell_job_and_worker(named: TestClient, stores: Stores) -> None:
    """A device that a job runs on names it and its worker's host, by UUID and by name, until the job ends."""
    stores.workers.register("rack3:7:1", host="rack3", version="1", devices=["rack3-gpu0"], engines=["embedded"])
    for uuid in ("GPU-1", "GPU-1+GPU-2"):
        stores.devices.seen(make_device(uuid=uuid), [])
    job = stores.jobs.create(make_request(device="rack3-gpu0"))
    claim = stores.jobs.claim(job.id, "rack3:7:1", 60.0)
    stores.jobs.set_device(claim, "GPU-1")
    told = named.get("/v1/devices").json()
    assert [(one["running_job"], one["worker_host"]) for one in told["items"]] == [(job.id, "rack3")] * 2
    assert told["named"][0] == {
        "name": "rack3-gpu0",
        "title": None,
        "is_simulated": False,
        "allow_device_control": True,
        "worker_hosts": ["rack3"],
        "running_job": job.id,
    }
    assert all(not one["worker_hosts"] for one in told["named"][1:])
    stores.jobs.finish(claim, JobState.FINISHED, "trials")
    assert named.get("/v1/devices/GPU-1").json()["running_job"] is None


def test_only_names_get_out(named: TestClient, stores: Stores) -> None:
    """What the operator's names stand for is told nowhere: no UUID of a device that no job ran on, no path (BUG-27)."""
    for path in ("/v1/devices", "/v1/models", "/v1/engines"):
        assert not {"GPU-1", "secret"} & set(re.findall(r"GPU-1|secret", named.get(path).text))
    models = named.get("/v1/models").json()["items"]
    assert models[0] == {"name": "chat-8b", "origin": "operator", "ids": []}
    assert {"llama-3.1-8b"} <= {model["name"] for model in models if model["origin"] == "catalogue"}


def test_engines_tell_their_knobs_and_workers(client: TestClient, stores: Stores) -> None:
    """Each engine tells the hosts of live workers that can start it, and its knobs with default and values."""
    stores.workers.register("rack3:7:1", host="rack3", version="1", devices=["simulated:*"], engines=["simulated"])
    engines = {engine["name"]: engine for engine in client.get("/v1/engines").json()["items"]}
    assert {name: engine["worker_hosts"] for name, engine in engines.items()} == {
        "embedded": [],
        "simulated": ["rack3"],
        **{name: [] for name in SERVERS},
    }
    assert engines["embedded"]["knobs"][1] == {
        "name": "precision",
        "needs_launch": True,
        "default": "fp32",
        "tried": ["fp32", "bf16", "int8"],
        "words": list(MODES),
    }
    simulated = client.get("/v1/devices").json()["named"]
    assert all(one["worker_hosts"] == ["rack3"] for one in simulated)


def test_silent_workers_are_not_counted(stores: Stores) -> None:
    """A worker that said nothing for longer than a few of its signs of life can start nothing."""
    stores.workers.register("rack3:7:1", host="rack3", version="1", devices=["*"], engines=["simulated"])
    assert len(inventory.live_workers(stores, utc_now())) == 1
    assert inventory.live_workers(stores, utc_now() + timedelta(minutes=1)) == []
