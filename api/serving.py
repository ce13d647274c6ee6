"""Serve the application until a signal says stop: requests under way are answered, streams of events end.

Knows nothing of what is served.
"""

from __future__ import annotations

from types import FrameType

import uvicorn
from fastapi import FastAPI

from api.settings import Settings

#: For requests that run when the service is told to stop.
_SHUTDOWN_S = 10


class _Server(uvicorn.Server):
    """A server that ends streams at the signal: they would last as long as the clients like."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the streams of events, then stop as any server; clients come back to the one that follows."""
        application = self.config.app
        assert isinstance(application, FastAPI)
        application.state.event_streams.close()
        super().handle_exit(sig, frame)


def serve_until_stopped(app: FastAPI, settings: Settings) -> None:
    """Listen where the settings say, in this thread, which must be the main one."""
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,  # its lines take the form of ours
        server_header=False,
        proxy_headers=bool(settings.trusted_proxy_addresses),
        forwarded_allow_ips=list(settings.trusted_proxy_addresses),
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )
    _Server(config).run()
