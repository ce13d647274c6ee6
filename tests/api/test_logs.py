"""Log lines: JSON for machines, with the job on every line, from our loggers and from libraries' alike."""

from __future__ import annotations

import json
import logging

import pytest
import structlog

from api.logs import LogFormat, configure_logs

pytestmark = pytest.mark.usefixtures("logs_as_before")


def lines(capfd: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capfd.readouterr().err.splitlines()]


def test_every_line_is_a_json_object_with_its_job(capfd: pytest.CaptureFixture[str]) -> None:
    """A structlog line and a library's line both carry time, level and the job that is bound."""
    configure_logs(LogFormat.JSON, is_verbose=True)
    with structlog.contextvars.bound_contextvars(job="abc", trial=3):
        structlog.get_logger().info("trial_finished", state="complete")
        logging.getLogger("uvicorn.error").warning("disk %s", "full")
    ours, theirs = lines(capfd)
    expected = {"job": "abc", "trial": 3, "event": "trial_finished", "level": "info", "state": "complete"}
    assert expected.items() <= ours.items()
    assert {
        "job": "abc",
        "event": "disk full",
        "level": "warning",
        "logger": "uvicorn.error",
    }.items() <= theirs.items()
    assert str(ours["timestamp"]).endswith("Z")


def test_an_exception_is_data_on_its_line(capfd: pytest.CaptureFixture[str]) -> None:
    """A traceback does not break the one line that an event has."""
    configure_logs(LogFormat.JSON, is_verbose=False)
    try:
        raise ValueError("no such clock")
    except ValueError:
        structlog.get_logger().exception("job_failed")
    (line,) = lines(capfd)
    assert (line["event"], line["level"]) == ("job_failed", "error")
    assert "no such clock" in json.dumps(line["exception"])


def test_without_verbose_only_warnings_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    """What merely happens is left out, of libraries too."""
    configure_logs(LogFormat.CONSOLE, is_verbose=False)
    structlog.get_logger().info("job_started")
    logging.getLogger("uvicorn.error").info("hello")
    structlog.get_logger().warning("lease_lost")
    err = capfd.readouterr().err
    assert "lease_lost" in err
    assert not any(word in err for word in ("job_started", "hello"))
