"""What moved between two nights, as JSON: stored with the night and answered as it is. Field names are public."""

from __future__ import annotations

from pydantic import BaseModel, Field

from api.schemas import EstimateOut
from tuner.request import KnobValue


class FigureDriftOut(BaseModel):
    """One figure of a point on two nights."""

    before: EstimateOut | None
    after: EstimateOut | None
    #: Relative: -0.05 is 5 % less.
    change: float | None
    #: Whether the change is beyond both intervals; null where they cannot tell.
    has_moved: bool | None


class PointDriftOut(BaseModel):
    """A point of the front before, measured again."""

    knobs: dict[str, KnobValue]
    #: held, moved, not_told, not_measured.
    state: str
    #: Why it was not told or not measured.
    reason: str | None
    tok_per_j: FigureDriftOut | None
    latency_ms: FigureDriftOut | None
    #: What the intervals speak of: sessions (launches) or window (the only one).
    interval_of: str | None


class GonePointOut(BaseModel):
    """A point of the front before that is on no front now."""

    knobs: dict[str, KnobValue]
    reason: str


class ProvenanceChangeOut(BaseModel):
    """Something that figures depend on and that is another than the night before."""

    #: device, driver, engine, model, energy, workload, window, prompts, power_limit, clock_event:NAME, temperature,
    #: clock.
    name: str
    before: str
    after: str
    words: str


class DriftOut(BaseModel):
    """What moved since the night before, and what else is another."""

    #: The earlier night's job; null for the first night.
    compared_with: str | None
    is_simulated: bool
    latency_metric: str
    #: Whether a point that is in use moved beyond its intervals.
    has_moved: bool
    points: list[PointDriftOut] = Field(default_factory=list)
    vanished: list[GonePointOut] = Field(default_factory=list)
    #: Knobs of points that are on the front now and were not before.
    came: list[dict[str, KnobValue]] = Field(default_factory=list)
    #: Of both fronts up to one reference latency.
    hypervolume_before: float | None = None
    hypervolume_after: float | None = None
    hypervolume_change: float | None = None
    #: Most telling first.
    changes: list[ProvenanceChangeOut] = Field(default_factory=list)
    sentences: list[str]
