"""Who is compared in `engine_vs_peers`: what each loads and under which environment.

All get one thread for each core that this process may use.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.contender import PEERS, Contender
from benchmarks.peers.gguf_copy import gguf_copy

#: Interpreters of the peers' environments, where an option names none; empty leaves a peer out.
VLLM_PYTHON = os.environ.get("WATTFRONT_VLLM_PYTHON", "")
LLAMACPP_PYTHON = os.environ.get("WATTFRONT_LLAMACPP_PYTHON", "")
HF_PYTHON = os.environ.get("WATTFRONT_HF_PYTHON", sys.executable)
#: Our default. At batch 32 int8 makes 380 tok/s with it and 332 with 4,096, whose activations leave the cache.
PREFILL_CHUNK = 256


def chosen(arguments: argparse.Namespace, folder: Path, *, max_batch: int, max_context: int) -> Iterator[Contender]:
    """Return the contenders that the options ask for, ours first."""
    model, sizes = str(folder), {"max_batch": max_batch, "max_context": max_context}
    for precision in dict.fromkeys(["fp32", *arguments.ours]):
        yield _ours(model, precision, sizes)
    if arguments.hf_python:
        yield Contender(
            name="hf", script=PEERS / "transformers_peer.py", python=arguments.hf_python,
            settings={"model": model, "num_threads": _num_threads()}, environment=_openmp(),
        )  # fmt: skip
    for how in arguments.vllm if arguments.vllm_python else ():
        yield Contender(
            name=f"vllm-{how}", script=PEERS / "vllm_peer.py", python=arguments.vllm_python,
            settings={"model": model, "is_eager": how == "eager", **sizes}, environment=_vllm(),
        )  # fmt: skip
    for precision in arguments.llamacpp if arguments.llamacpp_python else ():
        yield Contender(
            name=f"llamacpp-{precision}", script=PEERS / "llamacpp_peer.py", python=arguments.llamacpp_python,
            settings={"model": str(gguf_copy(folder, precision)), "precision": precision,
                      "num_threads": _num_threads(), **sizes},
            environment=_openmp(),
        )  # fmt: skip


def _ours(model: str, precision: str, sizes: dict[str, int]) -> Contender:
    return Contender(
        name=f"ours-{precision}", script=PEERS / "embedded_peer.py", python=sys.executable,
        settings={"model": model, "precision": precision, "prefill_chunk": PREFILL_CHUNK, **sizes},
        environment={"PYTHONPATH": str(PEERS.parent.parent)},
    )  # fmt: skip


def _vllm() -> dict[str, str]:
    """Return what vLLM's CPU build is told: its cores, a cache of 2 GiB, and to ask nobody anything.

    Not OMP_NUM_THREADS: its worker takes one for each core, its other processes should take fewer.
    """
    return {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


def _openmp() -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(_num_threads())}


def _num_threads() -> int:
    return len(os.sched_getaffinity(0))
