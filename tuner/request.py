"""What is asked of the tuner: model, engine, device, workload, SLA, knobs, quality gate, budget.

Every record checks itself; a message names field, value and remedy. Knows nothing of files, HTTP or SQL.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tuner.errors import EmptySpace, InvalidRequest

LATENCIES = ("ttft", "tpot", "itl", "e2e")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
#: Names of latency figures: ttft_p99_ms, tpot_mean_ms, ...
LATENCY_METRICS = tuple(f"{latency}_{statistic}_ms" for latency in LATENCIES for statistic in STATISTICS)

#: A knob's value.
KnobValue = int | float | str

#: Requests in flight: `closed` keeps a number, `offline` always more than run at once. Requests at their own times:
#: `server` and `interactive` (the same arrivals; what sets them apart is the SLA) at random, `trace` as recorded.
SCENARIOS = ("closed", "offline", "server", "interactive", "trace")
#: Those whose requests arrive at random.
POISSON = ("server", "interactive")
#: Fields of a workload that earlier versions did not have: unless they are set they are no part of its fingerprints,
#: so that what those versions measured is found.
LATER_FIELDS = ("burstiness", "ramp_to_per_s", "ramp_s", "clip_prompt_tokens", "clip_output_tokens", "repeat")

#: The smallest number above 0.
_ABOVE_0 = math.ulp(0.0)

MAX_TRIALS = 100_000
MAX_TOKENS = 1_000_000
MAX_KNOB_VALUES = 1_000
MAX_RATE_PER_S = 100_000
MAX_TIME_SCALE = 1_000
#: Shapes of the gamma distribution between which gaps are drawn: from far burstier than any trace to nearly even.
BURSTINESS = (0.01, 1_000.0)
MAX_RAMP_S = 86_400
MAX_REPEATS = 100
MAX_FINALISTS = 1_000
MAX_AGE_HOURS = 87_600
MAX_TASKS = 100
MAX_TASK_DOCUMENTS = 100_000

#: Who chooses the points: Wattfront's own search, or one of Optuna's samplers through the same code.
SAMPLERS = ("wattfront", "gp", "tpe", "nsga2", "sobol", "random", "grid")
#: Growth of the hypervolume that still counts as getting on.
PLATEAU_SHARE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """An upper bound on a latency figure, inclusive."""

    metric: str
    bound_ms: float

    def __post_init__(self) -> None:
        """Refuse unknown metrics and bounds that are not positive numbers."""
        require_latency_metric("sla", self.metric)
        if not (math.isfinite(self.bound_ms) and self.bound_ms > 0):
            raise InvalidRequest(f"sla.{self.metric}", self.bound_ms, "give a positive number of milliseconds")

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Read `ttft_p99_ms<=500` (or with `=`)."""
        match = re.fullmatch(r"\s*([a-z0-9_]+)\s*<?=\s*(\S+?)\s*", text)
        if match is None:
            raise InvalidRequest("sla", text, "write METRIC<=MILLISECONDS, as in ttft_p99_ms<=500")
        return cls(metric=match[1], bound_ms=_number("sla." + match[1], match[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """Seeded requests: how long they are, and how they arrive."""

    #: One of SCENARIOS.
    scenario: str = "closed"
    #: Shortest and longest prompt in tokens, inclusive; a trace has lengths of its own.
    prompt_tokens: tuple[int, int] = (64, 192)
    #: Shortest and longest output in tokens, inclusive; outputs are forced to that length.
    output_tokens: tuple[int, int] = (16, 48)
    #: Requests in flight under `closed`; None keeps as many as the point runs at once.
    concurrency: int | None = None
    #: Mean arrivals a second under `server` and `interactive`: a Poisson process.
    rate_per_s: float | None = None
    #: File of requests (docs/workloads.md): `trace` replays its times, every other scenario takes its prompts and
    #: lengths alone, in their order.
    trace_file: str | None = None
    #: Of the file as it was when the job was submitted; not to be given: the command line notes it.
    trace_sha256: str | None = field(default=None, repr=False)
    #: What the trace's times are multiplied by: 0.5 doubles the load.
    time_scale: float = 1.0
    seed: int = 0
    #: Shape of the gamma distribution of the gaps between arrivals: 1 is Poisson, less is burstier, more is more even.
    #: Their coefficient of variation is its square root's inverse. As `--burstiness` of `vllm bench serve`.
    burstiness: float = field(default=1.0, repr=False)
    #: The mean rate goes from `rate_per_s` to this one in a straight line, and stays there ...
    ramp_to_per_s: float | None = field(default=None, repr=False)
    #: ... after so many seconds from the load's start, warm-up included.
    ramp_s: float | None = field(default=None, repr=False)
    #: A file's prompts and outputs that are longer are cut to this, and how many are is told; None cuts nothing.
    clip_prompt_tokens: int | None = field(default=None, repr=False)
    clip_output_tokens: int | None = field(default=None, repr=False)
    #: Whether a file whose requests are over begins anew; otherwise the load ends with them.
    repeat: bool = field(default=True, repr=False)

    def __post_init__(self) -> None:
        """Refuse unknown scenarios, empty ranges, impossible counts, and what the scenario has no use for."""
        if self.scenario not in SCENARIOS:
            raise InvalidRequest("workload.scenario", self.scenario, f"choose {', '.join(SCENARIOS)}")
        for name in ("prompt_tokens", "output_tokens"):
            low, high = getattr(self, name)
            if not 1 <= low <= high <= MAX_TOKENS:
                raise InvalidRequest(
                    f"workload.{name}",
                    f"{low}..{high}",
                    f"give a range with 1 <= low <= high <= {MAX_TOKENS}",
                )
        self._refuse_wrong_numbers()
        self._refuse_idle_fields()

    @property
    def is_open(self) -> bool:
        """Whether requests arrive at their own times, however far behind the engine is."""
        return self.scenario not in ("closed", "offline")

    def described(self) -> dict[str, Any]:
        """Return every field by name, those that earlier versions did not have only where they are set."""
        unset = {one.name: one.default for one in fields(self) if one.name in LATER_FIELDS}
        return {name: value for name, value in asdict(self).items() if name not in unset or value != unset[name]}

    def _refuse_wrong_numbers(self) -> None:
        """Refuse numbers out of bounds, naming field, value and what is right."""
        rate = f"give requests a second above 0, up to {MAX_RATE_PER_S}"
        lowest, highest = BURSTINESS
        bounds = (
            ("concurrency", 1, 100_000, "give 1 to 100000, or leave it out"),
            ("rate_per_s", _ABOVE_0, MAX_RATE_PER_S, rate),
            ("time_scale", _ABOVE_0, MAX_TIME_SCALE, f"give a factor above 0, up to {MAX_TIME_SCALE}"),
            ("burstiness", lowest, highest, f"give {lowest:g} (bursts) to {highest:g} (even); 1 is Poisson"),
            ("ramp_to_per_s", _ABOVE_0, MAX_RATE_PER_S, rate),
            ("ramp_s", _ABOVE_0, MAX_RAMP_S, f"give seconds above 0, up to {MAX_RAMP_S}"),
            ("clip_prompt_tokens", 1, MAX_TOKENS, f"give 1 to {MAX_TOKENS}, or leave it out"),
            ("clip_output_tokens", 1, MAX_TOKENS, f"give 1 to {MAX_TOKENS}, or leave it out"),
        )
        for name, low, high, remedy in bounds:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # NaN, too
                raise InvalidRequest(f"workload.{name}", value, remedy)

    def _refuse_idle_fields(self) -> None:
        """Refuse a field that the scenario lacks, and the lack of one that it needs."""
        if (self.ramp_to_per_s is None) != (self.ramp_s is None):
            name, other = ("ramp_s", "ramp_to_per_s") if self.ramp_s is None else ("ramp_to_per_s", "ramp_s")
            raise InvalidRequest(f"workload.{name}", None, f"{other} needs it; give both or none")
        for name in ("clip_prompt_tokens", "clip_output_tokens", "repeat"):
            value = getattr(self, name)
            if self.trace_file is None and value not in (None, True):
                raise InvalidRequest(f"workload.{name}", value, "it is for requests of a file; name trace_file, too")
        needs = (
            ("concurrency", None, ("closed",), False),
            ("rate_per_s", None, POISSON, True),
            ("burstiness", 1.0, POISSON, False),
            ("ramp_to_per_s", None, POISSON, False),
            ("trace_file", None, SCENARIOS, self.scenario == "trace"),
            ("time_scale", 1.0, ("trace",), False),
        )
        for name, unset, scenarios, is_needed in needs:
            value = getattr(self, name)
            if value != unset and self.scenario not in scenarios:
                raise InvalidRequest(
                    f"workload.{name}",
                    value,
                    f"only {' and '.join(scenarios)} have it, not {self.scenario}; remove it or change the scenario",
                )
            if value == unset and is_needed and self.scenario in scenarios:
                raise InvalidRequest(f"workload.{name}", value, f"{self.scenario} needs it; name it")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobRange:
    """The values a job tries for one knob, in the order given."""

    name: str
    values: tuple[KnobValue, ...]

    def __post_init__(self) -> None:
        """Refuse empty and repeated values and mixtures of numbers and words."""
        if not self.values:
            raise EmptySpace(f"knobs.{self.name}", list(self.values), "give at least one value")
        if len(self.values) > MAX_KNOB_VALUES:
            raise InvalidRequest(f"knobs.{self.name}", len(self.values), f"give at most {MAX_KNOB_VALUES} values")
        if len(set(self.values)) != len(self.values):
            raise InvalidRequest(f"knobs.{self.name}", list(self.values), "remove the repeated value")
        if any(isinstance(value, float) and not math.isfinite(value) for value in self.values):
            raise InvalidRequest(f"knobs.{self.name}", list(self.values), "give finite numbers")
        if len({isinstance(value, str) for value in self.values}) > 1:
            raise InvalidRequest(f"knobs.{self.name}", list(self.values), "give either numbers or words, not both")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When a job ends at the latest: whichever comes first."""

    #: Points that are screened: one window each. Repeats of finalists come on top.
    trials: int = 24
    #: Wall time from the job's start; None for no limit.
    minutes: float | None = None
    #: Time that the device was kept for launches, warm-ups and windows; None for no limit.
    device_hours: float | None = None
    #: Energy that the device took over that time; None for no limit.
    joules: float | None = None
    #: The search ends when so many trials in a row raised the front's hypervolume by no more than PLATEAU_SHARE
    #: together; None leaves that out.
    plateau_trials: int | None = None

    def __post_init__(self) -> None:
        """Refuse budgets that allow nothing."""
        if not 1 <= self.trials <= MAX_TRIALS:
            raise InvalidRequest("budget.trials", self.trials, f"give 1 to {MAX_TRIALS}")
        for name, unit in (("minutes", "minutes"), ("device_hours", "hours"), ("joules", "joules")):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InvalidRequest(f"budget.{name}", value, f"give a positive number of {unit}")
        if self.plateau_trials is not None and not 1 <= self.plateau_trials <= MAX_TRIALS:
            raise InvalidRequest("budget.plateau_trials", self.plateau_trials, f"give 1 to {MAX_TRIALS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatRule:
    """How often the best points are measured again, so that what sets them apart is more than noise."""

    #: Windows of each finalist in all, each in a launch of its own; 1 repeats nothing.
    windows: int = 1
    #: Points that are finalists at most: the screened front's, spread over it.
    finalists: int = 6

    def __post_init__(self) -> None:
        """Refuse counts that make no sense."""
        if not 1 <= self.windows <= MAX_REPEATS:
            raise InvalidRequest("repeats.windows", self.windows, f"give 1 (no repeats) to {MAX_REPEATS}")
        if not 1 <= self.finalists <= MAX_FINALISTS:
            raise InvalidRequest("repeats.finalists", self.finalists, f"give 1 to {MAX_FINALISTS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseRule:
    """Whether what was measured before under the same conditions counts instead of being measured again."""

    #: Measurements older than this are made anew; 0 reuses nothing.
    max_age_hours: float = 0.0

    def __post_init__(self) -> None:
        """Refuse an age that is none."""
        if not (math.isfinite(self.max_age_hours) and 0 <= self.max_age_hours <= MAX_AGE_HOURS):
            raise InvalidRequest(
                "reuse.max_age_hours", self.max_age_hours, f"give hours from 0 (no reuse) to {MAX_AGE_HOURS}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRule:
    """How long a point is warmed up and measured. Defaults follow docs/measuring.md."""

    warmup_s: float = 10.0
    #: A point that is not steady by then is invalid (`no_steady_state`).
    max_warmup_s: float = 120.0
    window_s: float = 30.0
    #: The window goes on until this many requests ended in it ...
    min_requests: int = 20
    #: ... but never longer than this.
    max_window_s: float = 120.0
    #: Idle power is measured for so long before the first trial, with the model loaded; 0 leaves it out.
    idle_s: float = 30.0
    #: End a window as soon as it is certain that a limit is missed, or that the point is dominated.
    stops_early: bool = True

    def __post_init__(self) -> None:
        """Refuse times that are not positive or contradict each other."""
        for name in ("warmup_s", "max_warmup_s", "window_s", "max_window_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 < value <= 86_400):
                raise InvalidRequest(f"window.{name}", value, "give seconds above 0 and up to 86400")
        if self.max_warmup_s < self.warmup_s:
            raise InvalidRequest("window.max_warmup_s", self.max_warmup_s, f"give at least warmup_s ({self.warmup_s})")
        if self.max_window_s < self.window_s:
            raise InvalidRequest("window.max_window_s", self.max_window_s, f"give at least window_s ({self.window_s})")
        if not (math.isfinite(self.idle_s) and 0 <= self.idle_s <= 3600):
            raise InvalidRequest("window.idle_s", self.idle_s, "give seconds from 0 (not measured) to 3600")
        if not 0 <= self.min_requests <= 1_000_000:
            raise InvalidRequest("window.min_requests", self.min_requests, "give 0 to 1000000")


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityGate:
    """What precision and KV format may cost against the widest precision, on the job's own prompts."""

    #: Perplexity of the reference's completions over what the reference itself gives them.
    max_perplexity_ratio: float = 1.05
    #: Mean KL divergence from the reference, in nats a position; None for no limit.
    max_kl: float | None = None
    #: Share of positions at which the likeliest token must be the reference's: 0.99 or 0.999; None for no limit.
    min_top1_agreement: float | None = None
    #: A text of the user's own, on which every precision's perplexity is measured; a path on the worker's machine.
    text_file: str | None = None
    #: Perplexity on that text, whatever the reference's is; None for no limit.
    max_perplexity: float | None = None
    #: Tasks of lm-eval: names of its own, or (with a slash) folders with task files on the worker's machine.
    tasks: tuple[str, ...] = ()
    #: Share of the reference's score that is asked for on every task: 0.99 or 0.999, as in MLPerf Inference's rules.
    min_task_share: float = 0.99
    #: Documents of each task, its first, that are scored at most.
    task_limit: int = 200

    def __post_init__(self) -> None:
        """Refuse a gate that the reference itself would fail, and a limit on a text that is not named."""
        if not (math.isfinite(self.max_perplexity_ratio) and self.max_perplexity_ratio >= 1.0):
            raise InvalidRequest(
                "quality.max_perplexity_ratio", self.max_perplexity_ratio, "give a number of 1.0 or more"
            )
        kl, agreement, perplexity = self.max_kl, self.min_top1_agreement, self.max_perplexity
        if kl is not None and not (math.isfinite(kl) and kl > 0):
            raise InvalidRequest("quality.max_kl", kl, "give a number of nats above 0, as in 0.01")
        if agreement is not None and not 0 < agreement <= 1:
            raise InvalidRequest("quality.min_top1_agreement", agreement, "give a share above 0 up to 1, as in 0.99")
        if perplexity is not None and not (math.isfinite(perplexity) and perplexity > 1):
            raise InvalidRequest("quality.max_perplexity", perplexity, "give a number above 1")
        if perplexity is not None and self.text_file is None:
            raise InvalidRequest(
                "quality.max_perplexity", perplexity, "name the text it is measured on in quality.text_file"
            )
        if self.text_file is not None and not self.text_file.strip():
            raise InvalidRequest("quality.text_file", self.text_file, "give the path of a text file, or leave it out")
        self._check_tasks()

    def _check_tasks(self) -> None:
        """Refuse tasks without a name or named twice, and limits on them that make no sense."""
        if len(self.tasks) > MAX_TASKS:
            raise InvalidRequest("quality.tasks", f"{len(self.tasks)} entries", f"give at most {MAX_TASKS}")
        for task in self.tasks:
            if not task.strip():
                raise InvalidRequest("quality.tasks", task, "name a task of lm-eval, or a folder as ./tasks")
            if self.tasks.count(task) > 1:
                raise InvalidRequest("quality.tasks", task, "it stands there twice; keep one of the two")
        if not 0 < self.min_task_share <= 1:
            raise InvalidRequest(
                "quality.min_task_share", self.min_task_share, "give a share above 0 up to 1, as in 0.99"
            )
        if not 1 <= self.task_limit <= MAX_TASK_DOCUMENTS:
            raise InvalidRequest("quality.task_limit", self.task_limit, f"give 1 to {MAX_TASK_DOCUMENTS} documents")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """One tuning job as asked for."""

    model: str
    engine: str = "embedded"
    #: Of a real server: the operator's profile of it; empty takes the one that has the engine's name, else the engine's
    #: own program with no prefix.
    server: str = ""
    #: auto, cpu, gpu, cuda:N, a device's UUID, several GPUs joined by commas, or a simulated one: simulated:h100-sxm:8.
    device: str = "auto"
    #: Whether clocks and power limits may be set; the operator of the machine must allow it too. On a simulated device
    #: nothing real is set, so it needs neither.
    allow_device_control: bool = False
    workload: WorkloadSpec = field(default_factory=WorkloadSpec)
    sla: tuple[Limit, ...] = ()
    #: Empty means every knob of the engine with its default values.
    knobs: tuple[KnobRange, ...] = ()
    #: The front's latency axis.
    latency_metric: str = "tpot_p99_ms"
    budget: Budget = field(default_factory=Budget)
    window: WindowRule = field(default_factory=WindowRule)
    repeats: RepeatRule = field(default_factory=RepeatRule)
    reuse: ReuseRule = field(default_factory=ReuseRule)
    quality: QualityGate = field(default_factory=QualityGate)
    #: One of SAMPLERS.
    sampler: str = "wattfront"
    #: The MLPerf scenario that filled the fields, as in `mlperf:server:llama3.1-8b`: its tail rule is applied beside
    #: the limits. Not to be given: a job file has `scenario`.
    preset: str = ""
    #: A label for people; jobs are identified by their id.
    name: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no engine or device could make sense of."""
        if not self.model.strip():
            raise InvalidRequest("model", self.model, "name a model, as in smollm2-135m")
        require_latency_metric("latency_metric", self.latency_metric)
        if self.server and not self.server.strip():
            raise InvalidRequest("server", self.server, "name one of the operator's servers, or leave it out")
        if self.sampler not in SAMPLERS:
            raise InvalidRequest("sampler", self.sampler, f"choose {', '.join(SAMPLERS)}")
        if len(self.name) > 200:
            raise InvalidRequest("name", self.name[:40] + "...", "give at most 200 characters")
        _require_unique("sla", [(limit.metric, f"{limit.bound_ms:g} ms") for limit in self.sla])
        _require_unique("knobs", [(knob.name, str(list(knob.values))) for knob in self.knobs])


def require_latency_metric(field_name: str, metric: str) -> None:
    """Raise InvalidRequest unless `metric` names a latency figure."""
    if metric not in LATENCY_METRICS:
        raise InvalidRequest(
            field_name,
            metric,
            f"choose {'|'.join(LATENCIES)} _ {'|'.join(STATISTICS)} _ms, as in ttft_p99_ms",
        )


def _require_unique(field_name: str, named: list[tuple[str, str]]) -> None:
    """Refuse two settings for one name: which of them is meant cannot be known."""
    settings: dict[str, str] = {}
    for name, setting in named:
        if name in settings:
            raise InvalidRequest(
                f"{field_name}.{name}", setting, f"it is already {settings[name]}; keep one of the two"
            )
        settings[name] = setting


def _number(field_name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidRequest(field_name, text, "give a number of milliseconds") from None
