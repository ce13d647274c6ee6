"""What would a rack do: DeepSeek-R1 and Qwen3-VL-235B-A22B on simulated GB300 NVL72 and Vera Rubin NVL72.

For each model, rack and MLPerf Inference v6.1 scenario the layout, precision, batch and clock cap are searched, never
set by hand: all combinations below are ranked by their estimated steady state (`rack_instance.Instance.estimate`),
and the best one is simulated request by request. Offline that is one run; under server and interactive limits the
highest Poisson rate is sought at which p99s stay inside, as MLPerf does, in steps of 5 %. A rack holds as many equal
instances as fit, each with its share of the requests. Two answers are given: most tokens a second, and most tokens a
joule.

Watts are those of the GPUs alone. Lengths are uniform in ranges around the data sets' means: see WORKLOADS. Vera
Rubin's figures are announcements. SIMULATED: nothing was measured, and docs/simulation.md says what cannot be known.

    python -m benchmarks.rack_what_if                          # everything, about ten minutes on two cores
    python -m benchmarks.rack_what_if --model deepseek-r1      # one model
    python -m benchmarks.rack_what_if --estimates              # no simulation: the estimates of the best, a few minutes
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.machine import finish
from benchmarks.rack_instance import Estimate, Instance, Mean, Served, run
from engine.errors import InvalidSettings, NotEnoughMemory
from engine.settings import EngineSettings
from engine.simulated.shapes import load_shape
from probes.simulated.accelerators import ACCELERATORS, Accelerator
from tuner.request import WorkloadSpec
from tuner.workload import max_context

RACK = 72
KEYS = ("gb300-nvl72", "vera-rubin-nvl72")
#: deepseek-r1: mean prompt 800 and output 3,880 tokens, as MLCommons gives them for the MLPerf data set; the ranges are
#: assumptions. qwen3-vl: MLCommons publishes no lengths of the Shopify catalogue; all is assumption, with an image
#: counted as prompt tokens and without the vision tower's work.
WORKLOADS = {
    "deepseek-r1": WorkloadSpec(scenario="offline", prompt_tokens=(400, 1200), output_tokens=(400, 7360)),
    "qwen3-vl-235b-a22b": WorkloadSpec(scenario="offline", prompt_tokens=(1000, 3000), output_tokens=(100, 200)),
}
#: MLPerf Inference v6.1, datacenter.
LIMITS_MS: dict[str, dict[str, dict[str, float]]] = {
    "deepseek-r1": {
        "offline": {},
        "server": {"ttft_p99_ms": 2000, "tpot_p99_ms": 80},
        "interactive": {"ttft_p99_ms": 1500, "tpot_p99_ms": 15},
    },
    "qwen3-vl-235b-a22b": {
        "offline": {},
        "server": {"e2e_p99_ms": 12_000},
        "interactive": {"e2e_p99_ms": 1_500},
    },
}
OBJECTIVES = ("fastest", "most frugal")
#: What is searched. An instance's GPUs divide the rack; replicas of attention share one set of experts.
INSTANCES = (4, 8, 12, 18, 24, 36, 72)
TENSORS = (1, 2, 4, 8)
PIPELINES = (1, 2)
PREFILL_SHARES = (0.0, 1 / 9, 2 / 9, 1 / 3, 1 / 2)
PRECISIONS = ("nvfp4", "fp8")
KV_PRECISIONS = ("auto", "fp8")
BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
#: The smaller only where prompts have GPUs of their own: beside decodes, chunks are as large as arrivals make them.
CHUNKS = (2048, 8192)
CLOCK_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
#: Of layouts whose estimates are so close to the best, the one with the fewest GPUs in an instance is taken: it is the
#: simplest to run, and the estimate cannot tell them apart.
AS_GOOD_SHARE = 0.97
#: Rates are tried in such steps from the estimated one on, up while they keep the limits, else down.
RATE_STEP = 1.05
MAX_RATES = 10
#: Estimates know no queues: limits are taken to be so much tighter.
_MARGIN = 0.93


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One cell of the table."""

    model: str
    key: str
    scenario: str
    objective: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An instance as it would be started, with its estimate."""

    settings: EngineSettings
    batch: int
    clock_mhz: int
    estimate: Estimate

    @property
    def layout(self) -> tuple[int, int, int, bool, int]:
        """What tells layouts apart."""
        one = self.settings
        return (one.tensor_parallel, one.pipeline_parallel, one.data_parallel, one.expert_parallel, one.prefill_gpus)

    def score(self, objective: str) -> float:
        """Tokens a second per GPU, or per watt."""
        per = self.settings.num_gpus if objective == "fastest" else self.estimate.power_w
        return self.estimate.tok_s / per

    def words(self) -> str:
        """Say the layout: attention's parallelism, the experts', and the GPUs for prompts."""
        one = self.settings
        parts = [f"{RACK // one.num_gpus} x {one.num_gpus} GPUs: TP{one.tensor_parallel}"]
        parts += [f"DP{one.data_parallel}"] if one.data_parallel > 1 else []
        parts += [f"PP{one.pipeline_parallel}"] if one.pipeline_parallel > 1 else []
        parts += [f"EP{one.tensor_parallel * one.data_parallel}"] if one.expert_parallel else []
        parts += [f"{one.prefill_gpus} for prompts"] if one.prefill_gpus else []
        kv = one.precision if one.kv_precision == "auto" else one.kv_precision
        return f"{' '.join(parts)}; {one.precision}, KV {'bf16' if one.kv_precision == 'auto' else kv}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was found for a cell, in figures of the whole rack."""

    question: Question
    candidate: Candidate
    served: Served
    #: Requests a second; None offline.
    rate_per_s: float | None

    @property
    def tok_s(self) -> float:
        """Output tokens a second of the rack."""
        return self.served.tok_s * RACK / self.candidate.settings.num_gpus

    @property
    def power_w(self) -> float:
        """Watts of the rack's GPUs."""
        return self.served.power_w * RACK / self.candidate.settings.num_gpus


def main() -> int:
    """Answer every cell and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=list(WORKLOADS), help="only this one")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: cores)")
    parser.add_argument("--estimates", action="store_true", help="tell the estimates of the best, simulate nothing")
    arguments = parser.parse_args()
    models = [name for name in WORKLOADS if arguments.model in (None, name)]
    pairs = [(model, key) for model in models for key in KEYS]
    tell = partial(answer, is_simulated=not arguments.estimates)
    with ProcessPoolExecutor(arguments.workers) as pool:
        answers = [one for answered in pool.map(tell, *zip(*pairs, strict=True)) for one in answered]
        scaled = list(pool.map(across_racks, (1, 2, 3))) if "deepseek-r1" in models else []
    words = (
        "ESTIMATES of steady states, nothing was simulated request by request" if arguments.estimates else "SIMULATED"
    )
    print(f"{words}; watts are of the 72 GPUs of a rack alone")
    print(table(answers))
    for num_racks, tok_s in enumerate(scaled, start=1):
        print(f"deepseek-r1 offline, one engine, experts over {num_racks} racks: {tok_s / num_racks / scaled[0]:.1%}")
    finish("rack_what_if", figures_of(answers, scaled))
    return 0


def answer(model: str, key: str, *, is_simulated: bool = True) -> list[Answer]:
    """Answer every scenario and objective of a model on a rack; those that no layout can keep are missing."""
    every = list(candidates(model, key))
    answers = []
    for scenario, limits_ms in LIMITS_MS[model].items():
        able = [one for one in every if _keeps(one.estimate, Mean.of(WORKLOADS[model]), limits_ms)]
        for objective in OBJECTIVES:
            question = Question(model=model, key=key, scenario=scenario, objective=objective)
            best = _best(question, able, is_simulated=is_simulated)
            found = f"none of {len(every)} combinations keeps the limits" if best is None else row(best)
            print(f"{model} {key} {scenario} {objective}: {found}", file=sys.stderr, flush=True)
            if best is not None:
                answers.append(best)
    return answers


def candidates(model: str, key: str) -> Iterator[Candidate]:
    """Yield every combination that fits."""
    accelerator, shape = ACCELERATORS[key], load_shape(model)
    mean = Mean.of(WORKLOADS[model])
    clocks_mhz = [_snapped(accelerator, share * accelerator.clocks_mhz[-1]) for share in CLOCK_SHARES]
    for settings in layouts(model):
        try:
            instance = Instance(shape, settings, accelerator)
        except InvalidSettings:
            continue
        for batch in BATCHES:
            if not instance.holds(batch, mean):
                break
            for clock_mhz in clocks_mhz:
                estimate = instance.estimate(batch, mean, clock_mhz)
                if estimate is not None:
                    yield Candidate(settings=settings, batch=batch, clock_mhz=clock_mhz, estimate=estimate)


def layouts(model: str) -> Iterator[EngineSettings]:
    """Yield what an instance may look like; the impossible ones are for the engine to refuse."""
    longest = max_context(WORKLOADS[model])
    for num_gpus in INSTANCES:
        for tensor in TENSORS:
            for pipeline in PIPELINES:
                for share in PREFILL_SHARES:
                    per_replica = tensor * pipeline
                    prefill = round(share * num_gpus / per_replica) * per_replica
                    replicas = (num_gpus - prefill) // per_replica
                    if replicas < 1 or replicas * per_replica + prefill != num_gpus or (share and not prefill):
                        continue
                    for precision in PRECISIONS:
                        for kv_precision in KV_PRECISIONS:
                            for chunk in CHUNKS if prefill else CHUNKS[-1:]:
                                yield EngineSettings(
                                    model=model,
                                    precision=precision,
                                    kv_precision=kv_precision,
                                    prefill_chunk=chunk,
                                    tensor_parallel=tensor,
                                    pipeline_parallel=pipeline,
                                    data_parallel=replicas,
                                    expert_parallel=tensor * replicas > 1,
                                    prefill_gpus=prefill,
                                    max_context=longest,
                                    block_size=64,
                                )


def across_racks(num_racks: int) -> float:
    """Return tokens a second of DeepSeek-R1 offline as one engine whose experts lie on all GPUs of several racks."""
    model = "deepseek-r1"
    settings = EngineSettings(
        model=model,
        precision="nvfp4",
        kv_precision="fp8",
        prefill_chunk=8192,
        data_parallel=RACK * num_racks,
        expert_parallel=True,
    )
    instance = Instance(load_shape(model), settings, ACCELERATORS["gb300-nvl72"])
    clock_mhz = ACCELERATORS["gb300-nvl72"].clocks_mhz[-1]
    mean = Mean.of(WORKLOADS[model])
    estimates = [instance.estimate(batch, mean, clock_mhz) for batch in BATCHES if instance.holds(batch, mean)]
    return max(one.tok_s for one in estimates if one is not None)


def table(answers: Sequence[Answer]) -> str:
    """Return the answers as Markdown."""
    head = "| model | scenario | rack | sought | layout | batch | MHz | tok/s | kW | tok/s per MW | p99 |"
    return "\n".join([head, "|" + "---|" * 11, *(row(one) for one in answers)])


def row(one: Answer) -> str:
    """Return one answer as a row of the table; its batch is that of a replica."""
    asked, knobs = one.question, one.candidate
    limits_ms = LIMITS_MS[asked.model][asked.scenario]
    latencies = ", ".join(f"{name[:4].upper()} {one.served.latencies_ms[name]:,.0f} ms" for name in limits_ms) or "-"
    return (
        f"| {asked.model} | {asked.scenario} | {asked.key} | {asked.objective} | {knobs.words()} | {knobs.batch} | "
        f"{knobs.clock_mhz} | {one.tok_s:,.0f} | {one.power_w / 1000:.1f} | "
        f"{1e6 * one.tok_s / one.power_w:,.0f} | {latencies.replace('_', '')} |"
    )


def figures_of(answers: Sequence[Answer], scaled: Sequence[float]) -> dict[str, float]:
    """Name every cell's tokens a second and per megawatt, and the ratios of the racks."""
    figures: dict[str, float] = {}
    for one in answers:
        asked = one.question
        name = f"{asked.model}_{asked.scenario}_{asked.objective}_{asked.key}".replace("-", "_").replace(" ", "_")
        figures[f"{name}_tok_s"] = one.tok_s
        figures[f"{name}_tok_s_per_mw"] = 1e6 * one.tok_s / one.power_w
    figures |= {f"experts_over_{racks}_racks_share": tok_s / racks / scaled[0] for racks, tok_s in enumerate(scaled, 1)}
    return figures


def _best(question: Question, able: Sequence[Candidate], *, is_simulated: bool) -> Answer | None:
    """Simulate the layout that looks best, at its best batch and clock; the next one where it fails."""
    best_of_layout: dict[tuple[int, int, int, bool, int], Candidate] = {}
    for one in sorted(able, key=lambda one: one.score(question.objective), reverse=True):
        best_of_layout.setdefault(one.layout, one)
    enough = AS_GOOD_SHARE * max((one.score(question.objective) for one in best_of_layout.values()), default=0.0)
    for candidate in sorted(best_of_layout.values(), key=lambda one: _order(one, question.objective, enough)):
        try:
            served, rate_per_s = _simulate(question, candidate) if is_simulated else _as_estimated(question, candidate)
        except NotEnoughMemory:
            continue
        if served is not None:
            return Answer(question=question, candidate=candidate, served=served, rate_per_s=rate_per_s)
    return None


def _order(candidate: Candidate, objective: str, enough: float) -> tuple[bool, int, float]:
    """Return what puts the smallest of the good instances first, then the others by what they promise."""
    score = candidate.score(objective)
    return (score < enough, candidate.settings.num_gpus if score >= enough else 0, -score)


def _keeps(estimate: Estimate, mean: Mean, limits_ms: dict[str, float]) -> bool:
    """Tell whether an estimate is inside limits made tighter; the longest outputs take longest end to end."""
    seen = _latencies_ms(estimate, mean)
    return all(seen[name] <= _MARGIN * bound_ms for name, bound_ms in limits_ms.items())


def _latencies_ms(estimate: Estimate, mean: Mean) -> dict[str, float]:
    step_ms, prompt_step_ms = 1000 * estimate.step_s, 1000 * estimate.prompt_step_s
    return {
        "ttft_p99_ms": 2 * prompt_step_ms,
        "tpot_p99_ms": step_ms,
        "e2e_p99_ms": 2 * prompt_step_ms + mean.longest_output * step_ms,
    }


def _as_estimated(question: Question, candidate: Candidate) -> tuple[Served, float | None]:
    """Return the estimate as if it had been served."""
    mean = Mean.of(WORKLOADS[question.model])
    one = candidate.estimate
    served = Served(
        tok_s=one.tok_s,
        power_w=one.power_w,
        latencies_ms=_latencies_ms(one, mean),
        num_ended=0,
        is_overloaded=False,
    )
    return served, None if question.scenario == "offline" else one.tok_s / mean.output


def _simulate(question: Question, candidate: Candidate) -> tuple[Served | None, float | None]:
    """Run a candidate: offline as it is, else at the highest rate that keeps the limits; no figures where none does."""
    shape, accelerator = load_shape(question.model), ACCELERATORS[question.key]
    spec = WORKLOADS[question.model]
    if question.scenario == "offline":
        settings = replace(candidate.settings, max_batch=candidate.batch)
        return run(shape, settings, accelerator, spec, candidate.clock_mhz), None
    # Room for more than the mean, so that bursts run instead of waiting.
    settings = replace(candidate.settings, max_batch=candidate.batch + max(4, candidate.batch // 4))
    rate_per_s = candidate.estimate.tok_s / Mean.of(spec).output
    kept: tuple[Served | None, float | None] = (None, None)
    is_climbing = True
    for attempt in range(MAX_RATES):
        at_rate = replace(spec, scenario="server", rate_per_s=rate_per_s)
        served = run(shape, settings, accelerator, at_rate, candidate.clock_mhz)
        is_inside = _is_inside(served, LIMITS_MS[question.model][question.scenario])
        if is_inside:
            kept = (served, rate_per_s)
        if attempt == 0:
            is_climbing = is_inside
        if is_inside != is_climbing:
            break
        rate_per_s = rate_per_s * RATE_STEP if is_climbing else rate_per_s / RATE_STEP
    return kept


def _is_inside(served: Served, limits_ms: dict[str, float]) -> bool:
    return not served.is_overloaded and all(served.latencies_ms[name] <= limits_ms[name] for name in limits_ms)


def _snapped(accelerator: Accelerator, clock_mhz: float) -> int:
    return max(mhz for mhz in accelerator.clocks_mhz if mhz <= clock_mhz)


if __name__ == "__main__":
    sys.exit(main())
