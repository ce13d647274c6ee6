"""A server that writes tokens at given times and says in each when it really wrote it.

Speaks as much of the completions API as the load client asks for. A request's own fields `first_ms`, `gap_ms` and
`spread_ms` say when its tokens are due: the first one `first_ms` after it was read, plus a part of `spread_ms` that its
seed draws, the others `gap_ms` apart. A token's text is the monotonic time of its write, so that a client on this
machine can be held against that and not against a plan that this process may be late for, too.

    python -m benchmarks.token_server      # prints its port
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import random
import time

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_TOKEN = (
    '{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" %.6f",'
    '"logprobs":null,"finish_reason":null}]}'
)
_LAST = '{"id":"cmpl-1","choices":[{"index":0,"text":"","finish_reason":"length"}]}'
_USAGE = '{"id":"cmpl-1","choices":[],"usage":{"completion_tokens":%d,"prompt_tokens":1}}'


class Clock:
    """All tokens of all streams, by the time they are due."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Stream]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: Stream, time_s: float) -> None:
        """Have a stream's next token written then."""
        heapq.heappush(self._due, (time_s, next(self._numbers), stream))
        if self._due[0][2] is stream:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, self._due[0][0] - time.monotonic()), self._write)

    def _write(self) -> None:
        self._timer = None
        while self._due and self._due[0][0] <= time.monotonic():
            due_s, number, stream = heapq.heappop(self._due)
            next_s = stream.write(due_s)
            if next_s is not None:
                heapq.heappush(self._due, (next_s, number, stream))
        if self._due:
            self._arm()


class Stream(asyncio.Protocol):
    """A connection: one request after the other."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._transport: asyncio.WriteTransport | None = None
        self._read = b""
        self._num_left = 0
        self._num_tokens = 0
        self._gap_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Write no more."""
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Begin an answer once a request is whole."""
        self._read += data
        head, found, body = self._read.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0) if found else 1
        if not found or len(body) < length or self._transport is None:
            return
        self._read = b""
        asked = json.loads(body)
        self._num_left = self._num_tokens = int(asked["max_tokens"])
        self._gap_s = asked["gap_ms"] / 1e3
        self._transport.write(_HEAD)
        first_ms = drawn_first_ms(asked["seed"], first_ms=asked["first_ms"], spread_ms=asked["spread_ms"])
        self._clock.add(self, time.monotonic() + first_ms / 1e3)

    def write(self, due_s: float) -> float | None:
        """Write the next token, and return when the one after is due; None after the last."""
        if self._transport is None:
            return None
        self._num_left -= 1
        self._transport.write(_framed(_TOKEN % time.monotonic()))
        if self._num_left:
            return due_s + self._gap_s
        ends = (_LAST, _USAGE % self._num_tokens, "[DONE]")
        self._transport.write(b"".join(map(_framed, ends)) + b"0\r\n\r\n")
        return None


async def main() -> None:
    """Serve until the process is ended."""
    clock = Clock()
    server = await asyncio.get_running_loop().create_server(lambda: Stream(clock), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def drawn_first_ms(seed: int, *, first_ms: float, spread_ms: float) -> float:
    """Return when the first token of a request with this seed is due."""
    return first_ms + random.Random(seed).random() * spread_ms


def _framed(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


if __name__ == "__main__":
    asyncio.run(main())
