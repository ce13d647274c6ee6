"""JSON out: the figures of all trials of a job, by column. What the fields mean stands in docs/glossary.md."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

from api.schemas import TrialOut

#: A value a trial; null where it is not known.
Numbers = list[float | None]
Words = list[str | None]


class TrialColumnsOut(BaseModel):
    """The trials of a job by number and attempt: one list a figure, all of one length."""

    number: list[int]
    attempt: list[int]
    state: list[str]
    reason: Words
    detail: Words
    role: list[str]
    #: By name of the knob; null at points that do not have it.
    knobs: dict[str, list[int | float | str | None]]
    tok_per_j: Numbers
    tok_per_j_low: Numbers
    tok_per_j_high: Numbers
    output_tok_s: Numbers
    mean_power_w: Numbers
    #: By metric, as in `metrics`.
    latencies_ms: dict[str, Numbers]
    #: Bounds of `latency_metric`.
    latency_low_ms: Numbers
    latency_high_ms: Numbers
    mean_clock_mhz: Numbers
    num_finished: list[int | None]
    window_s: Numbers
    #: Of the host's CPU beside a GPU; null where it was not measured or must not be used.
    host_power_w: Numbers
    #: Perplexity over the reference's; null where quality is not known.
    perplexity_ratio: Numbers
    finished_at: list[datetime | None]
    #: Seconds that the job had kept its device by the end of the trial; null while it runs.
    device_s: Numbers
    #: Of the job's front after the trial, by value, up to `latency_reference_ms`; null while it runs.
    hypervolume: Numbers


class FigurePointOut(BaseModel):
    """A point of the job's front: the mean over its windows, as in the front itself."""

    #: Which stands for the point.
    trial: int
    tok_per_j: float
    tok_per_j_low: float | None
    tok_per_j_high: float | None
    latency_ms: float
    latency_low_ms: float | None
    latency_high_ms: float | None
    output_tok_s: float
    mean_power_w: float | None
    gain_over_default: float | None
    num_windows: int
    interval_of: str
    is_leading: bool
    tied_with: list[int]


class FiguresOut(BaseModel):
    """What charts and tables of a job show; rounded to six digits, unlike the trials and the front themselves."""

    job: str
    model: str
    state: str
    #: True when every figure comes from a model of a device, and nothing was measured.
    is_simulated: bool
    #: True when the energy was not measured.
    is_estimate: bool
    latency_metric: str
    latency_reference_ms: float | None
    sla: dict[str, float]
    #: Names of all knobs that trials have, those that the job searched first.
    knobs: list[str]
    #: The trial of the default configuration, as the job's first is; null before it ended.
    default: int | None
    #: Names of the latency figures that are told.
    metrics: list[str]
    #: Send it as `after` to get what came later; every trial up to it has ended.
    next_after: int
    trials: TrialColumnsOut
    #: In order of latency.
    front: list[FigurePointOut]


class TraceOut(BaseModel):
    """The device's power over a window, one list a figure."""

    #: From the window's start.
    time_s: list[float]
    power_w: list[float]


class TrialDetailOut(TrialOut):
    """One attempt at one point, with the trace of its window."""

    job: str
    #: Null where no trace was kept.
    trace: TraceOut | None
