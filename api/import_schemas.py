"""Imported results of other tools as JSON. Field names are public; what they mean stands in docs/glossary.md."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

from pydantic import BaseModel

from api.import_words import origin_of
from db.imports import Import
from tuner.foreign.result import ForeignResult


class ImportedLatencyOut(BaseModel):
    """One latency in milliseconds; null what the tool does not tell."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None


class ImportedResultOut(BaseModel):
    """One run by another tool; null what its file does not say. Nothing was metered: there is no energy."""

    tool_version: str | None
    label: str | None
    model: str | None
    measured_at: datetime | None
    load: str | None
    asked_rate_per_s: float | None
    asked_concurrency: int | None
    duration_s: float | None
    num_completed: int | None
    num_failed: int | None
    prompt_tokens: int | None
    output_tokens: int | None
    output_tok_s: float | None
    ttft_ms: ImportedLatencyOut | None
    tpot_ms: ImportedLatencyOut | None
    itl_ms: ImportedLatencyOut | None
    inter_chunk_ms: ImportedLatencyOut | None
    e2e_ms: ImportedLatencyOut | None
    reported_power_w: float | None
    reported_power_scope: str | None
    notes: list[str]


class ImportOut(BaseModel):
    """A result file that was imported."""

    id: int
    name: str
    #: vllm, sglang, guidellm, aiperf, genai-perf or loadgen.
    tool: str
    #: Where its figures come from, and that they have no energy.
    origin: str
    sha256: str
    num_bytes: int
    num_results: int
    created_by: str | None
    created_at: datetime


class ImportDetailOut(ImportOut):
    """A result file with its results, in the file's order."""

    results: list[ImportedResultOut]


class ImportsOut(BaseModel):
    """Imported files, newest first; `next` continues the list when it is not null."""

    items: list[ImportOut]
    next: int | None


def import_out(imported: Import) -> ImportOut:
    """Return an imported file's public form."""
    return ImportOut(
        id=imported.id,
        name=imported.name,
        tool=imported.tool.value,
        origin=origin_of(imported.tool),
        sha256=imported.sha256,
        num_bytes=imported.num_bytes,
        num_results=imported.num_results,
        created_by=imported.created_by,
        created_at=imported.created_at,
    )


def import_detail_out(imported: Import, results: tuple[ForeignResult, ...]) -> ImportDetailOut:
    """Return the public form of an imported file with its results."""
    told = [ImportedResultOut.model_validate(asdict(result)) for result in results]
    return ImportDetailOut(**import_out(imported).model_dump(), results=told)
