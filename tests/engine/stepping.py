"""An engine of which only time passes, for tests of how requests come to one."""

from __future__ import annotations

from engine.errors import RequestRefused
from engine.load import Progress
from engine.request import FinishReason, Request, RequestRecord
from engine.serve import unserved

#: Prompts of more tokens are refused.
LONGEST_PROMPT = 50


class SteppingEngine:
    """Gives each request in flight a token a step, on a clock of its own; implements `Stepper`."""

    def __init__(self, *, step_s: float = 0.1, longest_wait_s: float = float("inf")) -> None:
        self.time_s = 0.0
        self.step_s = step_s
        self.longest_wait_s = longest_wait_s
        #: Request, when it was due, when it was let in.
        self.let_in: list[tuple[str, float, float]] = []
        self.flight: dict[str, tuple[Request, float, int]] = {}

    @property
    def num_in_flight(self) -> int:
        return len(self.flight)

    def now_s(self) -> float:
        return self.time_s

    def add(self, request: Request, arrival_s: float | None = None) -> None:
        if len(request.prompt_token_ids) > LONGEST_PROMPT:
            raise RequestRefused(f"request {request.request_id}: too long")
        due_s = self.time_s if arrival_s is None else arrival_s
        self.let_in.append((request.request_id, due_s, self.time_s))
        self.flight[request.request_id] = (request, due_s, request.max_tokens)

    def advance(self, until_s: float | None) -> Progress:
        self.time_s += self.step_s
        num_tokens = len(self.flight)
        self.flight = {name: (request, due_s, left - 1) for name, (request, due_s, left) in self.flight.items()}
        done = [name for name, (_, _, left) in self.flight.items() if left == 0]
        ended = tuple(self._end(name, FinishReason.LENGTH) for name in done)
        return Progress(
            time_s=self.time_s, num_running=num_tokens, num_waiting=0, num_tokens=num_tokens, num_prompt_tokens=0,
            finished=ended,
        )  # fmt: skip

    def wait_until(self, time_s: float) -> None:
        self.time_s = max(self.time_s, min(time_s, self.time_s + self.longest_wait_s))

    def cancel(self, request_id: str) -> RequestRecord | None:
        return self._end(request_id, FinishReason.CANCELLED) if request_id in self.flight else None

    def cancel_all(self) -> list[RequestRecord]:
        return [self._end(name, FinishReason.CANCELLED) for name in list(self.flight)]

    def _end(self, request_id: str, reason: FinishReason) -> RequestRecord:
        request, due_s, _ = self.flight.pop(request_id)
        return unserved(request, due_s, reason)
