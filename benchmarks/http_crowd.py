"""Many clients that ask a server one thing after the other, each over a connection of its own.

HTTP/1.1 by hand: a client library would take more of the processor than the server that it is to measure. Takes gzip,
as browsers and client libraries do, and does not unpack it. Knows only answers with a Content-Length.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Seen:
    """What a crowd saw."""

    #: Seconds from a request to the last byte of its answer, by what was asked for.
    latencies_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    #: Answers by status.
    statuses: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    num_bytes: int = 0
    duration_s: float = 0.0

    @property
    def num_answers(self) -> int:
        """Answers of any status."""
        return sum(self.statuses.values())

    @property
    def requests_per_s(self) -> float:
        """Answers over time."""
        return self.num_answers / self.duration_s

    def quantile_ms(self, share: float, kind: str | None = None) -> float:
        """Return the latency that a share of the answers kept within, of one kind or of all."""
        found = sorted(one for name, many in self.latencies_s.items() if kind in (None, name) for one in many)
        return 1e3 * found[min(len(found) - 1, int(share * len(found)))]


#: Draws what to ask for: its kind and its path.
Ask = Callable[[random.Random], tuple[str, str]]


def crowd(port: int, ask: Ask, *, num_clients: int, seconds: float, rate_per_s: float | None = None) -> Seen:
    """Let clients ask for a while, each without a pause, or all together at a rate; return what they saw."""
    # What a benchmark holds from before, as the database that it filled, would be looked through for garbage while the
    # clock of every request runs: the crowd's pause would count as the server's.
    gc.collect()
    gc.freeze()
    try:
        return asyncio.run(_crowd(port, ask, num_clients=num_clients, seconds=seconds, rate_per_s=rate_per_s))
    finally:
        gc.unfreeze()


async def _crowd(port: int, ask: Ask, *, num_clients: int, seconds: float, rate_per_s: float | None) -> Seen:
    seen = Seen()
    started_s = time.perf_counter()
    pause_s = None if rate_per_s is None else num_clients / rate_per_s
    clients = (
        _client(port, ask, seen, random.Random(number), until_s=started_s + seconds, pause_s=pause_s)
        for number in range(num_clients)
    )
    await asyncio.gather(*clients)
    seen.duration_s = time.perf_counter() - started_s
    return seen


async def _client(
    port: int, ask: Ask, seen: Seen, draw: random.Random, *, until_s: float, pause_s: float | None
) -> None:
    """Ask until a time. With a pause, requests are due at fixed times, and an answer's time counts from then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    due_s = time.perf_counter() + (0.0 if pause_s is None else draw.random() * pause_s)
    while due_s < until_s:
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()) if pause_s is not None else 0)
        kind, path = ask(draw)
        asked_s = due_s if pause_s is not None else time.perf_counter()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept-Encoding: gzip\r\n\r\n".encode())
        status, num_bytes = await _answer(reader)
        now_s = time.perf_counter()
        seen.latencies_s[kind].append(now_s - asked_s)
        seen.statuses[status] += 1
        seen.num_bytes += num_bytes
        due_s = now_s if pause_s is None else due_s + pause_s
    writer.close()
    await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, int]:
    """Read an answer; return its status and the length of its body."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
    await reader.readexactly(length)
    return int(head.split(b" ", 2)[1]), length
