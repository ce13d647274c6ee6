"""`/compare?job=ID&job=ID`: up to eight fronts in one chart and one table: nights, devices, models, precisions.

Imported results of other tools have a table of their own: they have no energy, and are on no front.

Without scripts the table is whole, and a form sets the limit; js/compare.mjs draws the chart from what the page brings.
What may not be compared, and what moved, is said by `api.front_comparison`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse

from api.front_answers import FrontAnswers
from api.front_comparison import Compared, compare
from api.front_schemas import ComparedPointOut, ComparisonOut, MoveOut
from api.import_words import load_words, origin_of
from api.pages.rendering import page
from api.plot.axes import metric_words
from api.plot.theme import LETTERS
from api.records import listed_front_out
from api.routes.query_types import JobId
from api.routes.stores_of import stores_of
from api.schemas import FrontOut, PointOut
from api.stores import Stores
from db.errors import StoreError
from db.job import Job

MAX_COMPARED = len(LETTERS)
#: Fronts that the page offers; the search of js/compare.mjs asks for more.
NUM_OFFERED = 40
#: Of operating points between two fronts, those that moved most.
NUM_MOVES = 12
#: Results of other tools that the page shows, those of the newest files.
NUM_IMPORTED = 40

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A front as a line of the table: its best point inside the limit, if it has one there."""

    letter: str
    job: Job
    front: FrontOut
    is_estimate: bool
    best: PointOut | None
    #: Tokens per joule over those of the first front's best; None where that is no fair question.
    gain: float | None

    @property
    def title(self) -> str:
        """What the job is called."""
        return self.job.name or f"Job {self.job.id[:8]}"


@router.get("/compare", response_class=HTMLResponse)
async def compare_page(
    request: Request,
    job: Annotated[list[JobId], Query(max_length=64)] = [],  # noqa: B006 -- read only
    limit_ms: Annotated[str, Query(max_length=40)] = "",
) -> HTMLResponse:
    """Show fronts side by side."""
    stores = await stores_of(request)
    asked = list(dict.fromkeys(job))
    compared, complaints = await _found(request, stores, asked[:MAX_COMPARED])
    if len(asked) > MAX_COMPARED:
        complaints.append(f"{len(asked)} jobs were given; shown are the first {MAX_COMPARED}.")
    limit, complaint = _limit_of(limit_ms)
    complaints += [complaint] if complaint else []
    return await run_in_threadpool(_page, request, stores, compared, limit, complaints)


async def _found(request: Request, stores: Stores, asked: Sequence[str]) -> tuple[list[Compared], list[str]]:
    """Return the jobs that are there with their fronts, each once, and what is wrong with the others."""
    answers = cast(FrontAnswers, request.app.state.front_answers)
    compared: dict[str, Compared] = {}
    complaints = []
    for job_id in asked:
        try:
            answer = await answers.get(job_id)
            front = await run_in_threadpool(FrontOut.model_validate_json, answer.json)
            found = await run_in_threadpool(stores.jobs.get, front.job)
        except StoreError as error:
            complaints.append(f"Left out: {error}.")
        else:
            compared[front.job] = Compared(job=found, front=front)
    return list(compared.values()), complaints


def _limit_of(text: str) -> tuple[float | None, str]:
    """Return the limit that the form sent, and what is wrong with it."""
    if not text.strip():
        return None, ""
    try:
        limit_ms = float(text)
    except ValueError:
        limit_ms = 0.0
    if 0 < limit_ms <= 1e9:
        return limit_ms, ""
    return None, f"The limit is {text!r}: give milliseconds above 0, or leave it empty."


def _page(
    request: Request, stores: Stores, compared: Sequence[Compared], limit: float | None, complaints: Sequence[str]
) -> HTMLResponse:
    found = compare(compared, () if limit is None else (limit,)) if len(compared) > 1 else None
    metric = compared[0].front.latency_metric if len(compared) == 1 else found.latency_metric if found else None
    limit = _default_limit(compared, metric) if limit is None else limit
    lines = _lines(compared, metric, limit)
    context = {
        "lines": lines,
        "letters": {line.job.id: line.letter for line in lines},
        "metric": metric,
        "metric_words": metric and metric_words(metric),
        "limit_ms": limit if metric else None,
        "warnings": found.warnings if found else [],
        "complaints": complaints,
        "moves": _moves(found),
        "num_shared": sum(len(point.places) > 1 for point in found.points) if found else 0,
        "imported": [
            (one, result, origin_of(one.tool), load_words(result))
            for one, result in stores.imports.latest_results(limit=NUM_IMPORTED)
        ],
        "num_imported": stores.imports.count_results(),
        "offered": [listed_front_out(front) for front in stores.front_lists.list(limit=NUM_OFFERED)],
        "max_compared": MAX_COMPARED,
        "is_simulated": all(line.front.is_simulated for line in lines),
        "is_estimate": all(line.is_estimate and not line.front.is_simulated for line in lines),
        "unmeasured": [line.letter for line in lines if line.is_estimate or line.front.is_simulated],
        "chart": _chart(lines, metric, limit) if lines and metric else None,
    }
    return page(request, stores, "compare.html", context)


def _default_limit(compared: Sequence[Compared], metric: str | None) -> float | None:
    """Return the tightest limit of the jobs on the axis that their fronts share."""
    asked = [limit.bound_ms for one in compared for limit in one.job.request.sla if limit.metric == metric]
    return min(asked, default=None)


def _lines(compared: Sequence[Compared], metric: str | None, limit: float | None) -> list[Line]:
    best = [_best(one.front, limit if metric else None) for one in compared]
    reference = best[0].tok_per_j.value if best and best[0] is not None else None
    return [
        Line(
            letter=letter,
            job=one.job,
            front=one.front,
            is_estimate=any(point.is_estimate for point in one.front.points),
            best=point,
            gain=point.tok_per_j.value / reference if point is not None and reference and metric else None,
        )
        for letter, one, point in zip(LETTERS, compared, best, strict=False)
    ]


def _best(front: FrontOut, limit: float | None) -> PointOut | None:
    """Return the point with the most tokens per joule inside the limit, as `api.front_comparison` does."""
    inside = [point for point in front.points if limit is None or point.latency_ms.value <= limit]
    return max(inside, key=lambda point: point.tok_per_j.value, default=None)


def _moves(found: ComparisonOut | None) -> list[tuple[ComparedPointOut, MoveOut]]:
    """Return how operating points moved that several fronts have, those that moved most beyond intervals first."""
    moves = [(point, move) for point in found.points for move in point.moves] if found else []

    def moved(one: tuple[ComparedPointOut, MoveOut]) -> tuple[bool, float]:
        move = one[1]
        is_beyond = bool(move.has_tok_per_j_moved or move.has_latency_moved)
        return is_beyond, abs((move.tok_per_j_ratio or 1.0) - 1)

    return sorted(moves, key=moved, reverse=True)[:NUM_MOVES]


def _chart(lines: Sequence[Line], metric: str, limit: float | None) -> dict[str, Any]:
    """Return what js/compare.mjs draws: `Comparison` of js/charts.mjs."""
    return {
        "metric": metric,
        "limit_ms": limit,
        "fronts": [_drawn(line) for line in lines],
    }


def _drawn(line: Line) -> dict[str, Any]:
    return {
        "letter": line.letter,
        "job": line.job.id,
        "title": line.title,
        "is_simulated": line.front.is_simulated,
        "is_estimate": line.is_estimate,
        "points": [
            {
                "trial": point.trial,
                "knobs": point.knobs,
                "tok_per_j": point.tok_per_j.value,
                "tok_per_j_low": point.tok_per_j.low,
                "tok_per_j_high": point.tok_per_j.high,
                "latency_ms": point.latency_ms.value,
                "output_tok_s": point.output_tok_s.value,
                "mean_power_w": point.mean_power_w,
                "is_leading": point.is_leading,
            }
            for point in line.front.points
        ],
    }
