"""Windows of one operating point at any rate of arrivals, measured by `Bench.measure` as a job's are.

A point is judged by its requests one by one, which a measurement does not keep: the engine is wrapped so that their
records are at hand when the window is over. The engine stays open from rate to rate. Knows nothing of how rates are
chosen, nor of how the answer is shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import TracebackType

from api.engine_opener import engine_opener
from api.prepare import Prepared
from engine.load import Load, LoadReport, Observer
from engine.request import FinishReason, RequestRecord
from engine.serving import ServingEngine, TokenScores
from engine.settings import EngineInfo, EngineSettings
from probes.settings import DEVICE_KNOBS
from tuner.bench import Bench, OpenEngine, Outcome
from tuner.errors import InvalidRequest
from tuner.gauge import QualityKey
from tuner.measurement import Measurement, Quality
from tuner.point import OperatingPoint
from tuner.request import Limit, TuneRequest
from tuner.rig import DeviceRig
from tuner.sequential import SLICES, Count
from tuner.sustained_rate import RateWindow

#: A window has to be so many times as long as the longest limit: requests that come in its last stretch, as long as
#: that limit, are not judged.
_WINDOWS_PER_LIMIT = 3


class RateBench:
    """Measures one point at one rate after another; to be used in a `with` block, which ends the engine."""

    def __init__(self, prepared: Prepared, point: OperatingPoint) -> None:
        """Raise InvalidRequest for a load without a rate, a window that is too short, or a clock on a real device."""
        _require_measurable(prepared, point)
        self._request, self._point = prepared.request, point
        self._device = prepared.device
        if prepared.simulation is not None:
            self._rig = prepared.simulation.open_rig()
            self._keeper = _Keeper(prepared.simulation.open_engine)
        else:
            self._rig = DeviceRig(prepared.device, host=prepared.host_cpu, clock=prepared.host.clock)
            self._keeper = _Keeper(engine_opener(prepared))
        self._quality = _OneQuality()
        self._num_windows = 0
        #: The last window that could be used, by rate.
        self.measured: dict[float, Measurement] = {}

    def __enter__(self) -> RateBench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._rig.close()
        finally:
            self._keeper.end()

    def measure(self, rate_per_s: float, number: int) -> RateWindow:
        """Run a window at a rate, with requests and arrivals of its own, and count those over each limit."""
        bench = Bench(
            self._request_at(rate_per_s),
            self._device,
            self._keeper.open,
            rig=self._rig,
            qualities=self._quality,
        )
        self._num_windows += 1
        outcome = bench.measure(self._point, rivals=None, repeat=f"rate{self._num_windows}")
        measured = outcome.measurement
        if measured is None or not measured.is_valid:
            return RateWindow(slices={}, unusable=_why(outcome))
        self.measured[rate_per_s] = measured
        start_s, end_s = measured.reading.start_s, measured.reading.end_s
        records = self._keeper.records
        slices = {limit.metric: slice_counts(records, limit, start_s, end_s) for limit in self._request.sla}
        return RateWindow(slices=slices, is_overloaded=outcome.reason == "overloaded")

    def _request_at(self, rate_per_s: float) -> TuneRequest:
        """Return the request at a rate; without limits, so that the verdict tells of the queue alone."""
        seed = self._request.workload.seed + self._num_windows
        workload = dataclasses.replace(self._request.workload, rate_per_s=rate_per_s, seed=seed)
        window = dataclasses.replace(self._request.window, idle_s=0.0, stops_early=False)
        return dataclasses.replace(self._request, workload=workload, window=window, sla=())


def slice_counts(records: Sequence[RequestRecord], limit: Limit, start_s: float, end_s: float) -> tuple[Count, ...]:
    """Count a window's requests and those over a limit, in SLICES equal slices.

    A latency since arrival is judged of the requests that came in the window, but not in its last stretch as long as
    the limit: of all of them it is then known, also of those still waiting, which a summary of what ended leaves out.
    A TPOT is judged of the requests that ended in the window. A request that failed is over every limit.
    """
    latency = limit.metric.partition("_")[0]
    bound_s = limit.bound_ms / 1e3
    until_s = end_s if latency == "tpot" else end_s - bound_s
    slice_s = (until_s - start_s) / SLICES
    counts = [[0, 0] for _ in range(SLICES)]
    for record in records:
        judged = _judged(record, latency, bound_s, end_s)
        if judged is not None and start_s <= judged[0] < until_s:
            of_slice = counts[min(SLICES - 1, int((judged[0] - start_s) / slice_s))]
            of_slice[0] += 1
            of_slice[1] += judged[1]
    return tuple(Count(num, num_over) for num, num_over in counts)


def _judged(record: RequestRecord, latency: str, bound_s: float, end_s: float) -> tuple[float, bool] | None:
    """Return when a request counts and whether it is over; None where it tells nothing of this latency."""
    has_ended = record.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    if record.finish_reason is FinishReason.ERROR:
        return (record.token_times_s[-1] if record.token_times_s else record.arrival_s), True
    if latency == "tpot":
        value_s = record.tpot_s if has_ended else None
        return None if value_s is None else (record.token_times_s[-1], value_s > bound_s)
    value_s = record.ttft_s if latency == "ttft" else record.e2e_s if has_ended else None
    return record.arrival_s, (end_s - record.arrival_s if value_s is None else value_s) > bound_s


def _require_measurable(prepared: Prepared, point: OperatingPoint) -> None:
    request = prepared.request
    if request.workload.rate_per_s is None:
        remedy = "a highest rate is of arrivals at random; choose server or interactive"
        raise InvalidRequest("workload.scenario", request.workload.scenario, remedy)
    longest_s = max((limit.bound_ms / 1e3 for limit in request.sla), default=0.0)
    if request.window.window_s < _WINDOWS_PER_LIMIT * longest_s:
        remedy = f"give at least {_WINDOWS_PER_LIMIT * longest_s:g} s, {_WINDOWS_PER_LIMIT} times the longest limit"
        raise InvalidRequest("window.window_s", request.window.window_s, remedy)
    if prepared.simulation is None:
        for name, value in point.as_dict().items():
            if name in DEVICE_KNOBS:
                raise InvalidRequest(f"point.{name}", value, "only jobs set real devices; leave it out")


def _why(outcome: Outcome) -> str:
    return f"{outcome.reason}: {outcome.detail}" if outcome.detail else str(outcome.reason)


class _OneQuality:
    """The quality of the one point there is, whatever prompts a window has; implements `QualityStore`."""

    def __init__(self) -> None:
        self._quality: Quality | None = None

    def get(self, key: QualityKey) -> Quality | None:
        return self._quality

    def put(self, key: QualityKey, quality: Quality) -> None:
        self._quality = quality


class _Keeper:
    """Keeps one engine open between benches, and what its last load showed."""

    def __init__(self, open_engine: OpenEngine) -> None:
        self._open_engine = open_engine
        self._opened: ServingEngine | None = None
        self._settings: EngineSettings | None = None
        self.records: tuple[RequestRecord, ...] = ()

    def open(self, settings: EngineSettings) -> ServingEngine:
        """Return the open engine where it has these settings, else another in its place."""
        if self._opened is None or settings != self._settings:
            self.end()
            self._opened, self._settings = self._open_engine(settings), settings
        return _KeptEngine(self._opened, self._note)

    def end(self) -> None:
        """End the engine, if one is open."""
        if self._opened is not None:
            self._opened.close()
        self._opened = None

    def _note(self, records: Sequence[RequestRecord]) -> None:
        self.records = tuple(records)


class _KeptEngine:
    """Passes every call on but the end, and shows what a load brought; implements `ServingEngine`."""

    def __init__(self, serving: ServingEngine, note: Callable[[Sequence[RequestRecord]], None]) -> None:
        self._serving = serving
        self._note = note

    @property
    def info(self) -> EngineInfo:
        return self._serving.info

    def encode(self, text: str) -> tuple[int, ...]:
        return self._serving.encode(text)

    def score(
        self,
        token_ids: tuple[int, ...],
        *,
        num_last: int | None = None,
        keep: str | None = None,
        against: str | None = None,
    ) -> TokenScores:
        return self._serving.score(token_ids, num_last=num_last, keep=keep, against=against)

    def set_prefill_chunk(self, prefill_chunk: int) -> None:
        self._serving.set_prefill_chunk(prefill_chunk)

    def run(self, load: Load, observer: Observer) -> list[RequestRecord]:
        records = self._serving.run(load, observer)
        self._note(records)
        return records

    def report(self) -> LoadReport | None:
        return self._serving.report()

    def close(self) -> None:
        """Leave the engine open for the next window."""
