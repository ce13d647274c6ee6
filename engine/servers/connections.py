"""HTTP/1.1 connections to one server, kept open between requests, that hand on an answer's bytes as they come.

Each answer goes through callbacks in the moment its bytes are read: where a thousand streams get a token in the same
step, a task to wake for each would nearly double what a piece costs (docs/clients.md) and date the last ones later
still. Parsing is llhttp's (httptools). Follows no redirects, takes no compression, knows nothing of what bytes mean.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Protocol, cast

import httptools

from engine.servers.address import Address

#: A connection the server may have closed meanwhile is not used again.
_MAX_IDLE_S = 4.0


class Exchange(Protocol):
    """One request's side of a connection. Times are of the monotonic clock, taken where bytes were read."""

    @property
    def payload(self) -> bytes:
        """Everything to send, head and body."""

    def sent(self, time_s: float) -> None:
        """The request was written."""

    def head(self, status: int, content_type: str) -> None:
        """The answer's head is complete."""

    def body(self, data: bytes, time_s: float) -> None:
        """Bytes of its body came."""

    def ended(self, time_s: float) -> None:
        """The answer is over: by its own length, or the server closed the connection."""

    def lost(self, kind: str, message: str, time_s: float) -> None:
        """It will not come (any further)."""


class Connections:
    """As many connections as there are requests at once; belongs to one event loop."""

    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop) -> None:
        self._address = address
        self._loop = loop
        self._tls = ssl.create_default_context() if address.is_tls else None
        self._host: str | None = None
        #: The one used last is the last: the others may close for want of use.
        self._idle: dict[_Connection, None] = {}
        self._open: set[_Connection] = set()
        self._serving: dict[Exchange, _Connection] = {}
        self._dialling: dict[Exchange, asyncio.Task[None]] = {}
        self._is_closed = False

    @property
    def num_dialling(self) -> int:
        """Requests that wait for a connection."""
        return len(self._dialling)

    def submit(self, exchange: Exchange, *, is_fresh: bool = False) -> None:
        """Send a request on an idle connection, or on a new one (`is_fresh`: never on an idle one)."""
        oldest_s = time.monotonic() - _MAX_IDLE_S
        while self._idle and not is_fresh:
            connection, _ = self._idle.popitem()
            if connection.idle_since_s >= oldest_s and not connection.is_closing:
                self._serve(connection, exchange)
                return
            connection.abort()
        task = self._loop.create_task(self._dial(exchange))
        self._dialling[exchange] = task
        task.add_done_callback(self._dialled)

    def drop(self, exchange: Exchange) -> None:
        """Stop serving a request, and close what it was served by."""
        task = self._dialling.pop(exchange, None)
        if task is not None:
            task.cancel()
        connection = self._serving.pop(exchange, None)
        if connection is not None:
            connection.exchange = None
            connection.abort()

    def close(self) -> None:
        """Close all; requests in flight hear no more."""
        self._is_closed = True
        for task in self._dialling.values():
            task.cancel()
        self._dialling.clear()
        self._serving.clear()
        for connection in self._open:
            connection.exchange = None
            connection.abort()
        self._idle.clear()

    async def _dial(self, exchange: Exchange) -> None:
        connection = _Connection(self)
        try:
            await self._connect(connection)
        except OSError as error:
            self._dialling.pop(exchange, None)
            exchange.lost(_kind_of(error), _said(error), time.monotonic())
            return
        if self._dialling.pop(exchange, None) is None or self._is_closed:
            connection.abort()
            return
        if connection.is_closing:
            exchange.lost("connection_reset", "the server closed the connection at once", time.monotonic())
            return
        self._open.add(connection)
        self._serve(connection, exchange)

    def _dialled(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "a connection could not be made", "exception": error})

    def _serve(self, connection: _Connection, exchange: Exchange) -> None:
        self._serving[exchange] = connection
        connection.serve(exchange)

    async def _connect(self, connection: _Connection) -> None:
        """Try the host's addresses in turn; remember which one answered."""
        address = self._address
        name = address.host if self._tls is not None else None
        hosts = [self._host] if self._host is not None else await self._addresses()
        errors: list[OSError] = []
        for host in hosts:
            try:
                await self._loop.create_connection(
                    lambda: connection, host, address.port, ssl=self._tls, server_hostname=name
                )
            except OSError as error:
                errors.append(error)
            else:
                self._host = host
                return
        raise errors[-1]

    async def _addresses(self) -> list[str]:
        found = await self._loop.getaddrinfo(self._address.host, self._address.port, type=1)  # 1: SOCK_STREAM
        return list(dict.fromkeys(str(info[4][0]) for info in found))

    def answered(self, connection: _Connection, exchange: Exchange, *, is_reusable: bool) -> None:
        """Keep a connection whose answer is whole for the next request, or close it."""
        self._serving.pop(exchange, None)
        if is_reusable and not self._is_closed:
            self._idle[connection] = None
        else:
            connection.abort()

    def gone(self, connection: _Connection, exchange: Exchange | None, *, is_unanswered: bool) -> None:
        """Forget a closed connection; send a request again that the server cannot have seen (`is_unanswered`)."""
        self._open.discard(connection)
        if exchange is not None:
            self._serving.pop(exchange, None)
        if is_unanswered and exchange is not None and not self._is_closed:
            self.submit(exchange, is_fresh=True)


class _Connection(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self, pool: Connections) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._content_type = ""
        self._num_served = 0
        self._has_bytes = False
        self._has_head = False
        self._is_complete = False
        self._is_kept = False
        self.exchange: Exchange | None = None
        self.idle_since_s = 0.0

    @property
    def is_closing(self) -> bool:
        """Whether it can take no more requests."""
        return self._transport is None or self._transport.is_closing()

    def serve(self, exchange: Exchange) -> None:
        """Send a request."""
        assert self._transport is not None
        self.exchange = exchange
        self._has_bytes = self._has_head = self._is_complete = False
        self._content_type = ""
        self._transport.write(exchange.payload)
        exchange.sent(time.monotonic())

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (asyncio's callback, as those below)."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one, but no subclass

    def data_received(self, data: bytes) -> None:
        """Parse bytes, and hand on what they hold of an answer's body."""
        time_s = time.monotonic()
        self._has_bytes = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lose("bad_http", str(error), time_s)
            return
        exchange = self.exchange
        if exchange is None:
            return
        if self._pieces:
            body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces.clear()
            exchange.body(body, time_s)
        if self._is_complete and self.exchange is not None:
            self._complete(time_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request, or have it sent again where the server had closed before it could see it."""
        time_s = time.monotonic()
        exchange, self.exchange = self.exchange, None
        self._transport = None
        is_unanswered = self._num_served > 0 and not self._has_bytes
        self._pool.gone(self, exchange, is_unanswered=is_unanswered)
        if exchange is None or is_unanswered:
            return
        if exc is not None:
            exchange.lost("connection_reset", _said(exc), time_s)
        elif not self._has_head:
            exchange.lost("connection_reset", "the server closed the connection without an answer", time_s)
        else:
            exchange.ended(time_s)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note the content's type (llhttp's callback, as those below; none of them may raise)."""
        if name.lower() == b"content-type":
            self._content_type = value.decode("latin-1").partition(";")[0].strip().lower()

    def on_headers_complete(self) -> None:
        """Tell the request, unless more heads are to come."""
        status = self._parser.get_status_code()
        if status >= 200 and self.exchange is not None:
            self._has_head = True
            self._is_kept = self._parser.should_keep_alive()  # after the message's end the parser has forgotten it
            self.exchange.head(status, self._content_type)

    def on_body(self, body: bytes) -> None:
        """Keep the bytes until the parser returns."""
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        """Note that the answer is whole."""
        self._is_complete = self._parser.get_status_code() >= 200

    def _complete(self, time_s: float) -> None:
        exchange, self.exchange = self.exchange, None
        assert exchange is not None
        self._is_complete = False
        self._num_served += 1
        self.idle_since_s = time_s
        is_reusable = self._is_kept and not self.is_closing
        self._pool.answered(self, exchange, is_reusable=is_reusable)
        exchange.ended(time_s)

    def _lose(self, kind: str, message: str, time_s: float) -> None:
        exchange, self.exchange = self.exchange, None
        self.abort()
        if exchange is not None:
            exchange.lost(kind, message, time_s)


def _kind_of(error: OSError) -> str:
    return "connection_refused" if isinstance(error, ConnectionRefusedError) else "connection_failed"


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
