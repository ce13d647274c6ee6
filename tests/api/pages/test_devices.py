"""The devices' page: capabilities with reasons, where joules come from, and who sets what."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.stores import Stores
from tests.api.pages.browser import Pages, faults_in_every_view
from tests.api.pages.scenes import make_trials, running_job, see_device
from tests.db.factories import make_capability, make_device, make_request


@pytest.fixture
def client(stores: Stores) -> TestClient:
    return TestClient(create_app(stores), base_url="http://localhost")


def test_without_devices_the_page_says_how_to_look(client: TestClient) -> None:
    """An empty page has the command that tells what this machine can do, and the simulated devices by name."""
    page = client.get("/devices").text
    assert "wattfront doctor" in page
    assert "<code>simulated:h100-sxm</code>" in page


def test_a_device_shows_what_it_can_and_cannot(client: TestClient, stores: Stores) -> None:
    """What can be read and set, and why something cannot, are told in words, with driver and identity."""
    see_device(stores)
    page = client.get("/devices").text
    assert '<li class="can"><span class="unseen">available: </span><b>energy_counter</b>' in page
    assert '<li class="cannot"><span class="unseen">not available: </span><b>sm_clock_cap_mhz</b>' in page
    assert "NVML: no permission; run the guard" in page
    assert "580.65.06" in page
    assert 'href="/v1/devices/GPU-1"' in page


def test_energy_comes_from_a_metric_never_from_a_knob(client: TestClient, stores: Stores) -> None:
    """A device that can be set but not read is said to give no energy."""
    stores.devices.seen(make_device(), [make_capability(name="power_cap_w", reason="200 to 700 W")])
    assert "nothing: no metric of it can be had" in client.get("/devices").text


def test_live_watts_are_not_invented(client: TestClient, stores: Stores) -> None:
    """A free device shows no power but where to see it; a running one that of its last window, called so."""
    see_device(stores)
    assert "mean of the window that ended last" not in client.get("/devices").text
    assert "wattfront watch" in client.get("/devices").text
    claim = running_job(stores, trials=make_trials()[:1])
    page = client.get("/devices").text
    assert '308&nbsp;<span class="unit">W</span></b> <span class="quiet">mean of the window that ended last' in page
    assert f'<a href="/jobs/{claim.job_id}">job {claim.job_id[:8]}</a>' in page


def test_a_device_that_could_not_be_restored_is_told(client: TestClient, stores: Stores) -> None:
    """Its state, the reason and the command that helps are on the page."""
    see_device(stores)
    stores.devices.set_control("GPU-1", "restore_failed", "not permitted")
    page = client.get("/devices").text
    assert 'class="state restore_failed">restore failed' in page
    assert "wattfront restore" in page


def test_text_is_shown_as_text(client: TestClient, stores: Stores) -> None:
    """A device's name, driver and details that look like markup are escaped."""
    see_device(stores, name="<i>x</i>", driver="<script>", details=(("<b>", "<u>"),))
    page = client.get("/devices").text
    for raw in ("<i>x", "<script>", "<b>:", "<u>"):
        assert raw not in page


def test_it_works_at_every_width_in_both_schemes(open_page: Pages, stores: Stores) -> None:
    """With a running and a blocked device axe finds nothing, and the page never scrolls sideways."""
    running_job(stores, make_request(), trials=make_trials()[:1])
    see_device(stores, uuid="GPU-" + "0123456789abcdef" * 3, name="NVIDIA H200")
    stores.devices.set_control("GPU-" + "0123456789abcdef" * 3, "restore_failed", "not permitted")
    assert faults_in_every_view(open_page("/devices")) == []
