"""The service's figures for Prometheus: what is stored, by short queries now and then, and how long requests take.

Knows nothing of routes but their templates: an address with an id in it would make a series of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.stores import Stores
from db.counts import CountStore
from db.errors import StoreError
from db.job import JobState
from db.service import DeliveryState
from tuner.trial import TrialState

#: Figures of the database are at most so old.
COUNTS_FRESH_S = 5.0
#: Counting every trial walks over a whole index.
TRIALS_FRESH_S = 60.0
#: A worker that gave no sign of life for longer is taken to be gone.
WORKER_SEEN_S = 90.0
#: The nights that are told of were due within a day, and an hour for the longest of days.
NIGHT_S = 25 * 3600.0
NIGHT_OUTCOMES = (*(state.value for state in JobState), "skipped", "missed", "deleted")
_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
Figure = TypeVar("Figure")
_METHODS = frozenset({"GET", "POST", "PATCH", "PUT", "DELETE", "HEAD", "OPTIONS"})


class Metrics:
    """Everything that `/metrics` tells."""

    def __init__(self, stores: Stores, num_followers: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self.durations = Histogram(
            "wattfront_request_duration_seconds",
            "Time from a request to the end of its answer, of streams to its beginning.",
            ("method", "route", "status"),
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        ProcessCollector(registry=self._registry)
        self._registry.register(StoredFigures(stores, num_followers))

    def text(self) -> bytes:
        """Return all figures in the text format of Prometheus 0.0.4."""
        return generate_latest(self._registry)


class StoredFigures(Collector):
    """What the database holds; one that cannot be read is told as a figure too, and hides no other."""

    def __init__(
        self, stores: Stores, num_followers: Callable[[], int], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stores = stores
        self._num_followers = num_followers
        counts: CountStore = stores.counts
        self._jobs = _Fresh(counts.jobs, COUNTS_FRESH_S, clock)
        self._queue_s = _Fresh(counts.oldest_queued_s, COUNTS_FRESH_S, clock)
        self._workers = _Fresh(lambda: counts.workers(WORKER_SEEN_S), COUNTS_FRESH_S, clock)
        self._nights = _Fresh(lambda: counts.nights(NIGHT_S), COUNTS_FRESH_S, clock)
        self._deliveries = _Fresh(counts.deliveries, COUNTS_FRESH_S, clock)
        self._trials = _Fresh(counts.trials, TRIALS_FRESH_S, clock)

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering asks the database for nothing."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the figures."""
        yield InfoMetricFamily("wattfront_build", "Which version answers.", {"version": version("wattfront")})
        is_up = True
        try:
            yield from self._counted()
        except StoreError:
            is_up = False
        yield GaugeMetricFamily("wattfront_database_up", "1 when the figures of the database could be read.", is_up)
        errors = CounterMetricFamily(
            "wattfront_database_errors", "Statements that the database refused or left undone.", labels=("kind",)
        )
        for kind, count in sorted(self._stores.database.num_errors.items()):
            errors.add_metric((kind,), count)
        yield errors
        yield GaugeMetricFamily("wattfront_event_streams", "Clients that follow a job.", self._num_followers())

    def _counted(self) -> Iterator[Metric]:
        yield _by("state", "wattfront_jobs", "Jobs by state.", [*JobState], self._jobs())
        yield GaugeMetricFamily(
            "wattfront_queue_age_seconds", "How long the oldest queued job has waited.", self._queue_s()
        )
        yield _by(
            "state", "wattfront_trials", "Attempts by state, as of the last minute.", [*TrialState], self._trials()
        )
        yield GaugeMetricFamily("wattfront_workers", "Workers that gave a sign of life lately.", self._workers())
        about = "Nights that were due within a day, by what became of them."
        yield _by("outcome", "wattfront_nights", about, NIGHT_OUTCOMES, self._nights())
        about = "Notifications by how far they are; those that were delivered until they are pruned."
        yield _by("state", "wattfront_deliveries", about, [*DeliveryState], self._deliveries())


class RequestTimes:
    """Middleware that notes how long each request took, under the template of its route."""

    def __init__(self, app: ASGIApp, durations: Histogram) -> None:
        self._app = app
        self._durations = durations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and note its time."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = time.perf_counter()
        status, is_noted = 500, False

        async def note_and_send(message: Message) -> None:
            nonlocal status, is_noted
            if message["type"] == "http.response.start":
                status = message["status"]
                if (b"content-type", b"text/event-stream; charset=utf-8") in message["headers"]:
                    is_noted = True
                    self._note(scope, status, started_s)
            await send(message)

        try:
            await self._app(scope, receive, note_and_send)
        finally:
            if not is_noted:
                self._note(scope, status, started_s)

    def _note(self, scope: Scope, status: int, started_s: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._durations.labels(method, route, str(status)).observe(time.perf_counter() - started_s)


class _Fresh(Generic[Figure]):
    """A figure that is looked up again once it is too old; by one thread, while others wait for it."""

    def __init__(self, look_up: Callable[[], Figure], fresh_s: float, clock: Callable[[], float]) -> None:
        self._look_up = look_up
        self._fresh_s = fresh_s
        self._clock = clock
        self._lock = threading.Lock()
        self._known: tuple[float, Figure] | None = None

    def __call__(self) -> Figure:
        with self._lock:
            if self._known is None or self._clock() - self._known[0] >= self._fresh_s:
                self._known = (self._clock(), self._look_up())
            return self._known[1]


def _by(label: str, name: str, about: str, values: Iterable[str], counts: Mapping[str, int]) -> GaugeMetricFamily:
    """Return a gauge for each value of a label: 0 where there is none, so that no series comes and goes."""
    family = GaugeMetricFamily(name, about, labels=(label,))
    for value in values:
        family.add_metric((str(value),), counts.get(value, 0))
    return family
