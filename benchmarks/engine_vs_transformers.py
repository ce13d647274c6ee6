"""Output tokens per second of the embedded engine against transformers' `generate`.

Same weights, same prompts (real text), fp32, greedy, end-of-sequence ignored, same process and thread settings; runs
of the two are interleaved and medians of each batch size compared. The time is that of the whole call, prefill
included: B requests at once, each with a prompt of 128 tokens and 64 tokens of output.

Prefill is bound by the matrix rate and the same for both; what differs is decode, where one step reads all weights
once for the whole batch: there a small batch is bound by memory bandwidth and by what a step costs beside the products.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.machine import ForeignLoad, describe, finish
from engine.embedded.loop import EmbeddedEngine
from engine.embedded.models import default_cache_dir, resolve
from engine.load import ClosedLoad
from engine.request import Request
from engine.settings import EngineSettings
from tuner.workload import corpus_text

PROMPT, OUTPUT = 128, 64


def main() -> None:
    """Run every batch size and print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="interleaved runs of each (default 3)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16, 32], help="batch sizes")
    arguments = parser.parse_args()

    files = resolve("smollm2-135m", cache_dir=default_cache_dir(), progress=lambda what, share: None)
    opened = EmbeddedEngine(
        EngineSettings(model="smollm2-135m", max_batch=max(arguments.batch), prefill_chunk=4096, max_context=256),
        files.folder,
    )
    reference = AutoModelForCausalLM.from_pretrained(files.folder, dtype=torch.float32).eval()
    token_ids = opened.encode(corpus_text())
    prompts = [token_ids[PROMPT * i : PROMPT * (i + 1)] for i in range(max(arguments.batch))]

    print(f"output tokens/s, prompt {PROMPT}, output {OUTPUT}, fp32; {describe()}")
    print(f"{'batch':>5} {'transformers':>13} {'ours':>8} {'ratio':>6}  foreign cores (transformers, ours)")
    figures: dict[str, float] = {}
    for batch in arguments.batch:
        ours, theirs, foreign = _compare(opened, reference, prompts[:batch], arguments.runs)
        figures |= {f"ratio_b{batch}": ours / theirs, f"ours_tok_s_b{batch}": ours, f"hf_tok_s_b{batch}": theirs}
        print(f"{batch:>5} {theirs:>13.1f} {ours:>8.1f} {ours / theirs:>5.2f}x  {foreign}", flush=True)
    finish("engine_vs_transformers", figures)


def _compare(
    opened: EmbeddedEngine, reference: Any, prompts: list[tuple[int, ...]], num_runs: int
) -> tuple[float, float, str]:
    """Return our and their median tokens/s, and how busy others kept the machine."""
    contenders: dict[str, Callable[[], None]] = {
        "theirs": lambda: _generate(reference, prompts),
        "ours": lambda: _serve(opened, prompts),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    foreign: dict[str, list[float]] = {name: [] for name in contenders}
    _generate(reference, [prompt[:8] for prompt in prompts], num_tokens=2)  # both start warm
    for _ in range(num_runs):
        for name, run in contenders.items():
            load, begun_s = ForeignLoad(), time.monotonic()
            run()
            rates[name].append(len(prompts) * OUTPUT / (time.monotonic() - begun_s))
            foreign[name].append(load.cores())
    busy = ", ".join(f"{statistics.median(values):.2f}" for values in foreign.values())
    return statistics.median(rates["ours"]), statistics.median(rates["theirs"]), busy


def _serve(opened: EmbeddedEngine, prompts: list[tuple[int, ...]]) -> None:
    requests = [
        Request(request_id=str(i), prompt_token_ids=prompt, max_tokens=OUTPUT, ignore_eos=True)
        for i, prompt in enumerate(prompts)
    ]
    records = opened.run(ClosedLoad(requests=iter(requests), concurrency=len(requests)), lambda _: True)
    assert all(len(record.token_ids) == OUTPUT for record in records)


def _generate(reference: Any, prompts: list[tuple[int, ...]], num_tokens: int = OUTPUT) -> None:
    input_ids = torch.tensor(prompts)
    with torch.inference_mode():
        output = reference.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    assert output.shape[1] == input_ids.shape[1] + num_tokens


if __name__ == "__main__":
    main()
