"""A peer that serves token numbers in no time, and misbehaves as its settings say. Needs the standard library only."""

from __future__ import annotations

import os
import sys
from typing import Any


class Peer:
    def load(self, *, label: str, fault: str = "") -> str:
        sys.stdout.write("a library greets on standard output\n")
        sys.stderr.write("a library warns on standard error\n")
        if fault == "load":
            raise RuntimeError("no such model")
        self._fault = fault
        return f"{label} of process {os.getpid()}, {os.environ.get('FAKE_SETTING')}"

    def run(self, *, prompts: list[list[int]], num_tokens: int) -> dict[str, Any]:
        if self._fault == "death":
            sys.stderr.write("cannot go on\n")
            sys.stderr.flush()
            os._exit(3)
        num_given = num_tokens - 1 if self._fault == "short" else num_tokens
        return {
            "total_s": 2.0,
            "ttft_s": [0.1 * (i + 1) for i in range(len(prompts))],
            "tpot_s": [0.01] * len(prompts),
            "token_ids": [[sum(prompt) + i for i in range(num_given)] for prompt in prompts],
        }
