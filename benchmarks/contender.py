"""Whoever serves in a benchmark: a process that loads a model and runs batches when told, and sleeps in between.

The child's side is `peers/serve.py`. Runs of several contenders are interleaved by whoever asks them in turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

PEERS = Path(__file__).parent / "peers"


class ContenderDied(Exception):
    """Its process ended or its library refused; the message has the last lines of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """What to start, and what it loads."""

    #: As in `vllm-compiled`; what stands before the first hyphen is compared as one: the better of it counts.
    name: str
    script: Path
    python: str
    #: Arguments of the peer's `load`.
    settings: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """Whose it is."""
        return self.name.partition("-")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One batch served; times in seconds, one for each request."""

    total_s: float
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]
    token_ids: tuple[tuple[int, ...], ...]


class RunningContender:
    """A contender's process, with its model loaded."""

    def __init__(self, contender: Contender) -> None:
        """Start it and wait for its model; raise ContenderDied."""
        self.contender = contender
        self._log = tempfile.TemporaryFile(mode="w+b")  # noqa: SIM115 - lives as long as the process; closed in close()
        self._process = subprocess.Popen(
            [contender.python, str(PEERS / "serve.py"), str(contender.script)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, encoding="utf-8",
            env=os.environ | contender.environment, start_new_session=True,
        )  # fmt: skip
        try:
            #: What it is, in words.
            self.words = str(self.ask("load", **contender.settings))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def process(self) -> psutil.Process:
        """The process whose CPU time, with that of what it started, is the contender's."""
        return psutil.Process(self._process.pid)

    def run(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Run:
        """Serve prompts at once, greedily, `num_tokens` of output each whatever they are; raise ContenderDied."""
        reply = self.ask("run", prompts=[list(prompt) for prompt in prompts], num_tokens=num_tokens)
        found = Run(
            total_s=reply["total_s"],
            ttft_s=tuple(reply["ttft_s"]),
            tpot_s=tuple(reply["tpot_s"]),
            token_ids=tuple(map(tuple, reply["token_ids"])),
        )
        if [len(ids) for ids in found.token_ids] != [num_tokens] * len(prompts):
            raise ContenderDied(f"{self.contender.name}: gave other numbers of tokens than {num_tokens} each")
        return found

    def ask(self, op: str, **arguments: Any) -> Any:
        """Call a method of the peer and return what it returned; raise ContenderDied."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": "its process ended"}
        if "error" in answer:
            raise ContenderDied(f"{self.contender.name}: {answer['error']}{self._last_lines()}")
        return answer["reply"]

    def close(self) -> None:
        """End the process and everything it started. Idempotent."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        self._log.close()

    def _last_lines(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()[-3:]
        return "; its last log lines: " + " | ".join(lines) if lines else ""
