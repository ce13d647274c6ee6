"""A job as a file or a request gives it, checked field by field. Field names are public, in README.md's table.

Knows nothing of where the fields come from: YAML, flags or a posted body.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from tuner.errors import InvalidRequest
from tuner.knobs import usual_engine
from tuner.mlperf import filled, preset_of
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
    """Seeded requests, or those of a file; ranges are `low-high` or one number."""

    scenario: StrictStr = "closed"
    prompt_tokens: StrictInt | StrictStr = "64-192"
    output_tokens: StrictInt | StrictStr = "16-48"
    concurrency: StrictInt | None = None
    rate_per_s: StrictFloat | StrictInt | None = None
    trace_file: StrictStr | None = None
    time_scale: StrictFloat | StrictInt = WorkloadSpec().time_scale
    seed: StrictInt = 0
    burstiness: StrictFloat | StrictInt = WorkloadSpec().burstiness
    ramp_to_per_s: StrictFloat | StrictInt | None = None
    ramp_s: StrictFloat | StrictInt | None = None
    clip_prompt_tokens: StrictInt | None = None
    clip_output_tokens: StrictInt | None = None
    repeat: StrictBool = WorkloadSpec().repeat

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
    """What a precision may cost; a limit that is null is none. Files and folders lie on the worker's machine."""

    max_perplexity_ratio: StrictFloat | StrictInt = QualityGate().max_perplexity_ratio
    max_kl: StrictFloat | StrictInt | None = None
    min_top1_agreement: StrictFloat | StrictInt | None = None
    text_file: StrictStr | None = None
    max_perplexity: StrictFloat | StrictInt | None = None
    tasks: list[StrictStr] = Field(default_factory=list)
    min_task_share: StrictFloat | StrictInt = QualityGate().min_task_share
    task_limit: StrictInt = QualityGate().task_limit

    def to_gate(self) -> QualityGate:
        """Build the gate; raises InvalidRequest."""
        return QualityGate(**{**self.model_dump(), "tasks": tuple(self.tasks)})


class JobIn(_In):
    """A tuning job: the content of a job file.

    A device named `simulated:...` is a model of one: nothing is measured or set on it, its clocks need no permission,
    and what a precision does to a model's answers stays unknown.
    """

    model: StrictStr
    #: None is the one that the device takes: simulated on a simulated device, else embedded.
    engine: StrictStr | None = None
    #: Of a real server: the operator's name for how it is started here.
    server: StrictStr = ""
    device: StrictStr = "auto"
    allow_device_control: StrictBool = False
    name: StrictStr = ""
    #: A preset, as in `mlperf:server:llama3.1-8b`: it fills the fields below, and is no longer there once they are.
    scenario: StrictStr | None = None
    workload: WorkloadIn = Field(default_factory=WorkloadIn)
    sla: dict[str, StrictFloat | StrictInt] = Field(default_factory=dict)
    knobs: dict[str, list[StrictInt | StrictFloat | StrictStr]] = Field(default_factory=dict)
    latency_metric: StrictStr = "tpot_p99_ms"
    budget: BudgetIn = Field(default_factory=BudgetIn)
    window: WindowIn = Field(default_factory=WindowIn)
    repeats: RepeatsIn = Field(default_factory=RepeatsIn)
    reuse: ReuseIn = Field(default_factory=ReuseIn)
    sampler: StrictStr = "wattfront"
    #: Written by `scenario`, with the fields that it fills: its tail rule is applied beside the limits.
    preset: StrictStr = ""
    quality: QualityIn = Field(default_factory=QualityIn)
    seed: StrictInt = Field(default=0, ge=0, le=MAX_SEED)

    def to_request(self) -> TuneRequest:
        """Build the request; raises InvalidRequest naming field, value and remedy."""
        if self.scenario is not None:
            given = self.model_dump(exclude_unset=True, include=set(JobIn.model_fields) - {"scenario"})
            return JobIn.model_validate(filled(preset_of(self.scenario), given)).to_request()
        return TuneRequest(
            model=self.model,
            engine=usual_engine(self.device) if self.engine is None else self.engine,
            server=self.server,
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
            preset=self.preset,
            quality=self.quality.to_gate(),
            seed=self.seed,
        )


def token_range(field: str, text: int | str) -> tuple[int, int]:
    """Read `64-192` or `128`; raises InvalidRequest."""
    low, _, high = str(text).partition("-")
    try:
        return int(low), int(high or low)
    except ValueError:
        raise InvalidRequest(field, text, "write LOW-HIGH or one number, as in 64-192") from None
