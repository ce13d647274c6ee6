"""JSON and YAML in and out. Field names are public; what they mean stands in docs/glossary.md."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from tuner.errors import InvalidRequest
from tuner.knobs import usual_engine
from tuner.request import (
    Budget,
    KnobRange,
    Limit,
    QualityGate,
    RepeatRule,
    ReuseRule,
    TuneRequest,
    WindowRule,
    WorkloadSpec,
)

#: The sampler's seed is the job's plus the number of trials, and has 32 bits.
MAX_SEED = 2**31


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class WorkloadIn(_In):
    """Seeded requests; ranges are `low-high` or one number. The embedded engine takes the scenario `closed` alone."""

    scenario: StrictStr = "closed"
    prompt_tokens: StrictInt | StrictStr = "64-192"
    output_tokens: StrictInt | StrictStr = "16-48"
    concurrency: StrictInt | None = None
    rate_per_s: StrictFloat | StrictInt | None = None
    trace_file: StrictStr | None = None
    time_scale: StrictFloat | StrictInt = WorkloadSpec().time_scale
    seed: StrictInt = 0

    def to_spec(self) -> WorkloadSpec:
        """Build the workload; raises InvalidRequest."""
        ranges = {
            name: token_range(f"workload.{name}", getattr(self, name)) for name in ("prompt_tokens", "output_tokens")
        }
        return WorkloadSpec(**{**self.model_dump(), **ranges})


class BudgetIn(_In):
    """When the job ends at the latest."""

    trials: StrictInt = Budget().trials
    minutes: StrictFloat | StrictInt | None = None
    device_hours: StrictFloat | StrictInt | None = None
    joules: StrictFloat | StrictInt | None = None
    plateau_trials: StrictInt | None = None


class RepeatsIn(_In):
    """How often the best points are measured again."""

    windows: StrictInt = RepeatRule().windows
    finalists: StrictInt = RepeatRule().finalists


class ReuseIn(_In):
    """Whether what was measured before under the same conditions counts."""

    max_age_hours: StrictFloat | StrictInt = ReuseRule().max_age_hours


class WindowIn(_In):
    """How long a point is warmed up and measured; a longest time that is not given never contradicts the other."""

    warmup_s: StrictFloat | StrictInt = WindowRule().warmup_s
    max_warmup_s: StrictFloat | StrictInt | None = None
    window_s: StrictFloat | StrictInt = WindowRule().window_s
    min_requests: StrictInt = WindowRule().min_requests
    max_window_s: StrictFloat | StrictInt | None = None
    idle_s: StrictFloat | StrictInt = WindowRule().idle_s
    stops_early: StrictBool = WindowRule().stops_early

    def to_rule(self) -> WindowRule:
        """Build the rule; raises InvalidRequest."""
        usual = WindowRule()
        fields = self.model_dump()
        if self.max_warmup_s is None:
            fields["max_warmup_s"] = max(usual.max_warmup_s, self.warmup_s)
        if self.max_window_s is None:
            fields["max_window_s"] = max(usual.max_window_s, self.window_s)
        return WindowRule(**fields)


class QualityIn(_In):
    """What a precision may cost."""

    max_perplexity_ratio: StrictFloat | StrictInt = QualityGate().max_perplexity_ratio


class JobIn(_In):
    """A tuning job: the content of a job file.

    A device named `simulated:...` is a model of one: nothing is measured or set on it, its clocks need no permission,
    and what a precision does to a model's answers stays unknown.
    """

    model: StrictStr
    #: None is the one that the device takes: simulated on a simulated device, else embedded.
    engine: StrictStr | None = None
    device: StrictStr = "auto"
    allow_device_control: StrictBool = False
    name: StrictStr = ""
    workload: WorkloadIn = Field(default_factory=WorkloadIn)
    sla: dict[str, StrictFloat | StrictInt] = Field(default_factory=dict)
    knobs: dict[str, list[StrictInt | StrictFloat | StrictStr]] = Field(default_factory=dict)
    latency_metric: StrictStr = "tpot_p99_ms"
    budget: BudgetIn = Field(default_factory=BudgetIn)
    window: WindowIn = Field(default_factory=WindowIn)
    repeats: RepeatsIn = Field(default_factory=RepeatsIn)
    reuse: ReuseIn = Field(default_factory=ReuseIn)
    sampler: StrictStr = "wattfront"
    quality: QualityIn = Field(default_factory=QualityIn)
    seed: StrictInt = Field(default=0, ge=0, le=MAX_SEED)

    def to_request(self) -> TuneRequest:
        """Build the request; raises InvalidRequest naming field, value and remedy."""
        return TuneRequest(
            model=self.model,
            engine=usual_engine(self.device) if self.engine is None else self.engine,
            device=self.device,
            allow_device_control=self.allow_device_control,
            name=self.name,
            workload=self.workload.to_spec(),
            sla=tuple(Limit(metric=metric, bound_ms=bound) for metric, bound in self.sla.items()),
            knobs=tuple(KnobRange(name=name, values=tuple(values)) for name, values in self.knobs.items()),
            latency_metric=self.latency_metric,
            budget=Budget(**self.budget.model_dump()),
            window=self.window.to_rule(),
            repeats=RepeatRule(**self.repeats.model_dump()),
            reuse=ReuseRule(**self.reuse.model_dump()),
            sampler=self.sampler,
            quality=QualityGate(**self.quality.model_dump()),
            seed=self.seed,
        )


def token_range(field: str, text: int | str) -> tuple[int, int]:
    """Read `64-192` or `128`; raises InvalidRequest."""
    low, _, high = str(text).partition("-")
    try:
        return int(low), int(high or low)
    except ValueError:
        raise InvalidRequest(field, text, "write LOW-HIGH or one number, as in 64-192") from None


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


class QualityOut(BaseModel):
    """What the precision costs against fp32 on the job's own text.

    Null in a measurement that was simulated: nothing is computed, so the quality of its precision is unknown.
    """

    num_tokens: int
    perplexity: float
    perplexity_ratio: float
    top1_agreement: float


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
    measurement: MeasurementOut | None


class PointOut(BaseModel):
    """One operating point of a front, with what it is judged by first and everything measured behind it."""

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
    measurement: MeasurementOut


class MissOut(BaseModel):
    """A point that came near the limits, and what it misses."""

    trial: int
    knobs: dict[str, int | float | str]
    detail: str
    #: The worst limit is missed by this share of its bound.
    missed_by: float


class FrontOut(BaseModel):
    """The operating points of a job that no other dominates, fastest first."""

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


class DevicesOut(BaseModel):
    """Every device that a job ever ran on, last seen first."""

    items: list[DeviceOut]


class JobsOut(BaseModel):
    """Jobs, newest first; `next` continues the list when it is not null."""

    items: list[JobOut]
    next: str | None


class TrialsOut(BaseModel):
    """Every attempt of a job by number and attempt."""

    items: list[TrialOut]
