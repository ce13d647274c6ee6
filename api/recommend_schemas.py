"""What a recommendation looks like on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from api.routes.query_types import Word
from api.schemas import EstimateOut, QualityOut

#: Of a bound: by less than this a figure divided by it is no number that JSON has.
_LEAST = 1e-6
_Milliseconds = Annotated[float | None, Field(ge=_LEAST, le=1e9, allow_inf_nan=False)]


class RecommendationQuery(BaseModel):
    """What is asked: a model on a device, and limits that all must hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[Word, Field(description="as jobs name it")]
    device: Annotated[Word, Field(description="as jobs name it, or its UUID")]
    engine: Annotated[Word | None, Field(description="only points of this engine")] = None
    workload: Annotated[
        str | None,
        Field(pattern="^[0-9a-f]{64}$", description="only points under this load; by default the newest one's"),
    ] = None
    ttft_p99_ms: _Milliseconds = None
    tpot_p99_ms: _Milliseconds = None
    itl_p99_ms: _Milliseconds = None
    e2e_p99_ms: _Milliseconds = None
    power_w: Annotated[
        float | None,
        Field(ge=_LEAST, le=1e9, allow_inf_nan=False, description="mean power at most, of the energy's scope"),
    ] = None
    min_output_tok_s: Annotated[float | None, Field(ge=_LEAST, le=1e12, allow_inf_nan=False)] = None
    min_quality: Annotated[
        float | None, Field(gt=0, le=1, description="share of the widest precision's quality, as in 0.99")
    ] = None
    max_age_hours: Annotated[
        float | None, Field(gt=0, le=1e6, allow_inf_nan=False, description="older points are marked as stale")
    ] = None


class LimitOut(BaseModel):
    """A limit that was asked for, and the point's figure."""

    name: str
    bound: float
    #: True where the figure must be at least the bound.
    is_least: bool
    figure: EstimateOut
    #: Share of the bound that is left.
    margin: float
    #: Whether the far end of the interval is inside, too; null where that end is not known.
    is_certain: bool | None


class OverDefaultOut(BaseModel):
    """Tokens per joule over those of the default point of the same job."""

    trial: int
    ratio: float
    low: float | None
    high: float | None
    is_told_apart: bool


class ProofOut(BaseModel):
    """Where the figures come from."""

    num_windows: int
    num_sessions: int
    window_s: float
    interval_of: str
    energy_scope: str
    energy_method: str
    energy_detail: str
    device_uuids: list[str]
    driver: str | None
    engine_version: str
    model_hash: str
    quality: QualityOut | None
    workload: str
    #: In words.
    load: str


class RecommendedOut(BaseModel):
    """The point to use."""

    job: str
    trial: int
    engine: str
    #: Those that the job searched.
    knobs: dict[str, int | float | str]
    is_simulated: bool
    #: True when nothing was measured.
    is_estimate: bool
    #: What must be said of figures that nobody measured; null for measured ones.
    label: str | None
    tok_per_j: EstimateOut
    output_tok_s: EstimateOut
    mean_power_w: float
    #: In milliseconds by name, as far as they are known.
    latencies: dict[str, EstimateOut]
    #: Share of the widest precision's quality; null where it was not measured.
    quality_share: float | None
    limits: list[LimitOut]
    #: Null where the default point gave no figures.
    over_default: OverDefaultOut | None
    evidence: ProofOut
    measured_at: datetime
    age_hours: float
    is_stale: bool
    #: Why: `too_old`, `driver_changed`, `engine_changed`, `model_changed`.
    stale_because: list[str]
    #: Commands to copy, by engine; `nvidia_smi` sets clocks and power where the point does.
    run: dict[str, str]
    #: Paths of the exports by form.
    exports: dict[str, str]


class MissedOut(BaseModel):
    """A limit that a point is outside of."""

    name: str
    bound: float
    is_least: bool
    #: Null where it is not known, which is no better than missing the limit.
    figure: float | None
    #: Share of the bound.
    missed_by: float


class NearOut(BaseModel):
    """A point that is outside of a limit."""

    job: str
    trial: int
    tok_per_j: float
    output_tok_s: float
    mean_power_w: float
    missed: list[MissedOut]


class OtherLoadOut(BaseModel):
    """Points that were not compared with the others: of another load or device."""

    workload: str
    load: str
    device_uuid: str | None
    num_points: int
    measured_at: datetime


class RecommendationOut(BaseModel):
    """The stored point with the most tokens per joule inside the limits; or the nearest, and what they miss."""

    model: str
    device: str
    #: Null when no point is inside every limit.
    recommended: RecommendedOut | None
    #: Filled when none is.
    nearest: list[NearOut]
    why: str
    #: How points are judged: `mean`, by the mean of their windows.
    judged_by: str
    #: Points that were compared.
    num_points: int
    other_loads: list[OtherLoadOut]
