"""A machine whose steps take a time that a test can reckon by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from engine.simulated.machine import MachineLimits
from engine.simulated.work import StepWork

LIMITS = MachineLimits(
    num_gpus=8, memory_bytes=80e9, arithmetics=frozenset({"fp32", "bf16", "fp16", "fp8", "int8"}), domain_size=8
)


@dataclass
class FakeMachine:
    """Every step takes `step_s(work)`; what was run is kept as (lane, start, steps, work)."""

    step_s: Callable[[StepWork], float] = lambda work: 0.25
    limits: MachineLimits = LIMITS
    time_s: float = 0.0
    ran: list[tuple[int, float, int, StepWork]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    def now_s(self) -> float:
        return self.time_s

    def advance_to(self, time_s: float) -> None:
        assert time_s >= self.time_s, "time does not run backwards"
        self.time_s = time_s

    def begin(self, label: str) -> None:
        self.labels.append(label)

    def run(self, work: StepWork, start_s: float, *, lane: int = 0, num_steps: int = 1) -> float:
        self.ran.append((lane, start_s, num_steps, work))
        return start_s + num_steps * self.step_s(work)

    def transfer_s(self, num_bytes: float) -> float:
        return 1.0


def with_memory(memory_bytes: float) -> FakeMachine:
    """Return a machine with so much memory a GPU."""
    return FakeMachine(limits=replace(LIMITS, memory_bytes=memory_bytes))
