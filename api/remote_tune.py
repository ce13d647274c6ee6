"""A job at a server: posted once, followed by its events, with its front at the end. Ctrl-C leaves it running there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from api.console import point_words, print_front
from api.errors import UsageError
from api.remote import Remote, RemoteEvent
from db.job import JobState
from tuner.point import OperatingPoint


def tune_at(server: Remote, console: Console, fields: Mapping[str, Any]) -> int:
    """Post a job, show what becomes of it, and return the exit code. Raises UsageError."""
    job = server.create_job(fields)
    _say(console, f"job {job.id[:8]} is {job.state} at {server.url}: {job.model} on {job.device}, up to "
                  f"{job.budget_trials} trials")  # fmt: skip
    try:
        for event in server.events(job.id):
            for line in _lines(event):
                _say(console, line)
    except (KeyboardInterrupt, UsageError):
        _say(
            console, f"the job goes on without us; look at it with: wattfront --server {server.url} front {job.id[:8]}"
        )
        _say(console, f"end it with: wattfront --server {server.url} cancel {job.id[:8]}")
        raise
    return _tell_end(server, console, job.id)


def _lines(event: RemoteEvent) -> list[str]:
    data = event.data
    if event.kind == "job" and data.get("state") == JobState.RUNNING:
        return ["a worker runs it"]
    if event.kind != "trial":
        return []
    words = f"trial {data['number']:>3}  {point_words(OperatingPoint.of(data['knobs'])):<28}"
    if data.get("tok_per_j") is not None:
        words += f" {data['tok_per_j']:8.3g} tok/J"
    return [words if data["state"] == "complete" else f"{words}  {data['state']}: {data.get('reason') or ''}"]


def _tell_end(server: Remote, console: Console, job_id: str) -> int:
    print_front(console, server.front(job_id))
    job = server.job(job_id)
    if job.state == JobState.FINISHED:
        for sentence in server.explanation(job_id).sentences:
            _say(console, sentence)
    told = f"job {job.id[:8]} {job.state}: {job.ended_because}" + (f"; {job.message}" if job.message else "")
    _say(console, told)
    _say(console, f"page of this job: {server.url}/jobs/{job.id}")
    return 1 if job.state == JobState.FAILED else 0


def _say(console: Console, words: str) -> None:
    console.print(Text(words), soft_wrap=True)
