"""The child's side of `engine.host`: opens an engine and does what the host's messages say.

Run as `python -m engine.child`. Messages come on standard input and go to standard output, one JSON object a line;
whatever libraries print goes to standard error. When the host is gone, so is this process.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from pathlib import Path
from typing import IO

import torch

from engine import wire
from engine.embedded.loop import EmbeddedEngine
from engine.errors import EngineError, NotEnoughMemory
from engine.feed import ClosedFeed, TimedFeed
from engine.load import ClosedLoad, Progress
from engine.wire import Message


def main() -> int:
    """Serve one host until it says close or goes away."""
    channel = _Channel(sys.stdin, _private_stdout())
    first = channel.wait()
    try:
        opened = EmbeddedEngine(
            wire.settings_from(first["settings"]), Path(first["folder"]), model_hash=first["model_hash"]
        )
    except EngineError as error:
        return channel.fail(error)
    except (MemoryError, RuntimeError) as error:
        return channel.fail(_as_out_of_memory(error))
    channel.send({"reply": opened.info})
    while (message := channel.wait())["op"] != "close":
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
        case "report":
            channel.send({"reply": opened.report()})
        case "run":
            _run(opened, message, channel)
        case "requests" | "cancel" | "end" | "stop":
            pass  # sent by the host before it saw that the load had ended
        case other:
            channel.send({"error": EngineError.kind, "message": f"unknown operation {other!r}"})


def _run(opened: EmbeddedEngine, message: Message, channel: _Channel) -> None:
    """Serve a load: the observer tells the host of every step, and hears whether it said stop."""
    feed: ClosedFeed | TimedFeed
    num_told = 0

    def observe(progress: Progress) -> bool:
        nonlocal num_told
        num_told += len(progress.finished)
        channel.send({"progress": progress})
        return not feed.is_stopped()

    if message["load"] == "closed":
        feed = ClosedFeed(channel)
        records = opened.run(ClosedLoad(requests=feed.requests(), concurrency=message["concurrency"]), observe)
    else:
        is_live = message["load"] == "live"
        feed = TimedFeed(channel, opened.cancel, is_live=is_live)
        records = opened.run_arrivals(feed, observe, names_tokens=is_live)
    channel.send({"reply": records[num_told:]})


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

    def next(self, timeout_s: float | None = None) -> Message | None:
        try:
            return self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def wait(self) -> Message:
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
