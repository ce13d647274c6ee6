"""Traces of jobs and trials by OpenTelemetry, where it is installed and told where to send them; else nothing.

`pip install 'wattfront[otel]'` and OTEL_EXPORTER_OTLP_ENDPOINT switch it on; everything else is read from the usual
OTEL_* variables. A span's attributes are ids, states and knobs. Knows nothing of how a trial is run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from api.errors import UsageError

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

Value = str | bool | int | float


class Tracer:
    """Makes spans, or nothing."""

    def __init__(self, tracer: Any = None) -> None:
        self._tracer = tracer

    @contextlib.contextmanager
    def span(self, name: str, attributes: Mapping[str, Value | None]) -> Iterator[Span]:
        """Bracket what runs inside; an exception that passes is noted on the span.

        Attributes that are None are left out.
        """
        if self._tracer is None:
            yield Span(None)
            return
        given = {key: value for key, value in attributes.items() if value is not None}
        with self._tracer.start_as_current_span(name, attributes=given) as made:
            yield Span(made)


class Span:
    """A span under way, or nothing."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def note(self, key: str, value: Value | None) -> None:
        """Add an attribute; None adds nothing."""
        if self._made is not None and value is not None:
            self._made.set_attribute(key, value)


NO_TRACES = Tracer()


def open_tracer(process: str, environment: Mapping[str, str] = os.environ) -> Tracer:
    """Return a tracer for a process, as `worker`; one that does nothing where no endpoint is named.

    Raises UsageError where an endpoint is named and the packages are missing.
    """
    named = next((name for name in _ENDPOINTS if environment.get(name)), None)
    if named is None:
        return NO_TRACES
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{named} is {environment[named]!r}, and {error.name} is not installed; pip install 'wattfront[otel]', or "
            f"unset {named}"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": f"wattfront-{process}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracer(provider.get_tracer("wattfront"))
