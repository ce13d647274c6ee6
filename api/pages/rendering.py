"""Fill in a page's template: every text is escaped by Jinja2, and what stands on every page is added.

Every page says which devices are blocked because what was found on them could not be put back. Knows no single page.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, PackageLoader, select_autoescape

from api.front_words import miss_words, tied_words
from api.pages.moments import ago, lasting, utc_iso, utc_words
from api.plot.bundle import PATH as VEGA_PATH
from api.quality_words import quality_words
from api.records import device_out
from api.stores import Stores, utc_now
from db.device import ControlState

templates = Jinja2Templates(
    env=Environment(loader=PackageLoader("api", "templates"), autoescape=select_autoescape(["html", "svg"]))
)

#: Of chart_head.html.
templates.env.globals["vega_path"] = VEGA_PATH
templates.env.filters["tied_words"] = tied_words
templates.env.filters["miss_words"] = miss_words
templates.env.filters["quality_words"] = quality_words
templates.env.filters["ago"] = lambda at: ago(at, utc_now())
templates.env.filters["utc_words"] = utc_words
templates.env.filters["utc_iso"] = utc_iso
templates.env.filters["lasting"] = lasting


def page(request: Request, stores: Stores, name: str, context: dict[str, Any], *, status: int = 200) -> HTMLResponse:
    """Return a template filled in, with what stands on every page."""
    devices = [device_out(device) for device in stores.devices.list()]
    blocked = [device for device in devices if device.control_state == ControlState.RESTORE_FAILED]
    return templates.TemplateResponse(
        request, name, {"devices": devices, "blocked": blocked, **context}, status_code=status
    )
