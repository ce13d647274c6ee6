"""A model server on the tiny model in this process, behind a real socket: what clients see of one."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from api.model_server.app import create_app
from api.model_server.chat_template import ChatTemplate
from api.model_server.engine_thread import EngineThread
from api.model_server.metrics import ModelMetrics
from api.model_server.served_model import ServedModel
from api.model_server.vocabulary import Vocabulary
from engine.embedded.loop import EmbeddedEngine
from engine.errors import EngineDied
from engine.load import Load, Observer
from engine.request import RequestRecord
from engine.settings import EngineInfo, EngineSettings

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}me:{% endif %}"
)


class InProcessEngine:
    """The embedded engine without a process of its own; cancels between two steps. Implements `LiveEngine`."""

    def __init__(self, opened: EmbeddedEngine) -> None:
        self._opened = opened
        self._cancelled: list[str] = []
        #: Requests that were cancelled while they ran.
        self.ended: list[RequestRecord] = []
        #: To be set by a test that wants the engine to die at its next step.
        self.has_to_die = False
        #: To be cleared by a test that wants no step to be taken.
        self.may_step = threading.Event()
        self.may_step.set()

    @property
    def info(self) -> EngineInfo:
        return self._opened.info

    @property
    def num_in_flight(self) -> int:
        return self._opened.num_in_flight

    def run(self, load: Load, observer: Observer) -> list[RequestRecord]:
        def observe(progress: Any) -> bool:
            if self.has_to_die:
                raise EngineDied("engine process 1 ended with SIGKILL")
            self.may_step.wait(timeout=30)
            while self._cancelled:
                record = self._opened.cancel(self._cancelled.pop())
                self.ended += [] if record is None else [record]
            return observer(progress)

        return self._opened.run(load, observe)

    def cancel(self, request_id: str) -> None:
        self._cancelled.append(request_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A server, who speaks to it, and what is behind it."""

    url: str
    client: httpx.Client
    engine: InProcessEngine
    thread: EngineThread

    def post(self, path: str, **fields: Any) -> httpx.Response:
        return self.client.post(path, json=fields)

    def chunks(self, path: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the chunks of a stream without the last line, which says that it is done."""
        with self.client.stream("POST", path, json=fields | {"stream": True}) as answer:
            assert answer.status_code == 200
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
        return [json.loads(line) for line in lines if line != "[DONE]"]


@contextmanager
def stage(folder: Path, *, max_open: int = 12, api_key: str | None = None, **engine: Any) -> Iterator[Stage]:
    """Serve the tiny model until the context ends, with more of the engine's settings where asked for."""
    settings = EngineSettings(model="tiny", max_batch=4, prefill_chunk=64, num_threads=1, max_context=256, **engine)
    opened = EmbeddedEngine(settings, folder)
    in_process = InProcessEngine(opened)
    metrics = ModelMetrics("tiny", opened.info, block_size=settings.block_size)
    thread = EngineThread(in_process, max_open=max_open, on_progress=metrics.progressed, on_death=lambda _: None)
    model = ServedModel(
        name="tiny",
        info=opened.info,
        vocab_size=256,
        eos_token_ids=(),
        vocabulary=Vocabulary(folder),
        template=ChatTemplate(TEMPLATE, origin="the test", special={}),
        thread=thread,
        metrics=metrics,
        created=1,
    )
    app = create_app(model, api_key=api_key, on_start=lambda: thread.start(asyncio.get_running_loop()))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1))
    runner = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    runner.start()
    until(lambda: server.started)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=30) as client:
            yield Stage(url=url, client=client, engine=in_process, thread=thread)
    finally:
        in_process.may_step.set()
        server.should_exit = True
        runner.join()
        thread.close()


def until(is_so: Callable[[], bool], *, within_s: float = 20.0) -> None:
    """Wait until something is so; fail when it takes too long."""
    deadline_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
