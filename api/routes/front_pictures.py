"""`/v1/jobs/{job}/front.png` and `.svg`: a job's front as a picture, for reports and chats.

Drawn in a process of its own, one at a time, and few may wait: vl-convert keeps Python's lock for as long as it draws,
so that in a thread every other request would wait. Who sends the tag of a picture back gets 304 as long as nothing
changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, cast

from fastapi import APIRouter, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from api.errors import Refusal, TooManyRequests
from api.figure_answers import FigureAnswers
from api.packing import Packed
from api.plot.pictures import HEIGHT, MAX_HEIGHT, MAX_WIDTH, MIN_HEIGHT, MIN_WIDTH, WIDTH, Look, heading
from api.plot.render import MEDIA_TYPES, Form, titled
from api.plot.rows import front_rows
from api.plot.theme import Scheme
from api.routes.query_types import JobId
from api.routes.stores_of import stores_of
from db.job import Job

#: Pictures that are asked for at once: each takes a core for half a second, and who waits longer has gone away.
MAX_WAITING = 8
_RETRY_AFTER_S = 5
#: The largest picture of ten thousand points takes a sixth of it on a busy machine.
_MAX_DRAWING_S = 60.0
#: A chart comes in and a picture goes out; nothing is read from anywhere else.
_DRAWER = """
import json, sys, vl_convert
form, spec = sys.argv[1], json.load(sys.stdin)
if form == "png":
    drawn = vl_convert.vegalite_to_png(spec, scale=1, allowed_base_urls=[])
else:
    drawn = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[]).encode()
sys.stdout.buffer.write(drawn)
"""

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

SchemeQuery = Annotated[Scheme, Query(description="of the ground that it will stand on")]
WidthQuery = Annotated[int, Query(ge=MIN_WIDTH, le=MAX_WIDTH, description="in pixels")]
HeightQuery = Annotated[int, Query(ge=MIN_HEIGHT, le=MAX_HEIGHT, description="in pixels")]
LimitQuery = Annotated[
    float | None,
    Query(gt=0, le=1e9, allow_inf_nan=False, description="limit on the latency axis in ms; by default the job's"),
]
TagHeader = Annotated[str | None, Header(description="entity tags of pictures that are known")]


class NotDrawn(Refusal):
    """Ask for a smaller picture, or again when the machine has less to do."""

    status = 503
    title = "not drawn"


class Drawing:
    """Lets one picture be drawn at a time."""

    def __init__(self) -> None:
        self._one = asyncio.Semaphore(1)
        self._num_asked = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until it is one's turn, keeping no thread busy. Raises TooManyRequests where too many wait."""
        if self._num_asked >= MAX_WAITING:
            words = f"{MAX_WAITING} pictures wait to be drawn, and more are not taken; ask again"
            raise TooManyRequests(f"{words} in {_RETRY_AFTER_S} s", retry_after_s=_RETRY_AFTER_S)
        self._num_asked += 1
        try:
            async with self._one:
                yield
        finally:
            self._num_asked -= 1


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
    async with cast(Drawing, request.app.state.drawing).turn():
        if await request.is_disconnected():  # nobody looks at it any more
            return Response(status_code=204)
        picture = await drawn(await run_in_threadpool(_chart, job, figures, look), look.form)
    return Response(picture, media_type=MEDIA_TYPES[look.form], headers=headers)


def _chart(job: Job, figures: Packed, look: Look) -> bytes:
    """Return the titled chart as JSON; figures of ten thousand trials are megabytes, which the loop must not unpack."""
    from api.plot import front_chart  # with Altair, which takes a second

    found = json.loads(figures.json)
    rows = front_rows(found, limit_ms=look.limit_ms)
    spec = front_chart.build(rows, look.scheme, width=look.width, height=look.height)
    return json.dumps(titled(spec, heading(job, found), look.scheme)).encode()


async def drawn(chart: bytes, form: Form) -> bytes:
    """Return a chart as a picture, drawn by a process that ends with it. Raises NotDrawn."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", _DRAWER, form, stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        picture, words = await asyncio.wait_for(process.communicate(chart), _MAX_DRAWING_S)
    except TimeoutError as error:
        raise NotDrawn(f"the picture was not drawn within {_MAX_DRAWING_S:g} s; ask for a smaller one") from error
    finally:
        if process.returncode is None:  # too slow, or nobody waits any more
            process.kill()
            await process.wait()
    if process.returncode:
        last = words.decode(errors="replace").strip().rpartition("\n")[2]
        raise NotDrawn(f"the picture was not drawn: {last or f'the process ended with {process.returncode}'}")
    return picture
