"""From an opened engine to the end of its server: answer until a signal or the engine's death."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from api.errors import UsageError
from api.model_server.app import create_app
from api.model_server.chat_template import ChatTemplate
from api.model_server.engine_thread import EngineThread, LiveEngine
from api.model_server.metrics import ModelMetrics
from api.model_server.served_model import ServedModel
from api.model_server.vocabulary import Vocabulary
from engine.embedded.config import load_config
from engine.errors import EngineDied
from engine.settings import PRIORITY, EngineSettings

#: An idle connection is kept for so long: clients keep theirs for a minute, and one that ends first loses a request.
_KEEP_ALIVE_S = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How a model is served."""

    name: str
    settings: EngineSettings
    folder: Path
    vocabulary: Vocabulary
    template: ChatTemplate | None
    #: Requests that may wait beside those that run.
    max_queue: int
    #: How long running requests may take to end after a signal.
    drain_s: int
    api_key: str | None
    #: Whether what was set on the device holds; None where nothing was set.
    is_device_set: Callable[[], bool] | None = None


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket at an address, which does not listen yet; port 0 takes a free one. Raises UsageError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(f"--host is {host!r}: {error}; name an address of this machine") from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        found.close()
        raise UsageError(f"--port is {port}: cannot listen at {host} ({error.strerror}); choose another") from error
    return found


def serve_until_stopped(serving: Serving, opened: LiveEngine, listener: socket.socket) -> None:
    """Answer until a signal comes, in this thread, which must be the main one.

    Requests that run then have `drain_s` to end; at a second signal they end at once. Raises EngineDied when the
    engine ended by itself.
    """
    metrics = ModelMetrics(serving.name, opened.info, block_size=serving.settings.block_size)
    if serving.is_device_set is not None:
        metrics.watch_device(serving.is_device_set)
    thread = EngineThread(
        opened,
        max_open=serving.settings.max_batch + serving.max_queue,
        on_progress=metrics.progressed,
        on_death=lambda _: server.stop(),
    )
    config = load_config(serving.folder)
    model = ServedModel(
        name=serving.name,
        info=opened.info,
        vocab_size=config.vocab_size,
        eos_token_ids=config.eos_token_ids,
        vocabulary=serving.vocabulary,
        template=serving.template,
        thread=thread,
        metrics=metrics,
        created=int(time.time()),
        has_classes=serving.settings.policy == PRIORITY,
    )
    app = create_app(model, api_key=serving.api_key, on_start=lambda: thread.start(asyncio.get_running_loop()))
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=serving.drain_s,
        )
    )
    try:
        server.run(sockets=[listener])
    finally:
        thread.close()
    if thread.death is not None:
        raise EngineDied(thread.death)


class _Server(uvicorn.Server):
    """A server that returns after a signal, so that what was opened can be closed; uvicorn's own raises it again."""

    def stop(self) -> None:
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at the first signal and end at once at the second."""
        before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, *_: object) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
