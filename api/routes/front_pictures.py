"""`/v1/jobs/{job}/front.png` and `.svg`: a job's front as a picture, for reports and chats.

Drawn in a thread, one at a time; who sends the tag of a picture back gets 304 as long as nothing changed.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, cast

from fastapi import APIRouter, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from api.figure_answers import FigureAnswers
from api.plot.pictures import HEIGHT, MAX_HEIGHT, MAX_WIDTH, MIN_HEIGHT, MIN_WIDTH, WIDTH, Look, front_picture
from api.plot.render import MEDIA_TYPES, Form
from api.plot.theme import Scheme
from api.routes.query_types import JobId
from api.routes.stores_of import stores_of

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

SchemeQuery = Annotated[Scheme, Query(description="of the ground that it will stand on")]
WidthQuery = Annotated[int, Query(ge=MIN_WIDTH, le=MAX_WIDTH, description="in pixels")]
HeightQuery = Annotated[int, Query(ge=MIN_HEIGHT, le=MAX_HEIGHT, description="in pixels")]
LimitQuery = Annotated[
    float | None,
    Query(gt=0, le=1e9, allow_inf_nan=False, description="limit on the latency axis in ms; by default the job's"),
]
TagHeader = Annotated[str | None, Header(description="entity tags of pictures that are known")]


def _answers(form: Form) -> dict[int | str, dict[str, Any]]:
    """Return what the document says of a picture."""
    return {
        200: {"content": {MEDIA_TYPES[form]: {"schema": {"type": "string", "format": "binary"}}}},
        304: {"description": "unchanged since the tag in If-None-Match"},
    }


@router.get("/{job_id}/front.png", response_class=Response, responses=_answers("png"))
async def get_front_png(
    request: Request,
    job_id: JobId,
    scheme: SchemeQuery = "light",
    width: WidthQuery = WIDTH,
    height: HeightQuery = HEIGHT,
    limit_ms: LimitQuery = None,
    if_none_match: TagHeader = None,
) -> Response:
    """Draw the job's front as PNG."""
    look = Look(form="png", scheme=scheme, width=width, height=height, limit_ms=limit_ms)
    return await _picture(request, job_id, look, if_none_match)


@router.get("/{job_id}/front.svg", response_class=Response, responses=_answers("svg"))
async def get_front_svg(
    request: Request,
    job_id: JobId,
    scheme: SchemeQuery = "light",
    width: WidthQuery = WIDTH,
    height: HeightQuery = HEIGHT,
    limit_ms: LimitQuery = None,
    if_none_match: TagHeader = None,
) -> Response:
    """Draw the job's front as SVG."""
    look = Look(form="svg", scheme=scheme, width=width, height=height, limit_ms=limit_ms)
    return await _picture(request, job_id, look, if_none_match)


async def _picture(request: Request, job_id: str, look: Look, if_none_match: str | None) -> Response:
    """Answer with a picture; its tag is of what it shows, so that nothing is drawn for who has it already."""
    answers, stores = cast(FigureAnswers, request.app.state.figure_answers), await stores_of(request)
    job = await run_in_threadpool(stores.jobs.get, job_id)
    figures = await answers.get(job.id, -1)
    shown = f"{request.app.version} {figures.digest} {job.name} {look}"
    etag = f'"{hashlib.blake2b(shown.encode(), digest_size=16).hexdigest()}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    if if_none_match is not None and etag in (tag.strip().removeprefix("W/") for tag in if_none_match.split(",")):
        return Response(status_code=304, headers=headers)
    async with request.app.state.drawing:  # who waits here keeps no thread busy
        picture = await run_in_threadpool(front_picture, job, json.loads(figures.json), look)
    return Response(picture, media_type=MEDIA_TYPES[look.form], headers=headers)
