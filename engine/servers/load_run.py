"""One load on one server, in a thread with an event loop of its own.

`main` is that thread; whoever started it takes a Progress for each tick with `next_progress`, and may `stop`. Knows
nothing of what is made of the records.
"""

from __future__ import annotations

import asyncio
import json
import queue
import time
from dataclasses import dataclass
from typing import Any

import uvloop

from engine.load import ClosedLoad, Load, LoadReport, Progress
from engine.request import FinishReason, Request, RequestRecord
from engine.servers.address import Address
from engine.servers.arrivals import arrivals_of
from engine.servers.connections import Connections
from engine.servers.dialect import Dialect, TextOf
from engine.servers.exchange import Exchange, Tally
from engine.servers.overhead import Overhead

#: How often the observer is told while something happens ...
TICK_S = 0.02
#: ... and at least, in ticks.
_MAX_QUIET_TICKS = 5
#: How often time-outs are looked at.
_LOOK_S = 0.1
#: Many requests that are due at once are sent in stretches of this length: between them answers are read.
_MAX_BURST_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whom to ask, and how."""

    address: Address
    model: str
    dialect: Dialect
    api_key: str | None
    text_of: TextOf | None
    #: Without progress for so long, a request has failed.
    timeout_s: float

    def payload(self, request: Request) -> bytes:
        """Return what is sent for a request."""
        body = self.dialect.body(request, model=self.model, text_of=self.text_of)
        text = json.dumps(body, separators=(",", ":")).encode()
        return self.address.payload(self.dialect.path, text, api_key=self.api_key)


class LoadRun:
    """Serves a load once."""

    def __init__(self, target: Target, load: Load) -> None:
        self._target = target
        self._load = load
        self._progress: queue.SimpleQueue[Progress | None] = queue.SimpleQueue()
        self._in_flight: dict[Exchange, None] = {}
        self._tally = Tally()
        self._finished: list[RequestRecord] = []
        self._num_quiet_ticks = 0
        self._looked_s = 0.0
        self._has_changed = False
        self._is_sending_soon = False
        self._timer: asyncio.TimerHandle | None = None
        #: Of requests that have ended, in that order; once `main` has returned, also of those that were cut off.
        self.records: list[RequestRecord] = []
        #: What ended the load before its time, other than `stop`.
        self.error: BaseException | None = None
        #: There once `main` has returned.
        self.report: LoadReport | None = None
        self._loop = uvloop.new_event_loop()
        self._over = self._loop.create_future()

    def main(self) -> None:
        """Serve the load; the thread's function."""
        try:
            self._serve()
        except Exception as error:
            self.error = error
        finally:
            self._loop.close()
            self._progress.put(None)

    def next_progress(self, timeout_s: float) -> Progress | None:
        """Return the next tick's progress, None when the load is over; raise queue.Empty."""
        return self._progress.get(timeout=timeout_s)

    def stop(self) -> None:
        """End the load from any thread; what is in flight is cut off."""
        if not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._end)
            except RuntimeError:  # closed in this instant
                return

    def _serve(self) -> None:
        self._loop.set_exception_handler(self._failed)
        self._overhead = Overhead(is_paced=not isinstance(self._load, ClosedLoad))
        self._connections = Connections(self._target.address, self._loop)
        start_s = time.monotonic()
        self._arrivals = arrivals_of(self._load, self._target.payload, start_s, wake=self._wake)
        try:
            self._send_due()
            self._schedule_tick(start_s + TICK_S)
            self._loop.run_until_complete(self._over)
        finally:
            self._arrivals.close()
            self._overhead.stop()
            self.records += [exchange.record(is_cancelled=True) for exchange in self._in_flight]
            self._connections.close()
            self._loop.run_until_complete(_settle())
            self.report = self._overhead.report()

    def _wake(self) -> None:
        """Look at the arrivals; from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._send_due)
        except RuntimeError:  # the load ended meanwhile
            return

    def _send_due(self) -> None:
        """Send what is due, and come back for the next."""
        self._is_sending_soon = False
        if self._over.done():
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        begun_s = now_s = time.monotonic()
        while (due := self._arrivals.take(now_s)) is not None:
            self._send(*due)
            now_s = time.monotonic()
            if now_s > begun_s + _MAX_BURST_S:
                self._timer = self._loop.call_later(0.0, self._send_due)
                return
        next_s = self._arrivals.next_s
        if next_s is not None:
            self._timer = self._loop.call_later(max(0.0, next_s - time.monotonic()), self._send_due)
        elif self._arrivals.is_over and not self._in_flight:
            self._end()

    def _send(self, request: Request, payload: bytes, due_s: float) -> None:
        now_s = time.monotonic()
        exchange = Exchange(
            request,
            payload,
            due_s=due_s,
            now_s=now_s,
            goes_on=request.ignore_eos and bool(self._target.dialect.ignore_eos_body),
            tally=self._tally,
            ended=self._ended,
        )
        self._in_flight[exchange] = None
        self._has_changed = True
        self._overhead.started(due_s, now_s)
        self._connections.submit(exchange)

    def _ended(self, exchange: Exchange, time_s: float) -> None:
        if self._over.done():
            return
        self._connections.drop(exchange)
        del self._in_flight[exchange]
        record = exchange.record()
        self._tally.num_tokens += len(record.token_times_s) + record.num_hidden_tokens - exchange.num_tokens
        self._finished.append(record)
        self._overhead.ended(exchange.sent_s, exchange.reader.usage)
        self._arrivals.ended(time_s, has_failed=record.finish_reason is FinishReason.ERROR)
        if not self._is_sending_soon:
            self._is_sending_soon = True
            self._loop.call_soon(self._send_due)

    def _schedule_tick(self, planned_s: float) -> None:
        self._loop.call_later(max(0.0, planned_s - time.monotonic()), self._tick, planned_s)

    def _tick(self, planned_s: float) -> None:
        if self._over.done():
            return
        now_s = time.monotonic()
        self._overhead.ticked(planned_s, now_s)
        self._num_quiet_ticks += 1
        tally = self._tally
        if now_s >= self._looked_s + _LOOK_S:
            self._looked_s = now_s
            for exchange in list(self._in_flight):
                exchange.expire(now_s, self._target.timeout_s)
        if tally.num_tokens > 0 or self._finished or self._has_changed or self._num_quiet_ticks >= _MAX_QUIET_TICKS:
            self._tell(now_s)
        self._schedule_tick(max(planned_s + TICK_S, now_s))

    def _tell(self, now_s: float) -> None:
        """Hand the observer what came since it was last told."""
        tally = self._tally
        num_tokens = max(0, tally.num_tokens)
        num_waiting = self._connections.num_dialling
        finished = tuple(self._finished)
        self.records += finished
        self._progress.put(
            Progress(
                time_s=now_s,
                num_running=len(self._in_flight) - num_waiting,
                num_waiting=num_waiting,
                num_tokens=num_tokens,
                num_prompt_tokens=tally.num_prompt_tokens,
                first_tokens=tuple(tally.first_tokens),
                finished=finished,
            )
        )
        tally.num_tokens -= num_tokens  # below zero where a piece was taken for more than the server counts
        tally.num_prompt_tokens = 0
        tally.first_tokens.clear()
        self._finished.clear()
        self._has_changed = False
        self._num_quiet_ticks = 0

    def _end(self) -> None:
        if not self._over.done():
            self._tell(time.monotonic())
            self._over.set_result(None)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take what a callback raised: the load's iterator, or a fault of this client. The load cannot go on."""
        self.error = context.get("exception") or RuntimeError(str(context.get("message")))
        self._end()


async def _settle() -> None:
    """Let closed connections and cancelled tasks come to their end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
