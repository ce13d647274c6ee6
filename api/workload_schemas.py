"""Uploaded traces and prompt files as JSON. Field names are public; what they mean stands in docs/glossary.md."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

from db.workloads import Workload


class LengthsOut(BaseModel):
    """How long something is, over the rows of a file; percentiles by nearest rank."""

    mean: float
    min: int
    p50: int
    p90: int
    p99: int
    max: int


class WorkloadOut(BaseModel):
    """An uploaded file: what it is and what its rows say; null what its form does not have."""

    name: str
    #: azure, burstgpt, mooncake, sharegpt or prompts.
    form: str
    #: Of the file as it was uploaded.
    sha256: str
    num_rows: int
    num_bytes: int
    #: From the first request to the last.
    duration_s: float | None
    #: As it is replayed, and in the minute with the most arrivals.
    mean_rate_per_s: float | None
    peak_rate_per_s: float | None
    prompt_tokens: LengthsOut | None
    output_tokens: LengthsOut | None
    #: Prompt and output of the longest request together.
    longest_tokens: int | None
    #: Of a prompt file: which tokens those are, a model's tokenizer tells.
    prompt_characters: LengthsOut | None
    created_by: str | None
    created_at: datetime


class WorkloadsOut(BaseModel):
    """Uploaded files, newest first; `next` continues the list when it is not null."""

    items: list[WorkloadOut]
    next: str | None


def workload_out(workload: Workload) -> WorkloadOut:
    """Return an uploaded file's public form."""
    summary = {name: workload.summary.get(name) for name in WorkloadOut.model_fields}
    return WorkloadOut.model_validate(
        summary
        | {
            "name": workload.name,
            "form": workload.form,
            "sha256": workload.sha256,
            "num_rows": workload.num_rows,
            "num_bytes": workload.num_bytes,
            "created_by": workload.created_by,
            "created_at": workload.created_at,
        }
    )
