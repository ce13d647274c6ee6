"""Published operating points of LLM serving in the form of the ML.ENERGY leaderboard v3, and the steps they consist of.

Closed load of max_num_seqs requests, vLLM. The points themselves are not part of this repository. What they do not tell
is assumed: PROMPTS, the lengths of prompts by task, chosen once so that fits to all rows are about best. They make
little difference: for mean chat prompts of 165 to 450 tokens, in-sample medians of dense rows differ by two points.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from engine.settings import EngineSettings
from engine.simulated.layout import WorkModel
from engine.simulated.machine import MachineLimits
from engine.simulated.shapes import load_shape
from engine.simulated.work import StepWork
from probes.simulated.accelerators import ACCELERATORS

GPUS = {"H100": "h100-sxm", "B200": "b200"}


class Prompt(NamedTuple):
    """Prompts of one length: their share of all."""

    share: float
    tokens: int


#: Short and long prompts of a task; assumption.
PROMPTS = {
    "lm-arena-chat": (Prompt(0.9, 80), Prompt(0.1, 2000)),
    "gpqa": (Prompt(1.0, 250), Prompt(0.0, 1000)),
    "sourcegraph-fim": (Prompt(1.0, 1200), Prompt(0.0, 1200)),
}
#: Above so many arrivals a step, their number is taken to be the same in every step.
MOST_ARRIVALS = 6.0
COLUMNS = ("model_task", "gpu", "num_gpus", "tp", "ep", "dp", "max_num_seqs", "avg_batch", "tok_s", "power_w",
           "j_per_tok", "itl_p50_ms", "itl_p90_ms", "itl_p99_ms", "avg_output_len")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published operating point."""

    model: str
    task: str
    gpu: str
    num_gpus: int
    data_parallel: int
    is_expert_parallel: bool
    max_num_seqs: int
    batch: float
    tok_s: float
    #: Of all GPUs.
    power_w: float
    itl_ms: float
    output_tokens: float
    #: Whether its host may be taken for a busy one; see `host`.
    may_wait: bool = True

    @property
    def step_s(self) -> float:
        """Mean seconds from one token of a sequence to its next."""
        return self.batch / self.tok_s

    @property
    def arrivals(self) -> float:
        """Prompts that a mean step computes: as many as sequences end."""
        return self.batch / self.output_tokens

    @property
    def base_model(self) -> str:
        """The model without precision and variant."""
        name = self.model.removesuffix("-FP8")
        return name.split("-Instruct")[0].split("-Thinking")[0]

    @property
    def has_experts(self) -> bool:
        """Whether it is a mixture of experts."""
        return load_shape(self.model).experts is not None

    @property
    def host(self) -> str:
        """Under which heading the host's waits are learnt, if any.

        Rows of a single B200 have gaps that batch, model and lengths do not explain: about 20 ms more wherever a model
        thinks aloud for thousands of tokens, at any batch. Rows of one H100, and of several B200s, have none. Reading:
        eight such runs shared a machine, and the parsing of long thoughts kept its cores busy. gpt-oss, which needs no
        such parsing, has none; Nemotron, which thinks in chats as well, has some there.
        """
        if not self.may_wait or self.gpu != "B200" or self.num_gpus > 1:
            return ""
        if "Nemotron" in self.model or (self.task == "gpqa" and "gpt-oss" not in self.model):
            return f"packed {self.task}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One predicted operating point."""

    tok_s: float
    power_w: float
    itl_ms: float
    batch: float


def read_rows(path: Path) -> list[Row]:
    """Read a file of operating points."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_row(fields) for fields in csv.DictReader(file)]


def _row(fields: Mapping[str, str]) -> Row:
    name, _, task = fields["model_task"].rpartition("__")
    return Row(
        model=name.replace("__", "/"),
        task=task,
        gpu=fields["gpu"],
        num_gpus=int(fields["num_gpus"]),
        data_parallel=int(fields["dp"]),
        is_expert_parallel=int(fields["ep"]) > 1,
        max_num_seqs=int(fields["max_num_seqs"]),
        batch=float(fields["avg_batch"]),
        tok_s=float(fields["tok_s"]),
        power_w=float(fields["power_w"]),
        itl_ms=float(fields["itl_p50_ms"]),
        output_tokens=float(fields["avg_output_len"]),
    )


def settings_of(model: str, num_gpus: int, data_parallel: int, is_expert_parallel: bool) -> EngineSettings:
    """Return precision and layout of a row's server."""
    is_fp8 = model.endswith("-FP8") or "deepseek" in model
    return EngineSettings(
        model=model,
        precision="fp8" if is_fp8 else "bf16",
        tensor_parallel=num_gpus // data_parallel,
        data_parallel=data_parallel,
        expert_parallel=is_expert_parallel and num_gpus > 1,
    )


@cache
def work_model(model: str, gpu: str, num_gpus: int, data_parallel: int, is_expert_parallel: bool) -> WorkModel:
    """Lay a model out as a row has it."""
    accelerator = ACCELERATORS[GPUS[gpu]]
    limits = MachineLimits(
        num_gpus=num_gpus,
        memory_bytes=accelerator.memory_bytes,
        arithmetics=frozenset(accelerator.flops),
        domain_size=accelerator.domain_size,
    )
    return WorkModel(load_shape(model), settings_of(model, num_gpus, data_parallel, is_expert_parallel), limits)


def steps_of(row: Row) -> tuple[tuple[float, StepWork], ...]:
    """Return the kinds of steps of a steady state, by the prompts computed in them: share and work.

    Sequences end independently of one another, so that the numbers of short and of long prompts in a step are Poisson.
    """
    short, long = PROMPTS[row.task]
    mean = sum(prompt.share * prompt.tokens for prompt in (short, long))
    context = mean + row.output_tokens / 2
    return tuple(
        (of_short * of_long, _step(row, context, ((0, short.tokens),) * num_short + ((0, long.tokens),) * num_long))
        for num_short, of_short in _poisson(row.arrivals * short.share)
        for num_long, of_long in _poisson(row.arrivals * long.share)
    )


def _step(row: Row, context: float, chunks: Sequence[tuple[int, int]]) -> StepWork:
    model = work_model(row.model, row.gpu, row.num_gpus, row.data_parallel, row.is_expert_parallel)
    decodes = max(1, round(row.batch))
    window = load_shape(row.model).window
    return model.step(
        num_decodes=decodes,
        decode_context=round(decodes * context),
        local_context=round(decodes * min(context, window)) if window else 0,
        chunks=chunks,
        num_sampled=decodes + len(chunks),
    )


def _poisson(mean: float) -> list[tuple[int, float]]:
    """Return counts and their shares; only the mean where it is large."""
    if mean > MOST_ARRIVALS:
        return [(round(mean), 1.0)]
    if mean == 0:
        return [(0, 1.0)]
    counts = range(int(mean + 3 * math.sqrt(mean) + 2))
    shares = [math.exp(count * math.log(mean) - math.lgamma(count + 1)) for count in counts]
    return [(count, share / sum(shares)) for count, share in zip(counts, shares, strict=True)]
