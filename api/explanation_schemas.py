"""An explanation as JSON. Field names are public; what they mean stands in docs/glossary.md."""

from __future__ import annotations

from pydantic import BaseModel

from api.schemas import EstimateOut, MissOut


class ComparedOut(BaseModel):
    """An operating point by what all its windows showed together."""

    trial: int
    knobs: dict[str, int | float | str]
    num_windows: int
    is_feasible: bool
    #: Whether all its windows ended before their time.
    is_cut: bool
    tok_per_j: EstimateOut
    latency_ms: EstimateOut
    output_tok_s: EstimateOut


class DifferenceOut(BaseModel):
    """The recommended point's figure over another's."""

    ratio: float
    #: What both intervals leave open at most; null where one is not known.
    low: float | None
    high: float | None
    #: Whether they differ by more than the wider of the two half widths.
    is_told_apart: bool


class GainOut(BaseModel):
    """What the recommended point has over another one."""

    #: default, best_static_clock or highest_throughput.
    against: str
    reference: ComparedOut | None
    #: Why there is no reference; null where there is one.
    missing: str | None
    #: Of so many clocks measured at default engine settings a static clock is the best; null for what is no clock.
    num_clocks: int | None
    tok_per_j: DifferenceOut | None
    latency: DifferenceOut | None
    output_tok_s: DifferenceOut | None


class EffectOut(BaseModel):
    """Which share of a figure's variance a knob explains."""

    alone: float
    in_all: float


class RatioOut(BaseModel):
    """A figure over what it was before; the extremes are null where a model says so."""

    mean: float
    lowest: float | None
    highest: float | None


class KnobEffectOut(BaseModel):
    """What one knob moved; shares are null where no model is good enough to tell."""

    knob: str
    tok_per_j: EffectOut | None
    latency: EffectOut | None
    from_value: int | float | str
    to_value: int | float | str
    #: Pairs of measured points that differ in nothing else; 0 where the ratios are a model's.
    num_pairs: int
    tok_per_j_ratio: RatioOut
    latency_ratio: RatioOut


class SpentOut(BaseModel):
    """What the job's trials took."""

    num_trials: int
    num_repeats: int
    num_reused: int
    wall_s: float
    device_s: float
    joules: float
    #: How they were obtained: more than one where the meter changed.
    joules_methods: list[str]
    num_without_device_s: int
    num_without_joules: int


class ExplanationOut(BaseModel):
    """What a job found, and what moved it."""

    job: str
    model: str
    is_simulated: bool
    is_final: bool
    ended_because: str | None
    latency_metric: str
    #: Of the newest usable measurement; null without one.
    energy_scope: str | None
    energy_method: str | None
    is_estimate: bool | None
    #: The most tokens per joule inside the limits; null where no point is.
    recommended: ComparedOut | None
    #: Trials whose tokens per joule cannot be told apart from those, the fastest first.
    tied_with: list[int]
    gains: list[GainOut]
    #: The one that moved tokens per joule most first.
    knobs: list[KnobEffectOut]
    #: Points that the shares rest on, and how well they predict each other; null where there are too few.
    num_points: int
    tok_per_j_r2: float | None
    latency_r2: float | None
    nearest_misses: list[MissOut]
    spent: SpentOut
    #: All of it in words.
    sentences: list[str]
