"""A server that answers each request with given bytes at given times, in a thread of its own.

What it says of itself (`/health`, `/v1/models`, `/metrics`) are pages that a test sets. It notes what it was asked, and
when it really wrote each piece.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from types import TracebackType
from typing import Any

DONE = b"data: [DONE]\n\n"


class End(Enum):
    """What a server does after the last piece."""

    #: Ends the answer and keeps the connection.
    KEEP = auto()
    #: Closes the connection, with the answer's last chunk sent.
    CLOSE = auto()
    #: Closes the connection in the middle of the answer.
    CUT = auto()
    #: Resets the connection.
    RESET = auto()
    #: Does nothing more.
    HANG = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One answer."""

    #: Milliseconds after the request was read, and what is written then.
    pieces: Sequence[tuple[float, bytes]] = ()
    end: End = End.KEEP
    status: int = 200
    content_type: str = "text/event-stream"
    #: Before the answer's head.
    head_ms: float = 0.0
    #: Answers of such a server come one after the other.
    is_alone: bool = False


@dataclass(slots=True, kw_only=True)
class Asked:
    """One request, as it was read."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    time_s: float
    #: When each piece was written.
    written_s: list[float] = field(default_factory=list)


#: Says how to answer a request's body; the number counts requests from 0.
Answer = Callable[[dict[str, Any], int], Script]


class ScriptedServer:
    """Listens from construction until `close`; a context manager."""

    def __init__(self, answer: Answer | Script) -> None:
        self._answer = (lambda body, number: answer) if isinstance(answer, Script) else answer
        #: Status and body by path, for everything that is not POSTed.
        self.pages: dict[str, tuple[int, str]] = {"/health": (200, ""), "/v1/models": (200, '{"data": []}')}
        self.asked: list[Asked] = []
        self.num_connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.port = int(self._socket.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._loop = asyncio.new_event_loop()
        self._is_closed = asyncio.Event()
        self._alone = asyncio.Lock()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def num_open(self) -> int:
        """Connections that are open."""
        return len(self._writers)

    def close(self) -> None:
        """Close the port and every connection. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._is_closed.set)
            self._thread.join()

    def _main(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, sock=self._socket)
        await self._is_closed.wait()
        server.close()
        await asyncio.sleep(0)  # connections that were just accepted get their task
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.num_connections += 1
        try:
            while await self._answer_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the client is gone, or the server is to end
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request, and tell whether the connection stays."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.rstrip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        if method != "POST" or path in self.pages:
            status, page = self.pages.get(path, (404, "no such page"))
            writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(page.encode())}\r\n\r\n{page}".encode())
            await writer.drain()
            return True
        asked = Asked(path=path, headers=headers, body=json.loads(content), time_s=time.monotonic())
        script = self._answer(asked.body, len(self.asked))
        self.asked.append(asked)
        if script.is_alone:
            async with self._alone:
                asked.time_s = time.monotonic()
                return await self._play(script, asked, reader, writer)
        return await self._play(script, asked, reader, writer)

    async def _play(
        self, script: Script, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        await _until(asked.time_s + script.head_ms / 1e3)
        writer.write(
            f"HTTP/1.1 {script.status} X\r\nContent-Type: {script.content_type}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        for after_ms, data in script.pieces:
            await _until(asked.time_s + after_ms / 1e3)
            asked.written_s.append(time.monotonic())
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await writer.drain()
        match script.end:
            case End.KEEP | End.CLOSE:
                writer.write(b"0\r\n\r\n")
                await writer.drain()
            case End.HANG:
                await reader.read()  # until the client closes
            case End.RESET:
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if script.end in (End.CLOSE, End.CUT):
            writer.close()
            await writer.wait_closed()
        return script.end is End.KEEP


def frame(fields: dict[str, Any]) -> bytes:
    """Return an event with a JSON object."""
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


def words(text: str, *, finish: str | None = None, **fields: Any) -> bytes:
    """Return a piece of a completion."""
    return frame({"choices": [{"index": 0, "text": text, "finish_reason": finish} | fields]})


def delta(finish: str | None = None, **fields: Any) -> bytes:
    """Return a piece of a chat answer."""
    return frame({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def usage(num_output: int, *, num_prompt: int = 3, reasoning: int | None = None, cached: int | None = None) -> bytes:
    """Return the piece that counts the answer's tokens."""
    counts: dict[str, Any] = {"completion_tokens": num_output, "prompt_tokens": num_prompt}
    if reasoning is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return frame({"choices": [], "usage": counts})


def answer(num_tokens: int, *, gap_ms: float = 0.0, first_ms: float = 0.0, **changes: Any) -> Script:
    """Return a sound answer of so many tokens, one by one."""
    pieces = [(first_ms + number * gap_ms, words(f" w{number}")) for number in range(num_tokens)]
    last_ms = pieces[-1][0] if pieces else first_ms
    pieces += [(last_ms, words("", finish="length")), (last_ms, usage(num_tokens)), (last_ms, DONE)]
    return Script(pieces=pieces, **changes)


async def _until(time_s: float) -> None:
    while (left_s := time_s - time.monotonic()) > 0:
        await asyncio.sleep(left_s)
