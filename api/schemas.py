"""JSON out. Field names are public; what they mean stands in docs/glossary.md."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel

#: Of FrontOut as it is stored beside a front: raise it with every change there, and old ones are made anew.
FRONT_VERSION = 1


class EstimateOut(BaseModel):
    """A figure with its 95 % interval; a bound that the data cannot give is null."""

    value: float
    low: float | None
    high: float | None


class DistributionOut(BaseModel):
    """A latency in milliseconds."""

    count: int
    mean: EstimateOut | None
    p50: EstimateOut | None
    p90: EstimateOut | None
    p95: EstimateOut | None
    p99: EstimateOut | None


class EventShareOut(BaseModel):
    """How much of a window showed one reason for clocks below what they could be."""

    #: As in `probes.clock_events`: sw_power_cap, hw_thermal ...
    event: str
    #: Of the samples, above 0 up to 1.
    share: float


class ConditionsOut(BaseModel):
    """What one device was like over a window; null where it does not say."""

    device_uuid: str
    num_samples: int
    mean_clock_mhz: float | None
    lowest_clock_mhz: float | None
    highest_clock_mhz: float | None
    mean_memory_clock_mhz: float | None
    start_temperature_c: float | None
    end_temperature_c: float | None
    highest_temperature_c: float | None
    power_limit_w: float | None
    event_shares: list[EventShareOut]


class EnergyOut(BaseModel):
    """Where an energy figure comes from."""

    energy_j: float | None
    uncertainty_j: float | None
    duration_s: float
    #: Energy over time; null without energy.
    mean_power_w: float | None
    #: What was inside the measurement: gpu, module, cpu_package, cpu_share ...
    scope: str
    #: How it was obtained: counter, integrated, estimate ...
    method: str
    detail: str
    #: True when nothing was measured.
    is_estimate: bool
    device_uuids: list[str]
    #: Why the figure must not be used; empty means valid.
    reasons: list[str]
    notes: list[str]
    #: One record a device; empty where nothing was read beside the power.
    conditions: list[ConditionsOut]


class TaskScoreOut(BaseModel):
    """What a precision scores on one lm-eval task, and what the reference does."""

    task: str
    metric: str
    score: float
    reference_score: float
    num_documents: int
    #: Left out because they do not fit into the engine's context.
    num_too_long: int


class QualityOut(BaseModel):
    """What the precision costs against the reference on the job's own prompts.

    Null in a measurement that was simulated: nothing is computed, so the quality of its precision is unknown.
    """

    #: The reference's own completions, how many tokens they are, and how unlikely this precision finds them.
    num_tokens: int
    perplexity: float
    perplexity_ratio: float
    #: Null where the engine names no likeliest token.
    top1_agreement: float | None
    #: Nats a position; null where the engine shows no distributions.
    kl: float | None
    num_positions: int
    #: 0 of what was told from one fixed text, before there were prompts.
    num_prompts: int
    reference: str
    kv_precision: str
    #: On the user's own text; null without one.
    text_perplexity: float | None
    num_text_tokens: int
    #: Empty without tasks.
    tasks: list[TaskScoreOut]
    measured_at: datetime | None
    #: True when an earlier job measured it.
    is_reused: bool


class MeasurementOut(BaseModel):
    """What one window showed."""

    window_s: float
    warmup_s: float
    output_tokens: int
    prompt_tokens: int
    num_finished: int
    num_failed: int
    num_preemptions: int
    mean_running: float
    output_tok_s: EstimateOut
    tok_per_j: EstimateOut | None
    j_per_tok: EstimateOut | None
    mean_power_w: float | None
    ttft_ms: DistributionOut
    tpot_ms: DistributionOut
    itl_ms: DistributionOut
    e2e_ms: DistributionOut
    energy: EnergyOut
    #: The host CPU's energy over the same window beside a GPU's; never added to it. Null where it was not measured.
    host_energy: EnergyOut | None
    #: With the model loaded and no requests, once a job; never subtracted. Null where it was not measured.
    idle_power_w: float | None
    quality: QualityOut | None
    engine: dict[str, Any]
    #: Why the window ended before its time; its figures are of what it showed until then. Null for a whole one.
    cut_by: str | None
    reasons: list[str]


class TrialOut(BaseModel):
    """One attempt at one point."""

    number: int
    attempt: int
    knobs: dict[str, int | float | str]
    state: str
    reason: str | None
    detail: str | None
    started_at: datetime
    finished_at: datetime | None
    role: str
    #: Which launch of the engine it was measured in; null without one.
    session: str | None
    #: How long the device was kept, and its energy meanwhile; null where that is not known.
    device_s: float | None
    device_j: float | None
    #: JOB/NUMBER of the trial whose measurement was taken over; null for one of its own.
    reused_from: str | None
    measurement: MeasurementOut | None


class PointOut(BaseModel):
    """One operating point of a front, with what it is judged by first and everything measured behind it.

    Figures are the mean over its windows; `measurement` is the window of the trial that stands for the point.
    """

    trial: int
    knobs: dict[str, int | float | str]
    tok_per_j: EstimateOut
    latency_ms: EstimateOut
    output_tok_s: EstimateOut
    mean_power_w: float | None
    energy_scope: str
    energy_method: str
    is_estimate: bool
    #: Tokens per joule over that of the default point; null when that was not measured.
    gain_over_default: float | None
    num_windows: int
    #: Launches of the engine that the windows belong to.
    num_sessions: int
    #: What low and high of tok_per_j and latency_ms speak of: scatter inside the only window, or between sessions.
    interval_of: str
    #: Trials of the points of this front that it cannot be ranked with.
    tied_with: list[int]
    #: False for a point that another is ahead of by value: a tie keeps it.
    is_leading: bool
    #: What was done to its figures or which windows were left out, in words; null for nothing.
    note: str | None
    measurement: MeasurementOut


class MissOut(BaseModel):
    """A point that came near the limits, and what it misses."""

    trial: int
    knobs: dict[str, int | float | str]
    detail: str
    #: The worst limit is missed by this share of its bound; by no less, where the window was cut.
    missed_by: float
    is_cut: bool


class FrontOut(BaseModel):
    """The operating points of a job that no other beats beyond doubt, fastest first."""

    job: str
    model: str
    #: True when every figure comes from a model of a device, and nothing was measured.
    is_simulated: bool
    latency_metric: str
    #: tokens per joule x milliseconds, up to latency_reference_ms.
    hypervolume: float
    latency_reference_ms: float | None
    #: False while trials may still be added.
    is_final: bool
    points: list[PointOut]
    #: Filled when no point meets the limits.
    nearest_misses: list[MissOut]


class JobOut(BaseModel):
    """A job at the moment of asking."""

    id: str
    name: str
    state: str
    #: True when its worker died and another may go on with it.
    is_interrupted: bool
    model: str
    engine: str
    device: str
    device_uuid: str | None
    #: The job whose results it began with; null for none.
    previous_job: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    ended_because: str | None
    message: str | None
    trials: dict[str, int]
    budget_trials: int
    front_size: int
    latency_metric: str
    sla: dict[str, float]
    knobs: dict[str, list[int | float | str]]
    #: Higher ones are taken first.
    priority: int
    #: An API key's name, `local`, or `schedule NAME`; null where nobody noted it.
    submitted_by: str | None
    #: Workers that were lost in a row while they ran it.
    num_lost: int


class RunOut(BaseModel):
    """A command that `wattfront measure` ran once."""

    #: 128 and the signal's number where a signal ended it.
    exit_code: int
    energy: EnergyOut


class MeasuredOut(BaseModel):
    """What `wattfront measure` found; means are of the usable runs and null without one."""

    command: list[str]
    device_uuid: str
    device_name: str
    num_repeats: int
    exit_code: int
    #: Whether the figures of every run may be used.
    is_valid: bool
    energy_j: EstimateOut | None
    mean_power_w: EstimateOut | None
    duration_s: EstimateOut | None
    runs: list[RunOut]
    #: The device before the first run; never subtracted. Null when not asked for.
    idle: EnergyOut | None


class CapabilityOut(BaseModel):
    """Whether one metric or control of a device can be had, found out by asking for it."""

    name: str
    is_available: bool
    #: Why not, or what was seen.
    reason: str


class DeviceOut(BaseModel):
    """A device as it was when a job last ran on it."""

    uuid: str
    name: str
    kind: str
    driver: str
    #: PCI id, firmware, limits, governor: whatever else the device told, by name.
    details: dict[str, str]
    capabilities: list[CapabilityOut]
    first_seen: datetime
    last_seen: datetime
    #: observed, controlled or restore_failed.
    control_state: str
    #: Who sets it, or what could not be put back.
    control_detail: str | None


class JobsOut(BaseModel):
    """Jobs, newest first; `next` continues the list when it is not null."""

    items: list[JobOut]
    next: str | None


class TrialsOut(BaseModel):
    """Attempts of a job by number and attempt; `next` continues the list when it is not null."""

    items: list[TrialOut]
    next: str | None
