"""What charts on pages are made of: Vega as a JavaScript module, and the charts' specifications.

The module's name has the version in it, so that browsers may keep it for good; it is open to everybody, as other static
files are. Knows nothing of jobs.
"""

from __future__ import annotations

import gzip
import hashlib
from typing import Annotated, cast

from fastapi import APIRouter, Header, HTTPException, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from api.packing import takes_gzip
from api.plot.axes import Origin, ScaleType
from api.plot.bundle import VERSION, Bundle, BundleError
from api.plot.fitting import Legend
from api.plot.specs import Asked, Name, Unit, spec_json
from api.plot.theme import Scheme

#: A metric's name as job files have it.
Metric = Annotated[str, Query(pattern="^(ttft|tpot|itl|e2e)_(mean|p50|p90|p95|p99)_ms$")]

router = APIRouter(include_in_schema=False)


@router.get("/static/vega-{version}.mjs")
async def vega(request: Request, version: str, accept_encoding: Annotated[str, Header()] = "") -> Response:
    """Send Vega, Vega-Lite and vega-embed; the first who asks may wait until they are bundled."""
    if version != VERSION:
        raise HTTPException(404, f"there is no Vega {version[:40]!r} here; load the page again")
    bundle = cast(Bundle, request.app.state.bundle)
    try:
        packed = await run_in_threadpool(bundle.packed)
    except BundleError as error:
        raise HTTPException(503, str(error)) from error
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    is_packed = takes_gzip(accept_encoding)
    if is_packed:
        headers["Content-Encoding"] = "gzip"
    return Response(packed if is_packed else gzip.decompress(packed), media_type="text/javascript", headers=headers)


@router.get("/plot/specs/{name}")
async def chart_spec(
    name: Annotated[Name, Path()],
    scheme: Annotated[Scheme, Query()] = "light",
    origin: Annotated[Origin, Query()] = "measured",
    metric: Metric = "tpot_p99_ms",
    x: Annotated[ScaleType, Query()] = "linear",
    y: Annotated[ScaleType, Query()] = "linear",
    unit: Annotated[Unit, Query()] = "min",
    has_clock: Annotated[bool, Query()] = True,
    legend: Annotated[list[Legend], Query(max_length=3)] = [],  # noqa: B006 -- read only
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Send a chart's Vega-Lite specification without rows."""
    asked = Asked(
        scheme=scheme, origin=origin, metric=metric, x=x, y=y, unit=unit, has_clock=has_clock, legends=tuple(legend)
    )
    body = await run_in_threadpool(spec_json, name, asked)
    etag = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
    headers = {"ETag": etag, "Cache-Control": "private, max-age=300"}
    if if_none_match == etag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)
