"""`/metrics`: the service's figures for Prometheus."""

from __future__ import annotations

from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from api.metrics import Metrics

router = APIRouter(tags=["health"])

_ANSWERS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


@router.get("/metrics", response_class=Response, responses=_ANSWERS)
def get_metrics(request: Request) -> Response:
    """Show how much there is of everything, how long requests take, and what the process uses."""
    metrics = cast(Metrics, request.app.state.metrics)
    return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)
