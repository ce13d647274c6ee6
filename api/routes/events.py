"""`/v1/jobs/{job}/events`: what happens to a job, as server-sent events."""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from api.event_streams import EventStreams

router = APIRouter(tags=["jobs"])

EVENT_STREAM = "text/event-stream"
_EXAMPLE = 'id: 7\nevent: trial\ndata: {"job": "5f2c...", "number": 3, "state": "complete", "tok_per_j": 2.1}\n\n'
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {EVENT_STREAM: {"schema": {"type": "string"}, "example": _EXAMPLE}}},
    204: {"description": "the job has ended, and nothing came after that event"},
    429: {"description": "too many event streams", "content": {"application/problem+json": {}}},
}
#: Whole numbers that JSON and JavaScript keep exactly.
_MAX_ID = 2**53 - 1


class EventStreamResponse(StreamingResponse):
    """A stream of server-sent events."""

    media_type = EVENT_STREAM


@router.get("/v1/jobs/{job_id}/events", response_class=EventStreamResponse, responses=_ANSWERS)
async def follow_job(
    request: Request,
    job_id: str,
    after: Annotated[int, Query(ge=0, le=_MAX_ID, description="number of the last event that is known")] = 0,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=_MAX_ID, description="the same, as browsers send it when they come back")
    ] = None,
) -> Response:
    """Follow a job: `job` when its state changes, `trial_started`, `trial` when one ends; its last event ends it.

    Each event has a number; who sends back the last one that it saw misses nothing.
    """
    streams = cast(EventStreams, request.app.state.event_streams)
    frames = await streams.open(job_id, after if last_event_id is None else last_event_id)
    if frames is None:
        return Response(status_code=204)
    # Proxies that collect an answer before they pass it on would hold events back.
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return EventStreamResponse(frames, headers=headers)
