"""A stored point ready to be written in another program's words, with the words that belong to it.

What an export says of itself stands here once: which job and trial it is of, its figures, and whether they were
measured. Knows nothing of any form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from api.errors import Refusal
from api.operator_file import is_name
from db.result import Result
from engine.servers.flags import Gap
from engine.settings import EngineSettings
from engine.simulated import catalogue
from probes.settings import DeviceSettings
from tuner.knobs import OPENAI, rules_of
from tuner.measurement import Estimate
from tuner.request import KnobValue, TuneRequest, WorkloadSpec

#: Models that go by a name of ours, and where they come from.
_HUGGING_FACE = {"smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct"}
_GPU_UUID = re.compile(r"GPU-[0-9a-fA-F-]{4,60}")
_MAX_LINE = 300


class NotExportable(Refusal):
    """Choose another point or another form, as the message says."""

    status = 422
    title = "cannot be exported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What an export is made from."""

    #: As an engine takes it: a Hugging Face id, or a path on the machine that the job ran on. What an operator's name
    #: stands for is known to that machine alone: the name stays, and a remark says so.
    model: str
    request: TuneRequest
    result: Result
    #: Every setting of the engine, those included that the job did not search.
    settings: EngineSettings
    device: DeviceSettings

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """The GPUs that the point was measured on; empty for a simulated device and for a CPU."""
        return tuple(uuid for uuid in self.result.evidence.device_uuids if _GPU_UUID.fullmatch(uuid))

    @property
    def num_replica_gpus(self) -> int:
        """GPUs of one replica."""
        return self.settings.tensor_parallel * self.settings.pipeline_parallel

    @property
    def knobs(self) -> Mapping[str, KnobValue]:
        """Every knob of the engine and those of the device that the point sets, by name."""
        values: dict[str, KnobValue] = {}
        for name in rules_of(self.request.engine):
            value = getattr(self.settings, name)
            values[name] = ("on" if value else "off") if isinstance(value, bool) else value
        return values | self.device.as_dict()

    @property
    def is_launchable(self) -> bool:
        """Whether a command can start a server as it was measured; of one that ran already only the load is known."""
        return self.request.engine != OPENAI

    @property
    def label(self) -> str | None:
        """See `label_of`."""
        return label_of(self.result)

    def remarks(self, *, runs: str) -> list[str]:
        """Return what belongs above every export, a line each; `runs` is the engine that the export is for."""
        evidence = self.result.evidence
        lines = [f"Wattfront: job {self.result.job_id[:8]}, trial {self.result.number}: {figures_words(self.result)}"]
        if self.label is not None:
            lines.append(self.label)
        when = self.result.measured_at.strftime("%Y-%m-%d %H:%M UTC")
        lines.append(f"of {when}, {evidence.engine} {evidence.engine_version}, load: {load_words(evidence.workload)}")
        lines.append(f"energy: scope {evidence.scope}, method {evidence.method}")
        if is_name(self.model):
            lines.append(f"model {self.model} is a bare name: where it is of an operator's file, put in what it means")
        if runs != evidence.engine:
            lines.append(f"{runs} is another engine than the {evidence.engine} one that it was found with: measure it")
        return [one_line(line) for line in lines]


def recipe_of(request: TuneRequest, result: Result) -> Recipe:
    """Return a point of a job as a recipe. Raises NotExportable for a model's name that a command would misread."""
    from tuner.space import device_settings_of, settings_of  # with the simulation, which few requests need

    model = model_id(request)
    if model.startswith("-") or not model.isprintable():
        raise NotExportable(f"model is {model[:80]!r}: no command can name it; tune it under a path or an id")
    return Recipe(
        model=model,
        request=request,
        result=result,
        settings=settings_of(request, result.point),
        device=device_settings_of(result.point),
    )


def model_id(request: TuneRequest) -> str:
    """Return what another engine finds a model by: the Hugging Face id behind a name of ours, else what was asked."""
    known = _HUGGING_FACE.get(request.model.strip().lower())
    if known is not None:
        return known
    name = catalogue.name_of(request.model)
    if name is None:
        return request.model
    ids = catalogue.ids(name)
    return request.model if request.model in ids else ids[0]


def label_of(result: Result) -> str | None:
    """Return what must be said of figures that nobody measured; None of measured ones."""
    if result.is_simulated:
        return "SIMULATED: nothing was measured, the figures come from a model of the device"
    return "ESTIMATE: the energy was not measured, it is computed" if result.is_estimate else None


def figures_words(result: Result) -> str:
    """Return the figures of a point in one line."""
    told = f"{_interval_words(result.evidence.tok_per_j)} tokens/J, {result.output_tok_s:.4g} tokens/s"
    latencies = [(name, result.latency_ms(name)) for name in ("ttft_p99_ms", "tpot_p99_ms")]
    shown = [f"{name} {value:.4g}" for name, value in latencies if value is not None]
    return ", ".join([told, f"{result.mean_power_w:.4g} W", *shown])


def load_words(workload: WorkloadSpec) -> str:
    """Return the load that a point was measured under, in one line."""
    if workload.scenario == "trace":
        return f"trace at {workload.time_scale:g} times its times"
    lengths = [f"{low}-{high}" for low, high in (workload.prompt_tokens, workload.output_tokens)]
    told = f"{workload.scenario}, prompts of {lengths[0]} tokens, outputs of {lengths[1]}"
    if workload.rate_per_s is not None:
        return f"{told}, {workload.rate_per_s:g} requests/s"
    return told if workload.concurrency is None else f"{told}, {workload.concurrency} in flight"


def power_remarks(recipe: Recipe) -> list[str]:
    """Return how to set clocks and power limit by hand, as lines; none where the point leaves both as they are."""
    if recipe.device.is_empty:
        return []
    commands = nvidia_smi(recipe)
    lines = [f"  sudo {command}" for command in commands]
    if recipe.device.cpu_clock_cap_mhz is not None:
        lines.append(f"  sudo cpupower frequency-set --max {recipe.device.cpu_clock_cap_mhz}MHz")
    return [
        "Not of the engine, and part of the point: set this on the device (the form `systemd` does, and undoes it):",
        *lines,
    ]


def nvidia_smi(recipe: Recipe) -> list[str]:
    """Return the commands that set clocks and power limit of the point's GPUs; of all GPUs where none is known."""
    which = f" --id={','.join(recipe.gpu_uuids)}" if recipe.gpu_uuids else ""
    commands = []
    if recipe.device.sm_clock_cap_mhz is not None:
        commands.append(f"nvidia-smi{which} --lock-gpu-clocks=0,{recipe.device.sm_clock_cap_mhz}")
    if recipe.device.power_cap_w is not None:
        commands.append(f"nvidia-smi{which} --power-limit={recipe.device.power_cap_w}")
    return commands


def one_line(text: str) -> str:
    """Return text that cannot leave a comment: printable, on one line, not too long."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown if len(shown) <= _MAX_LINE else shown[: _MAX_LINE - 3] + "..."


def unsaid(lines: Sequence[str]) -> list[str]:
    """Return what a form has no words for, with a heading; nothing where it has words for all."""
    return [] if not lines else ["No flag says this:", *(f"  {line}" for line in lines)]


def unsaid_gaps(gaps: Sequence[Gap]) -> list[str]:
    """Return what no flag of a server says, with a heading, and the form that says it where there is one."""
    pool = "; the form `dynamo` has a pool for prompts"
    return unsaid([f"{gap}{pool}" if gap.knob == "prefill_gpus" else str(gap) for gap in gaps])


def _interval_words(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4g}"
    return f"{estimate.value:.4g} (95 %: {estimate.low:.4g} to {estimate.high:.4g})"
