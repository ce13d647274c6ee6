"""What a simulated engine is told of what it runs on: time and room, nothing of watts or makers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.simulated.work import StepWork


class Limits(Protocol):
    """What a machine has of what an engine needs."""

    @property
    def num_gpus(self) -> int:
        """GPUs that there are."""

    @property
    def memory_bytes(self) -> float:
        """Memory of each GPU that an engine may fill."""

    @property
    def arithmetics(self) -> frozenset[str]:
        """Arithmetic of matrix products that runs at full speed: bf16, fp16, fp8, int8, nvfp4, mxfp4."""

    @property
    def domain_size(self) -> int:
        """GPUs in one scale-up domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLimits:
    """The same as a record."""

    num_gpus: int
    memory_bytes: float
    arithmetics: frozenset[str]
    domain_size: int


class Machine(Protocol):
    """A virtual clock, and how long things take on it."""

    @property
    def limits(self) -> Limits:
        """What there is."""

    def now_s(self) -> float:
        """Seconds on the machine's clock."""

    def advance_to(self, time_s: float) -> None:
        """Let time pass until then; what runs no step meanwhile idles."""

    def begin(self, label: str) -> None:
        """Begin a run: its chance is drawn from the machine's seed and this label alone."""

    def run(self, work: StepWork, start_s: float, *, lane: int = 0, num_steps: int = 1) -> float:
        """Do `num_steps` equal steps on one group of GPUs from `start_s` on, and return when they end.

        Does not move the clock: groups work side by side. A group's steps must be given in order of time.
        """

    def transfer_s(self, num_bytes: float) -> float:
        """Return how long one GPU takes to hand so many bytes to another group of GPUs."""
