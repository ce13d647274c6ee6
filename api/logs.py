"""Logs on standard error: lines for people, or one JSON object a line for machines.

What is bound with `structlog.contextvars`, as job and trial, stands on every line until it is unbound, whichever
package writes it. Lines of libraries that use the standard library's logging take the same form. Knows nothing of jobs.
"""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from typing import Any

import structlog

#: Of libraries that say at INFO what is of no use here.
_QUIET = ("apscheduler", "httpx", "uvicorn.access")


class LogFormat(StrEnum):
    """How a line looks."""

    CONSOLE = "console"
    JSON = "json"


def configure_logs(form: LogFormat, *, is_verbose: bool) -> None:
    """Send every log line to standard error: warnings and errors, and with `is_verbose` what happens as well."""
    level = logging.INFO if is_verbose else logging.WARNING
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    is_json = form is LogFormat.JSON
    last: list[Any] = [structlog.processors.dict_tracebacks] if is_json else []
    renderer = (
        structlog.processors.JSONRenderer(default=str) if is_json else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[*shared, *last, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=level, force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
