"""Measure one operating point: open or reuse the engine, set the device, warm up, run one window, judge, put back.

Follows docs/measuring.md. A trial that fails is an outcome with a reason, not an exception; only what would fail every
trial of the job (a damaged checkpoint, an unknown model, a device without any power reading) is raised.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from engine.errors import (
    CheckpointError,
    EngineDied,
    EngineError,
    InvalidSettings,
    NotNative,
    NotScored,
    NumericsError,
    PackageMissing,
    UnknownModel,
    WrongModel,
)
from engine.load import Load, LoadReport
from engine.request import FinishReason, RequestRecord
from engine.serving import ServingEngine
from engine.settings import EngineSettings
from probes.device import Device, DeviceKind
from probes.errors import DeviceLost, InvalidSetting, Uncontrolled
from probes.settings import DeviceSettings
from tuner.errors import InvalidRequest
from tuner.gauge import QualityGauge, QualityStore
from tuner.knobs import EMBEDDED, SERVERS, SIMULATED, live_knobs, rules_of
from tuner.layout import limits_of
from tuner.measurement import EMULATED, Measurement, Quality, summarise
from tuner.mlperf import TailState, worst_tail
from tuner.objectives import Verdict, quality_verdict, verdict
from tuner.pareto import ObjectivePair
from tuner.point import OperatingPoint
from tuner.prompts import EncodedPrompts
from tuner.request import QualityGate, TuneRequest
from tuner.rig import DeviceRig
from tuner.sequential import DOMINATED, Cut, EarlyStop
from tuner.space import capacity_of, device_settings_of, settings_of
from tuner.trial import TrialState
from tuner.window import SteadyWindow
from tuner.workload import corpus_text, encoded_texts, load_for, num_offered, simulated_load, trace_of

log = structlog.get_logger()

#: A device that could not be set as the point asks: the trial has failed, and nothing was measured under its name.
_NOT_SET = (Uncontrolled, InvalidSetting)

#: What no other point could do better than: the job ends with it. Of an engine of ours a setting that it cannot take is
#: one, too: all were checked before.
_HOPELESS = (CheckpointError, UnknownModel, PackageMissing, WrongModel)
#: Prompt tokens that a server may have had ready: more, and its prefill is not that of fresh prompts.
MAX_PREFIX_HIT_SHARE = 0.05

#: Launches an engine; tests pass their own.
OpenEngine = Callable[[EngineSettings], ServingEngine]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of measuring a point."""

    state: TrialState
    reason: str | None = None
    detail: str | None = None
    measurement: Measurement | None = None
    #: Which launch of the engine served the load; None where none did.
    session: str | None = None
    #: How long the device was kept for this, on its own clock.
    device_s: float | None = None
    #: Its energy over that time, taken outside the window at the window's mean power; None without valid energy.
    device_j: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """What one window gave: a measurement, or why none was opened."""

    measurement: Measurement | None = None
    problems: tuple[str, ...] = ()
    #: By how many requests the queue grew where they came faster than they were served; 0 elsewhere.
    overload: int = 0
    #: Why it ended before its time.
    cut: Cut | None = None


def engine_device(device: Device) -> str:
    """Return what an engine must run on for this device's joules to be its own: `cpu`, or the UUID of anything else."""
    return "cpu" if device.info.kind is DeviceKind.CPU else device.info.uuid


def _is_gauged(request: TuneRequest) -> bool:
    """Tell whether precisions are compared: not where nothing is computed, nor where no job sets one and none asks."""
    if request.engine == SIMULATED:
        return False
    return "precision" in rules_of(request.engine) or request.quality != QualityGate()


def _with_report(measurement: Measurement, report: LoadReport | None, *, shares_prefixes: bool) -> Measurement:
    """Return a measurement with what client and server say of its load, and why it must not be used for that.

    Prompts that share beginnings, as a trace has it, are meant to be found in a prefix cache; others are not.
    """
    if report is None:
        return measurement
    reasons = [limit.partition(":")[0] for limit in report.client_limits]
    if not shares_prefixes and (report.prefix_hit_share or 0.0) > MAX_PREFIX_HIT_SHARE:
        reasons.append("prefix_cache_hits")
    if report.has_restarted:
        reasons.append("server_restarted")
    num_preemptions = measurement.num_preemptions if report.num_preemptions is None else report.num_preemptions
    return dataclasses.replace(
        measurement,
        load=report,
        num_preemptions=num_preemptions,
        reasons=tuple(dict.fromkeys((*measurement.reasons, *reasons))),
    )


def _emulated(settings: EngineSettings) -> Outcome:
    """Return what is made of a point whose arithmetic is imitated: its answers were told, no window is run."""
    detail = f"{settings.precision} is emulated on this device: what it answers counts, its speed and energy do not"
    return Outcome(state=TrialState.INVALID, reason=EMULATED, detail=detail)


def _overloaded(outcome: Outcome, growth: int) -> Outcome:
    """Return what is made of a point that falls behind its arrivals: its latency only grows."""
    if outcome.state is not TrialState.COMPLETE:
        return outcome
    detail = f"requests come faster than they are served: {growth} more were waiting at the window's end"
    return dataclasses.replace(outcome, state=TrialState.INFEASIBLE, reason="overloaded", detail=detail)


def _cut(outcome: Outcome, cut: Cut) -> Outcome:
    """Return what is made of a window that ended early, whatever its figures came to; what is not usable stays so."""
    if outcome.state not in (TrialState.COMPLETE, TrialState.INFEASIBLE):
        return outcome
    if cut.by == DOMINATED:
        detail = cut.detail if outcome.detail is None else f"{outcome.detail}; {cut.detail}"
        return dataclasses.replace(outcome, detail=detail)
    return dataclasses.replace(outcome, state=TrialState.INFEASIBLE, reason=cut.by, detail=cut.detail)


class Bench:
    """Measures points of one job, keeping the engine open while its launch knobs stay the same."""

    def __init__(
        self,
        request: TuneRequest,
        device: Device,
        open_engine: OpenEngine,
        *,
        rig: DeviceRig | None = None,
        qualities: QualityStore | None = None,
    ) -> None:
        """Raise InvalidRequest when the job names a text file that cannot be read."""
        self._request = request
        self._device = device
        self._rig = rig or DeviceRig(device)
        limits = limits_of(device)
        self._num_gpus = 1 if limits is None else limits.num_gpus
        self._is_simulated = request.engine == SIMULATED
        self._open_engine = open_engine
        self._opened: ServingEngine | None = None
        self._settings: EngineSettings | None = None
        self._live = live_knobs(request.engine)
        self._corpus_ids: tuple[int, ...] = ()
        self._texts: EncodedPrompts | None = None
        self._gauge = QualityGauge(request, store=qualities) if _is_gauged(request) else None
        self._has_idled = False
        self._idle_power_w: float | None = None
        #: Launches are told apart by number, those of different benches by the token.
        self._token = secrets.token_hex(4)
        self._num_launches = 0
        self._session: str | None = None

    def measure(
        self, point: OperatingPoint, *, rivals: Sequence[ObjectivePair] | None = (), repeat: str = ""
    ) -> Outcome:
        """Run one window at the point and judge it; it may end once it is certain that a rival is better.

        Without `rivals` (None) it may not end early at all: others are told against the point.
        A `repeat` by any name has requests of its own: the same ones again would only show what they showed before.
        Raises CheckpointError, UnknownModel, PackageMissing, WrongModel, InvalidSettings or RestoreFailed: no other
        point could do better. Of a simulated engine and of a server InvalidSettings is a failed trial: another layout
        or flag may fit. Raises InvalidRequest for quality limits on a server that gives no probabilities, and
        DeviceInUse, ControlLeaseLost or GuardUnavailable where that may be otherwise later, without the point's fault.
        """
        begun_s = self._rig.now_s()
        self._session = None
        outcome = self._measure(point, rivals, repeat)
        device_s = self._rig.now_s() - begun_s
        measured = outcome.measurement
        device_j = None
        if measured is not None and measured.mean_power_w is not None:
            device_j = measured.mean_power_w * device_s
        return dataclasses.replace(outcome, session=self._session, device_s=device_s, device_j=device_j)

    def close(self) -> None:
        """End the engine, if one is open."""
        if self._opened is not None:
            self._opened.close()
        self._opened, self._settings = None, None

    def _measure(self, point: OperatingPoint, rivals: Sequence[ObjectivePair] | None, repeat: str) -> Outcome:
        settings = settings_of(self._request, point, num_gpus=self._num_gpus)
        settings = dataclasses.replace(settings, device=engine_device(self._device))
        device_settings = device_settings_of(point)
        try:
            cost = self._quality(settings)
            if cost is not None and (failed := quality_verdict(self._request.quality, cost)) is not None:
                return Outcome(state=failed.state, reason=failed.reason, detail=failed.detail)
            serving = self._engine_for(settings)
            if serving.info.is_emulated:
                return _emulated(settings)
            self._session = f"{self._token}-{self._num_launches}"
            self._idle(serving)
            self._rig.cool_down()
            with self._rig.applied(device_settings):
                window, records = self._run_window(serving, f"{point.key}/{repeat}", settings, device_settings, rivals)
        except _HOPELESS:
            self.close()
            raise
        except NotNative as error:  # what a GPU computes in only the engine on it knows
            self.close()
            return Outcome(state=TrialState.FAILED, reason=error.kind, detail=str(error))
        except InvalidSettings as error:
            self.close()
            if self._request.engine == EMBEDDED:
                raise
            return Outcome(state=TrialState.FAILED, reason=error.kind, detail=str(error))
        except _NOT_SET as error:
            return Outcome(state=TrialState.FAILED, reason=error.kind, detail=str(error))
        except DeviceLost as error:
            self.close()
            return Outcome(state=TrialState.FAILED, reason=error.kind, detail=str(error))
        except NumericsError as error:
            return Outcome(state=TrialState.INFEASIBLE, reason=error.kind, detail=str(error))
        except EngineError as error:
            self.close()  # whatever is left of it is not to be trusted
            return Outcome(state=TrialState.FAILED, reason=error.kind, detail=str(error))
        if window.measurement is None:
            detail = f"{', '.join(window.problems)}: {device_settings.as_dict()} was not in force under load"
            return Outcome(state=TrialState.INVALID, reason=window.problems[0], detail=detail)
        measurement = dataclasses.replace(
            window.measurement, quality=cost, idle_power_w=self._idle_power_w, driver=self._device.info.driver
        )
        outcome = self._judge(measurement, records)
        outcome = _overloaded(outcome, window.overload) if window.overload else outcome
        return _cut(outcome, window.cut) if window.cut else outcome

    def _engine_for(self, settings: EngineSettings) -> ServingEngine:
        """Return an engine with these settings: the open one where that will do."""
        if self._opened is None or self._settings is None or self._settings.needs_relaunch(settings, live=self._live):
            self.close()
            self._opened = self._open_engine(settings)
            self._num_launches += 1
            log.info("engine_opened", precision=settings.precision, max_batch=settings.max_batch,
                     start_s=round(self._opened.info.start_s, 1))  # fmt: skip
        elif self._settings.prefill_chunk != settings.prefill_chunk:
            self._opened.set_prefill_chunk(settings.prefill_chunk)
        self._settings = settings
        if not self._corpus_ids and not self._is_simulated:
            self._corpus_ids = self._opened.encode(corpus_text())
            self._texts = encoded_texts(self._request.workload, self._opened.encode)
        return self._opened

    def _idle(self, serving: ServingEngine) -> None:
        """Measure idle power once a job, with the first model loaded."""
        if not self._has_idled:
            self._has_idled = True
            self._idle_power_w = self._rig.idle_power_w(self._request.window.idle_s, serving.info.pids)

    def _run_window(
        self,
        serving: ServingEngine,
        stream: str,
        settings: EngineSettings,
        device_settings: DeviceSettings,
        rivals: Sequence[ObjectivePair] | None,
    ) -> tuple[_Window, list[RequestRecord]]:
        capacity = capacity_of(settings)
        offered = num_offered(self._request.workload, capacity)
        load = self._load(stream, offered, capacity)
        watch = self._rig.watch(device_settings, f"{self._request.seed}/{stream}")
        meter = self._rig.meter(serving.info.pids, device_settings)
        try:
            window = SteadyWindow(
                self._request.window,
                meter,
                offered=offered,
                max_batch=capacity,
                watch=watch,
                early_stop=self._early_stop(offered, rivals),
            )
            records = serving.run(load, window.observe)
            # Asked once more: the window's last second may have lost what was set.
            problems = window.problems or self._rig.problems(device_settings)
        finally:
            meter.close()
        if window.reading is None:
            if window.problems:
                return _Window(problems=window.problems), records
            raise EngineDied("the engine ended the load before the window was over")
        measurement = summarise(
            records,
            window.reading,
            engine=serving.info,
            warmup_s=window.warmup_s,
            mean_running=window.mean_running,
            prompt_tokens=window.prompt_tokens,
        )
        cut_by = None if window.cut is None else window.cut.by
        measurement = dataclasses.replace(
            measurement, host=meter.host_reading, cut_by=cut_by, peak_running=window.peak_running
        )
        measurement = _with_report(measurement, serving.report(), shares_prefixes=self._shares_prefixes())
        if window.is_unsteady:
            measurement = dataclasses.replace(measurement, reasons=(*measurement.reasons, "no_steady_state"))
        reasons = tuple(dict.fromkeys((*measurement.reasons, *problems)))
        measurement = dataclasses.replace(measurement, reasons=reasons)
        overload = window.backlog_growth if window.is_overloaded else 0
        return _Window(measurement=measurement, problems=problems, overload=overload, cut=window.cut), records

    def _shares_prefixes(self) -> bool:
        workload = self._request.workload
        return workload.trace_file is not None and trace_of(workload).blocks is not None

    def _early_stop(self, offered: int | None, rivals: Sequence[ObjectivePair] | None) -> EarlyStop | None:
        """Return what may end the window early, if job and point let it.

        Rivals count where requests are kept in flight: an engine that waits for arrivals draws little in between, and
        looks at power, which come with its steps, never see that.
        """
        rule = self._request.window
        if rivals is None or not rule.stops_early:
            return None
        return EarlyStop(
            self._request.sla,
            window_s=rule.window_s,
            latency_metric=self._request.latency_metric,
            rivals=rivals if offered is not None else (),
        )

    def _load(self, stream: str, offered: int | None, capacity: int) -> Load:
        workload = self._request.workload
        if self._is_simulated:
            return simulated_load(workload, capacity=capacity, stream=stream)
        # Engines of ours keep no prefix of another window; a server does, across launches of ours where it stays up.
        salt = f"{self._token}-{self._num_launches}" if self._request.engine in SERVERS else ""
        return load_for(workload, self._corpus_ids, capacity=capacity, stream=stream, salt=salt, prompts=self._texts)

    def _judge(self, measurement: Measurement, records: list[RequestRecord]) -> Outcome:
        errors = [record.error or "" for record in records if record.finish_reason is FinishReason.ERROR]
        numeric = [error for error in errors if error.startswith(NumericsError.kind)]
        judged = verdict(self._request, measurement)
        if numeric:
            detail = f"{len(numeric)} of {len(records)} requests: {numeric[0]}"
            judged = Verdict(TrialState.INFEASIBLE, NumericsError.kind, detail)
        elif self._request.preset and judged.state is TrialState.COMPLETE:
            judged = self._by_tail_rule(records, measurement) or judged
        return Outcome(state=judged.state, reason=judged.reason, detail=judged.detail, measurement=measurement)

    def _by_tail_rule(self, records: list[RequestRecord], measurement: Measurement) -> Verdict | None:
        """Return why a point whose figures are inside the limits does not pass LoadGen's rule; None when it does."""
        reading = measurement.reading
        tail = worst_tail(self._request.sla, records, reading.start_s, reading.end_s)
        if tail is None:
            return None
        if tail.state is TailState.TOO_FEW:
            return Verdict(TrialState.INVALID, "not_enough_queries", tail.words)
        return Verdict(TrialState.INFEASIBLE, f"sla:{tail.limit.metric}", tail.words)

    def _quality(self, settings: EngineSettings) -> Quality | None:
        """Return what the settings' precision costs; None where nothing is computed or nothing tells it."""
        if self._gauge is None:
            return None
        try:
            return self._gauge.quality(settings, self._engine_for)
        except NotScored as error:
            if self._request.quality != QualityGate():
                raise InvalidRequest("quality", str(self._request.quality), f"{error}; leave the limits out") from error
            log.warning("quality_not_measured", engine=self._request.engine, reason=str(error))
            self._gauge = None
            return None
