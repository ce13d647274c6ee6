"""`/v1/jobs/{job}/figures`: the figures of all trials of a job by column, for charts and tables."""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response

from api.figure_answers import FigureAnswers
from api.figures_schemas import FiguresOut

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_UNCHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "unchanged since the tag in If-None-Match"}}


@router.get("/{job_id}/figures", response_model=FiguresOut, responses=_UNCHANGED)
async def get_figures(
    request: Request,
    job_id: str,
    after: Annotated[
        int, Query(ge=-1, le=2**31 - 1, description="only trials with a larger number; `next_after` of an answer")
    ] = -1,
    if_none_match: Annotated[str | None, Header(description="entity tags of answers that are known")] = None,
    accept_encoding: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Show the figures of every trial of a job, one list a figure, and the points of its front."""
    answers = cast(FigureAnswers, request.app.state.figure_answers)
    answer = await answers.get(job_id, after)
    return answer.response(accept_encoding=accept_encoding, if_none_match=if_none_match)
