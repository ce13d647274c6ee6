"""Stopping the service: those who follow a job are let go in order."""

from __future__ import annotations

import signal

import httpx

from api.stores import Stores
from tests.api.commands import free_port, started, wait_until
from tests.db.factories import make_request


def test_a_stream_ends_in_order_when_the_service_stops(stores: Stores) -> None:
    """At SIGTERM a client that follows a job gets the end of its answer, and the service ends by that signal."""
    job = stores.jobs.create(make_request())
    url = f"http://127.0.0.1:{(port := free_port())}"
    with started("serve", "--port", port) as process:
        wait_until(lambda: _answers(url), what="the service")
        with httpx.stream("GET", f"{url}/v1/jobs/{job.id}/events", trust_env=False, timeout=60) as response:
            chunks = response.iter_text()
            assert any("event: job" in chunk for chunk in chunks)
            process.send_signal(signal.SIGTERM)
            rest = list(chunks)  # a connection that was cut would raise
        assert process.wait(60) == -signal.SIGTERM
    assert not [chunk for chunk in rest if "event:" in chunk]


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", trust_env=False, timeout=2).status_code == 200
    except httpx.TransportError:
        return False
