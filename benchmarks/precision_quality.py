"""What each precision of the embedded engine does to perplexity, on public-domain prose, against fp32.

The text is the first 20,000 tokens of `tuner/corpus/prose.txt`, in windows of 512: each token is scored behind those
before it in its window, the first of a window not at all. Perplexity is exp(-mean log p). `top-1` is the share of
positions at which the likeliest next token is fp32's. A precision that this device lacks is emulated, and marked:
its answers are measured here, and nothing else of it is.

With --model and --precision it tells how bad a precision would be for a model of one's own, on whatever machine.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from benchmarks.machine import describe, finish
from engine.embedded.loop import EmbeddedEngine
from engine.embedded.models import default_cache_dir, resolve
from engine.embedded.precision import KV_PRECISIONS, MODES
from engine.settings import EngineSettings
from tuner.workload import corpus_text

NUM_TOKENS, WINDOW = 20_000, 512
REFERENCE = ("fp32", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A precision's view of the text."""

    perplexity: float
    top_token_ids: tuple[int, ...]
    is_emulated: bool
    seconds: float


def main() -> None:
    """Score the text in fp32 and in every precision asked for; print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m", help="as in a job (default smollm2-135m)")
    parser.add_argument("--precision", nargs="+", choices=MODES, default=list(MODES), help="(default: all)")
    parser.add_argument("--kv-precision", nargs="*", choices=KV_PRECISIONS, default=["bf16", "fp8", "int8"],
                        help="formats of the KV cache to score with fp32 weights")  # fmt: skip
    parser.add_argument("--threads", type=int, default=1, help="compute threads (default 1)")
    arguments = parser.parse_args()

    files = resolve(arguments.model, cache_dir=default_cache_dir(), progress=lambda what, share: None)
    asked = [*((name, "auto") for name in arguments.precision), *(("fp32", name) for name in arguments.kv_precision)]
    print(f"perplexity of {arguments.model} over {NUM_TOKENS} tokens in windows of {WINDOW}; {describe()}")
    print(f"{'precision':<14} {'KV':<5} {'perplexity':>10} {'ratio':>8} {'top-1':>7} {'seconds':>8}")
    figures: dict[str, float] = {}
    reference: Scored | None = None
    for precision, kv_precision in dict.fromkeys([REFERENCE, *asked]):
        scored = _scored(arguments.model, files.folder, precision, kv_precision, arguments.threads)
        reference = reference or scored
        ratio, agreement = scored.perplexity / reference.perplexity, _agreement(scored, reference)
        mark = " emulated" if scored.is_emulated else ""
        print(f"{precision:<14} {kv_precision:<5} {scored.perplexity:>10.3f} {ratio:>8.4f} {agreement:>7.4f} "
              f"{scored.seconds:>8.0f}{mark}", flush=True)  # fmt: skip
        name = precision if kv_precision == "auto" else f"{precision}_kv_{kv_precision}"
        figures |= {f"perplexity_ratio_{name}": ratio, f"top1_{name}": agreement}
    assert reference is not None  # it is the first
    finish("precision_quality", figures | {"perplexity_fp32": reference.perplexity})


def _scored(model: str, folder: Path, precision: str, kv_precision: str, num_threads: int) -> Scored:
    """Score the text's windows in one precision."""
    begun_s = time.monotonic()
    settings = EngineSettings(
        model=model,
        precision=precision,
        kv_precision=kv_precision,
        can_emulate=True,
        max_batch=1,
        prefill_chunk=WINDOW,
        max_context=WINDOW,
        num_threads=num_threads,
    )
    opened = EmbeddedEngine(settings, folder)
    scores = [opened.score(window) for window in _windows(opened.encode(corpus_text()))]
    logprobs = list(chain.from_iterable(one.logprobs for one in scores))
    return Scored(
        perplexity=math.exp(-math.fsum(logprobs) / len(logprobs)),
        top_token_ids=tuple(chain.from_iterable(one.top_token_ids for one in scores)),
        is_emulated=opened.info.is_emulated,
        seconds=time.monotonic() - begun_s,
    )


def _windows(token_ids: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the first NUM_TOKENS tokens in pieces."""
    if len(token_ids) < NUM_TOKENS:
        raise SystemExit(f"the text has {len(token_ids)} tokens with this model's tokenizer, not {NUM_TOKENS}")
    for start in range(0, NUM_TOKENS, WINDOW):
        yield token_ids[start : min(start + WINDOW, NUM_TOKENS)]


def _agreement(one: Scored, other: Scored) -> float:
    pairs = zip(one.top_token_ids, other.top_token_ids, strict=True)
    return sum(a == b for a, b in pairs) / len(one.top_token_ids)


if __name__ == "__main__":
    main()
