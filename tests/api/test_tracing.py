"""Traces: spans where OpenTelemetry is told where to send them, nothing elsewhere."""

from __future__ import annotations

import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from api.errors import UsageError
from api.tracing import Tracer, open_tracer


def test_without_an_endpoint_nothing_is_traced() -> None:
    """No variable, no spans: notes and nesting cost nothing and break nothing."""
    tracer = open_tracer("worker", {})
    with tracer.span("job", {"wattfront.job": "abc"}) as outer, tracer.span("trial", {"wattfront.trial": 1}) as inner:
        outer.note("wattfront.state", "finished")
        inner.note("wattfront.state", None)


def test_an_endpoint_without_the_packages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for traces and lacks the packages is told which, and how to get them."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(UsageError, match=r"OTEL_EXPORTER_OTLP_ENDPOINT is 'http://localhost:4318'.*wattfront\[otel\]"):
        open_tracer("worker", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"})


def test_spans_nest_and_carry_what_was_noted() -> None:
    """A trial's span lies in its job's, with attributes that are known; an error is noted and goes on."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = Tracer(provider.get_tracer("wattfront"))
    with pytest.raises(RuntimeError, match="died"):
        _job_that_dies(tracer)
    trial, job = exporter.get_finished_spans()
    assert dict(trial.attributes or {}) == {"wattfront.trial": 1, "wattfront.state": "complete"}
    assert dict(job.attributes or {}) == {"wattfront.job": "abc"}
    assert trial.parent is not None
    assert trial.parent.span_id == job.context.span_id
    assert not job.status.is_ok


def _job_that_dies(tracer: Tracer) -> None:
    with tracer.span("job", {"wattfront.job": "abc", "wattfront.schedule": None}):
        with tracer.span("trial", {"wattfront.trial": 1}) as span:
            span.note("wattfront.state", "complete")
        raise RuntimeError("died")
