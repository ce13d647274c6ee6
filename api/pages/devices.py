"""`/devices`: what each device can be asked and told, where its joules come from, and what runs there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from api import inventory
from api.device_schemas import SeenDeviceOut
from api.pages.job_lines import follow_words
from api.pages.rendering import page
from api.routes.stores_of import StoresDep
from api.schemas import CapabilityOut
from api.stores import utc_now
from probes.settings import DEVICE_KNOBS

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCard:
    """A device as the page shows it."""

    device: SeenDeviceOut
    #: What its energy is read from: the first that can be had, as jobs choose.
    source: CapabilityOut | None
    metrics: list[CapabilityOut]
    controls: list[CapabilityOut]
    #: Of the window that ended last in the job that runs there; the server is told of whole windows only.
    last_window_w: float | None


@router.get("/devices", response_class=HTMLResponse)
def devices_page(request: Request, stores: StoresDep) -> HTMLResponse:
    """Show every device that jobs ran on, and every one that a job may name."""
    found = inventory.devices(stores, request.app.state.operator, utc_now())
    running = [one.running_job for one in found.items if one.running_job]
    watts = stores.job_lists.last_windows_w(running)
    context: dict[str, Any] = {
        "cards": [_card(one, watts) for one in found.items],
        "named": [one for one in found.named if not one.is_simulated],
        "simulated": [one for one in found.named if one.is_simulated],
        "follow": follow_words(stores, running),
    }
    return page(request, stores, "devices.html", context)


def _card(device: SeenDeviceOut, watts: dict[str, float]) -> DeviceCard:
    metrics = [one for one in device.capabilities if one.name not in DEVICE_KNOBS]
    return DeviceCard(
        device=device,
        source=next((one for one in metrics if one.is_available), None),
        metrics=metrics,
        controls=[one for one in device.capabilities if one.name in DEVICE_KNOBS],
        last_window_w=None if device.running_job is None else watts.get(device.running_job),
    )
