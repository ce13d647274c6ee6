"""Run an engine in a child process, so that a crash, an out-of-memory kill or a hang costs one trial and nothing else.

Knows nothing of torch: it starts `engine.child` and speaks `engine.wire` with it. The child leads a process group of
its own, so Ctrl-C in a terminal does not reach it, and everything it started ends with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

from engine import wire
from engine.errors import EngineDied, error_of_kind
from engine.load import Load, LoadReport, Observer, Progress
from engine.request import RequestRecord
from engine.serving import TokenScores
from engine.settings import EngineInfo, EngineSettings
from engine.supply import Supply, supply_of
from engine.wire import Message

#: Silence after which an engine counts as hung. The longest step (a bf16 prefill on an old CPU) takes some 20 s.
DEFAULT_SILENCE_S = 180.0
#: From asking a child to end to killing its process group.
_GRACE_S = 5.0


class EngineHost:
    """An embedded engine in a child process; implements `ServingEngine`."""

    def __init__(
        self, settings: EngineSettings, folder: Path, *, model_hash: str, silence_s: float = DEFAULT_SILENCE_S
    ) -> None:
        """Start the child and wait until its engine is open.

        Raises the engine's own errors by their class, EngineDied when the child ends or goes silent.
        """
        started_s = time.monotonic()
        self._silence_s = silence_s
        self._heard_s = started_s
        self._log = tempfile.TemporaryFile(mode="w+b")  # noqa: SIM115 - lives as long as the child; closed in close()
        self._process = _start_child(self._log, settings.device)
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        threading.Thread(target=self._receive, daemon=True).start()
        try:
            self._ask({"op": "open", "settings": settings, "folder": str(folder), "model_hash": model_hash})
            opened = wire.info_from(self._reply())
            # What a launch costs the search includes the process and its imports.
            self._info = dataclasses.replace(opened, start_s=time.monotonic() - started_s)
        except BaseException:
            self.close()
            raise

    @property
    def info(self) -> EngineInfo:
        """What was opened."""
        return self._info

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the text's token ids, without special tokens added."""
        self._ask({"op": "encode", "text": text})
        return tuple(self._reply())

    def score(
        self,
        token_ids: tuple[int, ...],
        *,
        num_last: int | None = None,
        keep: str | None = None,
        against: str | None = None,
    ) -> TokenScores:
        """Run the tokens through the model once; see `ServingEngine.score`. Files are the child's to write and read."""
        how = {"num_last": num_last, "keep": keep, "against": against}
        self._ask({"op": "score", "token_ids": token_ids, "how": how})
        return wire.scores_from(self._reply())

    def set_prefill_chunk(self, prefill_chunk: int) -> None:
        """Change the live knob between two loads."""
        self._ask({"op": "set_prefill_chunk", "prefill_chunk": prefill_chunk})
        self._reply()

    def set_silence_limit(self, silence_s: float) -> None:
        """Change how long the child may say nothing before it counts as hung."""
        self._silence_s = silence_s

    def run(self, load: Load, observer: Observer) -> list[RequestRecord]:
        """Serve a load of any kind; see `ServingEngine.run`.

        Of a live load requests are due when they come, whatever the engine is doing; one that the engine refuses ends
        with an error of its own, and those that it had not seen when the load ended come back as cancelled.
        """
        supply = supply_of(load, self._pass_on)
        self._ask(supply.opening())
        try:
            records = self._follow(supply, observer)
        finally:
            left = supply.close()
        return records + left

    def cancel(self, request_id: str) -> None:
        """Ask for the end of a request of the load that runs, from any thread; its record comes as of any other.

        Nothing happens where it has ended, or no load runs.
        """
        self._pass_on({"op": "cancel", "request_id": request_id})

    def report(self) -> LoadReport | None:
        """Return what the engine says of the last load; nothing lies between the two."""
        self._ask({"op": "report"})
        fields = self._reply()
        return None if fields is None else wire.report_from(fields)

    def close(self) -> None:
        """End the child and everything it started; return when they are gone. Idempotent."""
        with contextlib.suppress(OSError, EngineDied):
            self._send({"op": "close"})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_GRACE_S)
        self._kill()
        self._log.close()

    def _follow(self, supply: Supply, observer: Observer) -> list[RequestRecord]:
        """Send what is to be sent and show the observer what is done, until the load has ended."""
        records: list[RequestRecord] = []
        while True:
            for message in supply.messages():
                self._send(message)
            answer = self._next(supply.wake_s)
            if answer is None:
                continue
            if "send" in answer:
                self._send(answer["send"])
                continue
            progress = _progress(answer)
            ended = _last_records(answer) if progress is None else progress.finished
            supply.ended(ended)
            records.extend(ended)
            if progress is None:
                return records
            if not observer(progress):
                self._send({"op": "stop"})
                return records + self._rest(supply)
            self._heard_s = time.monotonic()  # the observer may have taken its time

    def _rest(self, supply: Supply) -> list[RequestRecord]:
        """Return what ends after the observer said stop."""
        records: list[RequestRecord] = []
        while True:
            answer = self._next()
            if answer is None or "send" in answer:
                continue
            progress = _progress(answer)
            ended = _last_records(answer) if progress is None else progress.finished
            supply.ended(ended)
            records.extend(ended)
            if progress is None:
                return records

    def _pass_on(self, message: Message) -> None:
        """Let the thread that runs a load send a message: the pipe takes one writer."""
        self._inbox.put({"send": message})

    def _ask(self, message: Message) -> None:
        self._heard_s = time.monotonic()
        self._send(message)

    def _send(self, message: Message) -> None:
        assert self._process.stdin is not None
        try:
            wire.write(self._process.stdin, message)
        except (OSError, ValueError) as error:
            raise self._death("ended") from error

    def _reply(self) -> Any:
        while (answer := self._next()) is None or "send" in answer:
            pass  # passed on after the load had ended
        return _payload(answer)

    def _next(self, wake_s: float | None = None) -> Message | None:
        """Return the next message of the child or one to be passed on; None when `wake_s` came before."""
        limit_s = self._heard_s + self._silence_s
        until_s = limit_s if wake_s is None else min(limit_s, wake_s)
        try:
            message = self._inbox.get(timeout=max(0.0, until_s - time.monotonic()))
        except queue.Empty:
            if until_s < limit_s:
                return None
            raise self._death(f"gave no sign of life for {self._silence_s:g} s") from None
        if message is None:
            raise self._death("ended")
        if "send" not in message:
            self._heard_s = time.monotonic()
        return message

    def _receive(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # a line cut off by the child's death
                self._inbox.put(wire.read(line))
        self._inbox.put(None)

    def _death(self, what: str) -> EngineDied:
        """End what is left of the child and say how it went, with its last log lines."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0.5 if what == "ended" else 0)
        code = self._process.poll()
        self._kill()
        how = "" if code is None else f" with {_exit_words(code)}"
        return EngineDied(f"engine process {self._process.pid} {what}{how}{self._last_lines()}")

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def _last_lines(self) -> str:
        if self._log.closed:
            return ""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()[-3:]
        return "; its last log lines: " + " | ".join(lines) if lines else ""


def _start_child(log: IO[bytes], device: str) -> subprocess.Popen[str]:
    """Start a child that sees this device and no other.

    `-P` keeps the working directory out of its path: a user's engine.py there must not be taken for ours.
    """
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "engine.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        encoding="utf-8",
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "" if device == "cpu" else device},
    )


def _progress(answer: Message) -> Progress | None:
    return wire.progress_from(answer["progress"]) if "progress" in answer else None


def _last_records(answer: Message) -> tuple[RequestRecord, ...]:
    """Return the records that end a load, or raise the error that does."""
    return tuple(wire.record_from(fields) for fields in _payload(answer))


def _payload(message: Message) -> Any:
    if "error" in message:
        raise error_of_kind(message["error"], message["message"])
    return message["reply"]


def _exit_words(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}, possibly for lack of memory" if name == "SIGKILL" else name
