"""The child's side of `engine.host`: opens an engine and does what the host's messages say.

Run as `python -m engine.child`. Messages come on standard input and go to standard output, one JSON object a line;
whatever libraries print goes to standard error. When the host is gone, so is this process.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import torch

from engine import wire
from engine.embedded.loop import EmbeddedEngine
from engine.errors import EngineError, NotEnoughMemory
from engine.load import ClosedLoad, Progress
from engine.request import Request
from engine.wire import Message


def main() -> int:
    """Serve one host until it says close or goes away."""
    channel = _Channel(sys.stdin, _private_stdout())
    first = channel.next()
    try:
        opened = EmbeddedEngine(
            wire.settings_from(first["settings"]), Path(first["folder"]), model_hash=first["model_hash"]
        )
    except EngineError as error:
        return channel.fail(error)
    except (MemoryError, RuntimeError) as error:
        return channel.fail(_as_out_of_memory(error))
    channel.send({"reply": opened.info})
    while (message := channel.next())["op"] != "close":
        try:
            _obey(opened, message, channel)
        except EngineError as error:
            channel.send({"error": error.kind, "message": str(error)})
        except (MemoryError, RuntimeError) as error:
            return channel.fail(_as_out_of_memory(error))  # the engine may be half-way through a step: end it
    return 0


def _as_out_of_memory(error: MemoryError | RuntimeError) -> NotEnoughMemory:
    """Name a failed allocation (torch has no class for it on the CPU); raise anything else again."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return NotEnoughMemory(str(error).splitlines()[0] if str(error) else "an allocation failed")
    raise error


def _obey(opened: EmbeddedEngine, message: Message, channel: _Channel) -> None:
    """Do what one message asks and answer it."""
    match message["op"]:
        case "encode":
            channel.send({"reply": opened.encode(message["text"])})
        case "score":
            channel.send({"reply": opened.score(tuple(message["token_ids"]), **message["how"])})
        case "set_prefill_chunk":
            opened.set_prefill_chunk(message["prefill_chunk"])
            channel.send({"reply": None})
        case "run":
            _run(opened, message["concurrency"], channel)
        case "requests" | "end" | "stop":
            pass  # sent by the host before it saw that the load had ended
        case other:
            channel.send({"error": EngineError.kind, "message": f"unknown operation {other!r}"})


def _run(opened: EmbeddedEngine, concurrency: int, channel: _Channel) -> None:
    feed = _Feed(channel)

    def observe(progress: Progress) -> bool:
        channel.send({"progress": progress})
        return not feed.is_stopped()

    records = opened.run(ClosedLoad(requests=feed.requests(), concurrency=concurrency), observe)
    in_flight = [record for record in records if record.finish_reason == "cancelled"]
    channel.send({"reply": in_flight})  # the finished ones went with the progress


class _Feed:
    """The host's requests, as they come in."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._ready: list[Request] = []
        self._is_stopped = False
        self._is_ended = False

    def requests(self) -> Iterator[Request]:
        """Yield requests, waiting for the host when there are none at hand."""
        while True:
            if self._ready:
                yield self._ready.pop(0)
            elif self._is_ended or self._is_stopped:
                return
            else:
                self._take(self._channel.next())

    def is_stopped(self) -> bool:
        """Look, without waiting, whether the host said stop."""
        while (message := self._channel.poll()) is not None:
            self._take(message)
        return self._is_stopped

    def _take(self, message: Message) -> None:
        self._ready.extend(wire.request_from(fields) for fields in message.get("items", ()))
        self._is_stopped = self._is_stopped or message["op"] == "stop"
        self._is_ended = self._is_ended or message["op"] == "end"


class _Channel:
    """Messages from and to the host."""

    def __init__(self, source: IO[str], sink: IO[str]) -> None:
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._sink = sink
        threading.Thread(target=self._receive, args=(source,), daemon=True).start()

    def send(self, message: Message) -> None:
        wire.write(self._sink, message)

    def fail(self, error: EngineError) -> int:
        self.send({"error": error.kind, "message": str(error)})
        return 1

    def next(self) -> Message:
        return self._inbox.get()

    def poll(self) -> Message | None:
        try:
            return self._inbox.get_nowait()
        except queue.Empty:
            return None

    def _receive(self, source: IO[str]) -> None:
        for line in source:
            self._inbox.put(wire.read(line))
        os._exit(0)  # the host is gone, and the main thread may be inside a long step


def _private_stdout() -> IO[str]:
    """Keep standard output for messages alone: whatever else writes to it goes to standard error."""
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return private


if __name__ == "__main__":
    sys.exit(main())
