"""JSON out: lists of fronts, and several fronts side by side. What the fields mean stands in docs/glossary.md."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

from api.schemas import EstimateOut


class ListedFrontOut(BaseModel):
    """The latest front of a job, without its points."""

    job: str
    name: str
    #: Of the job.
    state: str
    model: str
    engine: str
    device: str
    is_simulated: bool
    created_at: datetime
    latency_metric: str
    hypervolume: float
    latency_reference_ms: float | None
    num_points: int
    #: The schedule whose night the job is, by name; null for other jobs.
    schedule: str | None
    night: str | None


class FrontsOut(BaseModel):
    """Fronts, newest job first; `next` continues the list when it is not null."""

    items: list[ListedFrontOut]
    next: str | None


class ComparedFrontOut(BaseModel):
    """One of the fronts that are compared, and where its figures come from."""

    job: str
    name: str
    model: str
    engine: str
    device: str
    is_simulated: bool
    is_final: bool
    latency_metric: str
    #: Null on a front without points.
    energy_scope: str | None
    energy_method: str | None
    is_estimate: bool | None
    num_points: int
    #: Up to its own reference, as stored.
    hypervolume: float
    #: Up to the reference that all of them share; null without one.
    common_hypervolume: float | None


class PlaceOut(BaseModel):
    """Where a point stands on one of the fronts."""

    job: str
    trial: int
    tok_per_j: EstimateOut
    latency_ms: EstimateOut


class MoveOut(BaseModel):
    """How a point moved from the first front that has it to a later one."""

    job: str
    #: Later over earlier; null where that is no number.
    tok_per_j_ratio: float | None
    latency_ratio: float | None
    #: Whether the difference is larger than the wider half interval; null where neither has an interval.
    has_tok_per_j_moved: bool | None
    has_latency_moved: bool | None


class ComparedPointOut(BaseModel):
    """One operating point on the fronts that have it."""

    knobs: dict[str, int | float | str]
    is_in_all: bool
    places: list[PlaceOut]
    moves: list[MoveOut]


class BestPlaceOut(BaseModel):
    """The most tokens per joule that a front has inside a limit; null where no point of it is inside."""

    job: str
    trial: int | None
    tok_per_j: EstimateOut | None


class LimitOut(BaseModel):
    """What each front offers inside a limit on the latency axis."""

    limit_ms: float
    best: list[BestPlaceOut]


class ComparisonOut(BaseModel):
    """Fronts side by side, in the order that they were asked for."""

    #: Null when the fronts are over different latencies: then there is no common reference and no limit.
    latency_metric: str | None
    latency_reference_ms: float | None
    fronts: list[ComparedFrontOut]
    points: list[ComparedPointOut]
    limits: list[LimitOut]
    #: What keeps the figures from being comparable, in words.
    warnings: list[str]
