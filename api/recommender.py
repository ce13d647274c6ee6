"""Recommendations from the store: what is compared, remembered for seconds, and put into words.

What was found is remembered until something new is stored, which is looked for twice a second: an answer may be half a
second behind a job that ended, and a minute behind one that was deleted or a device whose driver changed.
"""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import structlog

from api.errors import Refusal
from api.recommend import OUTPUT_TOK_S, POWER_W, QUALITY, Bound, Choice, choose_in, field_of
from api.recommend_schemas import RecommendationOut, RecommendationQuery, RecommendedOut
from api.recommend_words import Answer, answer_out, recommended_out
from api.result_page import Origin, Page, origin_of
from api.stores import Stores
from db.errors import DeviceNotStored, StoreError
from db.results import Found

log = structlog.get_logger(__name__)

#: How long what was found is believed while nothing new is stored.
BELIEVED_S = 60.0
#: When what is still asked for is read anew in the background, so that nobody waits for it: at the earliest, and how
#: much later at most. What was read together is not read anew together.
RENEWED_S, _SPREAD_S = 20.0, 30.0
#: How often it is looked whether something is.
LOOK_S = 0.5
#: Points that are remembered, over all questions.
MAX_REMEMBERED = 50_000
_LATENCIES = ("ttft_p99_ms", "tpot_p99_ms", "itl_p99_ms", "e2e_p99_ms")

#: Model, device, engine, workload.
_Key = tuple[str, str, str | None, str | None]


class NoResults(Refusal):
    """Tune the model on the device, or ask for one that was tuned."""

    status = 404
    title = "no results"


class _NotRemembered(Exception):
    """An answer needs the store."""


class Recommender:
    """Answers questions from one store; threads may share it."""

    def __init__(
        self, stores: Stores, now: Callable[[], datetime], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stores = stores
        self._now = now
        self._clock = clock
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="recommender")
        self._pages: OrderedDict[_Key, Page] = OrderedDict()
        self._renewed: set[_Key] = set()
        #: When it was looked, and the number of the newest result.
        self._newest: tuple[float, int | None] = (-LOOK_S, None)

    async def answer_in_turn(self, query: RecommendationQuery) -> RecommendationOut:
        """Return what `answer` does, without holding up the event loop: at once from memory, else after a read.

        Reads are done one after the other, in one thread: more would only take turns at the interpreter.
        """
        try:
            answer = self._answer(query, may_read=False)
        except _NotRemembered:
            answer = await asyncio.get_running_loop().run_in_executor(self._thread, self.answer, query)
        self._renew_in_time(_key_of(query))
        return answer

    def answer(self, query: RecommendationQuery) -> RecommendationOut:
        """Return the best stored point inside the limits, or the nearest ones.

        Raises NoResults where nothing is stored of the model on the device, InvalidRequest for limits that cannot be.
        """
        return self._answer(query, may_read=True)

    def _answer(self, query: RecommendationQuery, *, may_read: bool) -> RecommendationOut:
        key = _key_of(query)
        page = self._page(key) if may_read else self._remembered_page(key)
        bounds = bounds_of(query)
        choice = choose_in(page.points, bounds)
        if not may_read:
            _require_remembered(page, choice)
        best = None if choice.best is None else self._shown(page, query, choice.best)
        if choice.best is not None and best is None:  # deleted since the page was read
            self._forget()
            return self.answer(query)
        return answer_out(
            Answer(
                query=query,
                bounds=bounds,
                choice=choice,
                best=best,
                now=self._now(),
                stale_because=() if choice.best is None else self._stale_because(page, query, choice.best),
                loads={one.result_id: self._origin(page, one.result_id) for one in choice.others},
            )
        )

    def _page(self, key: _Key) -> Page:
        newest_id, now_s = self._newest_id(), self._clock()
        page = self._fresh_page(key, newest_id, now_s)
        return page or self._read_page(key, newest_id, now_s)

    def _renew_in_time(self, key: _Key) -> None:
        """Have a page read anew in the background before it is too old to be believed."""
        with self._lock:
            page = self._pages.get(key)
            if page is None or key in self._renewed or self._clock() - page.read_s < RENEWED_S + _spread_s(key):
                return
            self._renewed.add(key)
        self._thread.submit(self._renew, key)

    def _renew(self, key: _Key) -> None:
        try:
            self._read_page(key, self._newest_id(), self._clock())
        except (NoResults, StoreError) as error:  # whoever asks next is told
            log.warning("results_not_renewed", model=key[0], device=key[1], error=str(error))
        finally:
            with self._lock:
                self._renewed.discard(key)

    def _read_page(self, key: _Key, newest_id: int | None, now_s: float) -> Page:
        """Read a page, or only whether it has changed: most jobs that end change nothing for most questions."""
        model, device, engine, workload = key
        # Before what it marks: of a change between the two the next look learns.
        mark = self._stores.results.mark(model, device, engine=engine, workload=workload)
        before = self._pages.get(key)
        if before is not None and before.mark == mark:
            page = before.still(newest_id, now_s)
        else:
            found = self._stores.results.find(model, device, engine=engine, workload=workload)
            if not found:
                raise NoResults(_nothing_words(key))
            points = field_of(found)
            newest = _newest_by_engine(points.compared)
            page = Page(newest_id=newest_id, read_s=now_s, mark=mark, points=points, newest=newest)
            if before is not None:
                page.take_over(before, {one.id for one in found})
        with self._lock:
            self._pages[key] = page
            self._pages.move_to_end(key)
            num_points = sum(len(one.points.compared) for one in self._pages.values())
            while num_points > MAX_REMEMBERED and len(self._pages) > 1:
                num_points -= len(self._pages.popitem(last=False)[1].points.compared)
        return page

    def _remembered_page(self, key: _Key) -> Page:
        looked_s, newest_id = self._newest
        now_s = self._clock()
        page = None if now_s - looked_s >= LOOK_S else self._fresh_page(key, newest_id, now_s)
        if page is None:
            raise _NotRemembered
        return page

    def _fresh_page(self, key: _Key, newest_id: int | None, now_s: float) -> Page | None:
        with self._lock:
            page = self._pages.get(key)
            if page is None or page.newest_id != newest_id or now_s - page.read_s >= BELIEVED_S:
                return None
            self._pages.move_to_end(key)
            return page

    def _newest_id(self) -> int | None:
        looked_s, newest_id = self._newest
        if self._clock() - looked_s >= LOOK_S:
            newest_id = self._stores.results.newest_id()
            self._newest = (self._clock(), newest_id)
        return newest_id

    def _forget(self) -> None:
        with self._lock:
            self._pages.clear()

    def _shown(self, page: Page, query: RecommendationQuery, best: Found) -> RecommendedOut | None:
        """Return a point's public form; None when it is no longer stored."""
        known = page.shown(best.id)
        if known is None and (result := self._stores.results.get(best.id)) is not None:
            page.origins[best.id] = origin_of(result)
            known = recommended_out(query.model, query.device, best.engine, result)
            page.keep_shown(best.id, known)
        return known

    def _origin(self, page: Page, result_id: int) -> Origin | None:
        """Return where a point's figures come from; None when it is no longer stored."""
        if result_id not in page.origins:
            result = self._stores.results.get(result_id)
            if result is None:
                return None
            page.origins[result_id] = origin_of(result)
        return page.origins[result_id]

    def _stale_because(self, page: Page, query: RecommendationQuery, best: Found) -> tuple[str, ...]:
        """Return why a point may no longer be true: its age, or what has changed since under newer ones."""
        reasons = []
        age_hours = (self._now() - best.measured_at).total_seconds() / 3600
        if query.max_age_hours is not None and age_hours > query.max_age_hours:
            reasons.append("too_old")
        then = page.origins[best.id]
        now = self._newest_alike(page, best) or then
        drivers = {self._driver_now(page, uuid) for uuid in then.device_uuids} | {now.driver}
        if then.driver is not None and drivers - {None, then.driver}:
            reasons.append("driver_changed")
        if now.engine_version != then.engine_version:
            reasons.append("engine_changed")
        if now.model_hash != then.model_hash:
            reasons.append("model_changed")
        return tuple(reasons)

    def _newest_alike(self, page: Page, best: Found) -> Origin | None:
        """Return where the newest result of the same engine comes from, where it is of another job."""
        newest = page.newest.get(best.engine)
        return None if newest is None or newest.job_id == best.job_id else self._origin(page, newest.id)

    def _driver_now(self, page: Page, uuid: str) -> str | None:
        """Return the driver that the device had when a job last opened it; None where nobody knows."""
        if uuid not in page.drivers:
            try:
                page.drivers[uuid] = self._stores.devices.get(uuid).info.driver
            except DeviceNotStored:
                page.drivers[uuid] = None
        return page.drivers[uuid]


def _key_of(query: RecommendationQuery) -> _Key:
    return (query.model, query.device, query.engine, query.workload)


def _spread_s(key: _Key) -> float:
    return zlib.crc32(repr(key).encode()) / 2**32 * _SPREAD_S


def _newest_by_engine(compared: Sequence[Found]) -> dict[str, Found]:
    """Return of each engine the point that was measured last."""
    newest: dict[str, Found] = {}
    for one in compared:
        if one.engine not in newest or newest[one.engine].measured_at < one.measured_at:
            newest[one.engine] = one
    return newest


def _require_remembered(page: Page, choice: Choice) -> None:
    """Raise _NotRemembered unless everything that an answer shows was read before."""
    # With the best point, what it is compared with was read.
    is_read = choice.best is None or page.has_shown(choice.best.id)
    if not is_read or any(one.result_id not in page.origins for one in choice.others):
        raise _NotRemembered


def bounds_of(query: RecommendationQuery) -> tuple[Bound, ...]:
    """Return the limits of a question. Raises InvalidRequest for one that nothing can meet."""
    asked = {name: getattr(query, name) for name in _LATENCIES}
    asked |= {POWER_W: query.power_w, OUTPUT_TOK_S: query.min_output_tok_s, QUALITY: query.min_quality}
    return tuple(Bound(name=name, value=value) for name, value in asked.items() if value is not None)


def _nothing_words(key: _Key) -> str:
    model, device, engine, workload = key
    asked = f"model {model[:100]!r} on device {device[:100]!r}"
    asked += "" if engine is None else f" with engine {engine!r}"
    asked += "" if workload is None else f" under workload {workload[:12]}"
    return f"no finished job has results of {asked}; tune it first, as in POST /v1/jobs or wattfront tune"
