"""The HTTP service and a worker in threads of this process, on a port of loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from api.app import create_app
from api.settings import Settings
from api.stores import Stores
from api.worker import work
from tests.api.commands import free_port, wait_until


@contextmanager
def serving(stores: Stores, settings: Settings | None = None, *, port: int | None = None) -> Iterator[str]:
    """Serve a store, and give the URL."""
    port = port or free_port()
    app = create_app(stores, settings or Settings())
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=port, log_config=None, timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started or None, what="the server")
        yield f"http://127.0.0.1:{port}"
    finally:
        app.state.event_streams.close()
        server.should_exit = True
        thread.join(10)


@contextmanager
def working(stores: Stores, settings: Settings) -> Iterator[None]:
    """Run the queue's jobs."""
    stop = threading.Event()
    thread = threading.Thread(
        target=work, args=(stores, settings), kwargs={"should_stop": stop, "poll_s": 0.05}, daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
