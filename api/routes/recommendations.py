"""`/v1/recommendations`: the stored point to use under given limits, with its evidence and how to run it."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Query, Request, Response

from api.recommend_schemas import RecommendationOut, RecommendationQuery
from api.recommender import Recommender

router = APIRouter(prefix="/v1/recommendations", tags=["recommendations"])


@router.get(
    "",
    response_model=RecommendationOut,
    responses={404: {"description": "nothing is stored of the model on the device"}},
)
async def get_recommendation(request: Request, query: Annotated[RecommendationQuery, Query()]) -> Response:
    """Name the stored point with the most tokens per joule inside all limits, or the nearest and what they miss."""
    recommender = cast(Recommender, request.app.state.recommender)
    # As text: FastAPI would check the answer once more, which takes longer than finding it.
    answer = await recommender.answer_in_turn(query)
    return Response(answer.model_dump_json(), media_type="application/json")
