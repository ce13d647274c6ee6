"""An engine, a meter and a device that do what a test says, on a clock that moves only with the engine's steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from engine.errors import EngineError
from engine.load import ClosedLoad, Load, LoadReport, Observer, Progress
from engine.request import FinishReason, Request, RequestRecord
from engine.serving import TokenScores
from engine.settings import EngineInfo, EngineSettings
from probes.device import Capability, DeviceInfo, DeviceKind, Meter, Method, PowerSource, Reading, Scope, Status
from probes.errors import ProbeError, RestoreFailed
from probes.settings import DeviceSettings, Settable
from tests.db.factories import make_engine_info
from tuner.gauge import QualityKey
from tuner.measurement import Quality

SOURCE = PowerSource(scope=Scope.CPU_PACKAGE, method=Method.COUNTER, detail="scripted counter")


@dataclass(slots=True)
class StepClock:
    """Seconds that pass only when an engine steps or a test says so."""

    now_s: float = 100.0


@dataclass(slots=True)
class ScriptedMeter:
    """Constant power between start and stop; `start_delay_s` is how long its counter lets it wait."""

    clock: StepClock
    power_w: float | None = 50.0
    reasons: tuple[str, ...] = ()
    start_delay_s: float = 0.0
    start_s: float | None = None
    calls: list[str] = field(default_factory=list)

    def start(self) -> float:
        self.calls.append("start")
        self.start_s = self.clock.now_s + self.start_delay_s
        return self.start_s

    def stop(self) -> Reading:
        self.calls.append("stop")
        assert self.start_s is not None
        return Reading(
            energy_j=None if self.power_w is None else self.power_w * (self.clock.now_s - self.start_s),
            start_s=self.start_s,
            end_s=self.clock.now_s,
            scope=SOURCE.scope,
            method=SOURCE.method,
            detail=SOURCE.detail,
            device_uuids=("cpu-1",),
            reasons=self.reasons,
        )

    def close(self) -> None:
        self.calls.append("close")


@dataclass(slots=True)
class ScriptedDevice:
    """A device that reads 50 W, and offers the knobs it is given."""

    clock: StepClock = field(default_factory=StepClock)
    knobs: tuple[Settable, ...] = ()
    source: PowerSource = SOURCE
    #: What it shows, by the seconds of its clock.
    shows: Callable[[float], Status] = field(default=lambda now_s: Status(time_s=now_s))
    metered_settings: list[DeviceSettings] = field(default_factory=list)
    kind: DeviceKind = DeviceKind.CPU
    power_w: float | None = 50.0
    reasons: tuple[str, ...] = ()
    meters: list[ScriptedMeter] = field(default_factory=list)
    metered_pids: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def info(self) -> DeviceInfo:
        return DeviceInfo(uuid="cpu-1", name="Scripted CPU", kind=self.kind, driver="none")

    @property
    def power_source(self) -> PowerSource | None:
        return self.source

    def capabilities(self) -> Sequence[Capability]:
        return ()

    def settables(self) -> Sequence[Settable]:
        return self.knobs

    def status(self) -> Status:
        return self.shows(self.clock.now_s)

    def meter(self, pids: Sequence[int], *, settings: DeviceSettings = DeviceSettings()) -> Meter:  # noqa: B008 - frozen
        self.metered_pids.append(tuple(pids))
        self.metered_settings.append(settings)
        self.meters.append(ScriptedMeter(self.clock, power_w=self.power_w, reasons=self.reasons))
        return self.meters[-1]


@dataclass(slots=True)
class ScriptedControl:
    """A control that writes down what it is asked; each error is raised once, by the call it is for."""

    calls: list[str] = field(default_factory=list)
    apply_error: ProbeError | None = None
    restore_error: RestoreFailed | None = None
    #: Answers to `problems`, in order; none are left when it is asked again.
    reasons: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def description(self) -> str:
        return "a script"

    def apply(self, settings: DeviceSettings) -> None:
        self.calls.append(f"apply {settings.as_dict()}")
        if self.apply_error is not None:
            raise self.apply_error

    def problems(self) -> tuple[str, ...]:
        return self.reasons.pop(0) if self.reasons else ()

    def restore(self) -> None:
        self.calls.append("restore")
        if self.restore_error is not None:
            raise self.restore_error

    def close(self) -> None:
        self.calls.append("close")


@dataclass(slots=True)
class ScriptedEngine:
    """Gives every running request one token per step of `step_s`, prompts at no cost."""

    settings: EngineSettings
    clock: StepClock
    #: What was done, in order, by all engines of a test.
    journal: list[str]
    step_s: float = 0.125  # exact in binary, so that figures are, too
    logprob: float = -2.0
    #: Of a kept pass from this one, at every position; None is an engine that shows only logprobs.
    divergence: float | None = 0.25
    score_error: EngineError | None = None
    #: Raised in the run's tenth step.
    run_error: EngineError | None = None
    #: `kind: message` with which every request ends instead of its last token.
    request_error: str | None = None
    has_tokens: bool = True
    load_report: LoadReport | None = None
    is_closed: bool = False
    is_emulated: bool = False

    @property
    def info(self) -> EngineInfo:
        return make_engine_info(
            precision=self.settings.precision,
            max_context=self.settings.max_context or 2048,
            pids=(11, 12),
            is_emulated=self.is_emulated,
        )

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def score(
        self,
        token_ids: tuple[int, ...],
        *,
        num_last: int | None = None,
        keep: str | None = None,
        against: str | None = None,
    ) -> TokenScores:
        self.journal.append(f"score {self.settings.precision}")
        if self.score_error is not None:
            raise self.score_error
        scored = token_ids[1:] if num_last is None else token_ids[1:][-num_last:]
        compared = against is not None and self.divergence is not None
        return TokenScores(
            top_token_ids=scored,
            logprobs=(self.logprob,) * len(scored),
            divergences=(self.divergence or 0.0,) * len(scored) if compared else None,
        )

    def set_prefill_chunk(self, prefill_chunk: int) -> None:
        self.journal.append(f"chunk {prefill_chunk}")
        self.settings = replace(self.settings, prefill_chunk=prefill_chunk)

    def report(self) -> LoadReport | None:
        return self.load_report

    def run(self, load: Load, observer: Observer) -> list[RequestRecord]:
        assert not self.is_closed
        assert isinstance(load, ClosedLoad)
        first = next(load.requests)
        if first.request_id.startswith("quality/"):
            return self._complete([first, *load.requests])
        load = replace(load, requests=chain([first], load.requests))
        self.journal.append(f"run {self.settings.precision} {load.concurrency}")
        running: list[_Running] = []
        records: list[RequestRecord] = []
        for step in range(10_000):
            if self.run_error is not None and step == 10:
                raise self.run_error
            arriving = min(load.concurrency, self.settings.max_batch) - len(running)
            running += [_Running(next(load.requests), self.clock.now_s) for _ in range(arriving)]
            self.clock.now_s += self.step_s
            progress = self._step(running)
            records += progress.finished
            running = [one for one in running if not one.is_done]
            if not observer(progress):
                break
        return records + [one.record(FinishReason.CANCELLED) for one in running]

    def _complete(self, requests: Sequence[Request]) -> list[RequestRecord]:
        """Complete prompts in no time, whatever goes wrong with other loads."""
        self.journal.append(f"complete {self.settings.precision}")
        done = [_Running(one, self.clock.now_s, [self.clock.now_s] * one.max_tokens) for one in requests]
        return [one.record(FinishReason.LENGTH) for one in done]

    def close(self) -> None:
        if not self.is_closed:
            self.journal.append(f"close {self.settings.precision}")
        self.is_closed = True

    def _step(self, running: list[_Running]) -> Progress:
        if self.has_tokens:
            for one in running:
                one.token_times_s.append(self.clock.now_s)
        done = [one for one in running if one.is_done]
        reason = FinishReason.LENGTH if self.request_error is None else FinishReason.ERROR
        return Progress(
            time_s=self.clock.now_s,
            num_running=len(running),
            num_waiting=0,
            num_tokens=len(running) if self.has_tokens else 0,
            num_prompt_tokens=sum(len(one.request.prompt_token_ids) for one in running if one.is_new),
            first_tokens=tuple(one.request.request_id for one in running if one.is_new),
            finished=tuple(one.record(reason, self.request_error) for one in done),
        )


@dataclass(slots=True)
class Launcher:
    """Opens scripted engines; `changes` says how an engine of a precision differs, `errors` which launches fail."""

    clock: StepClock = field(default_factory=StepClock)
    changes: dict[str, Callable[[ScriptedEngine], ScriptedEngine]] = field(default_factory=dict)
    #: Raised by the next launches, in order.
    errors: list[EngineError] = field(default_factory=list)
    journal: list[str] = field(default_factory=list)
    opened: list[ScriptedEngine] = field(default_factory=list)

    def __call__(self, settings: EngineSettings) -> ScriptedEngine:
        self.journal.append(f"open {settings.precision} {settings.max_batch}")
        if self.errors:
            raise self.errors.pop(0)
        one = ScriptedEngine(settings, self.clock, self.journal)
        if settings.precision in self.changes:
            one = self.changes[settings.precision](one)
        self.opened.append(one)
        return one


@dataclass(slots=True)
class MemoryStore:
    """Keeps quality figures as long as a test lasts."""

    kept: dict[QualityKey, Quality] = field(default_factory=dict)

    def get(self, key: QualityKey) -> Quality | None:
        return self.kept.get(key)

    def put(self, key: QualityKey, quality: Quality) -> None:
        self.kept.setdefault(key, quality)


@dataclass(slots=True)
class _Running:
    """A request in the scripted engine."""

    request: Request
    arrival_s: float
    token_times_s: list[float] = field(default_factory=list)

    @property
    def is_new(self) -> bool:
        return len(self.token_times_s) == 1

    @property
    def is_done(self) -> bool:
        return len(self.token_times_s) >= self.request.max_tokens

    def record(self, reason: FinishReason, error: str | None = None) -> RequestRecord:
        return RequestRecord(
            request_id=self.request.request_id,
            num_prompt_tokens=len(self.request.prompt_token_ids),
            token_ids=(1,) * len(self.token_times_s),
            text="",
            arrival_s=self.arrival_s,
            token_times_s=tuple(self.token_times_s),
            finish_reason=reason,
            error=error,
        )
