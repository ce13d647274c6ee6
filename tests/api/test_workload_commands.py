"""What the command `workload` says of a file."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from api.workload_commands import workload

TRACE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:40,100,44\n2023-11-16 18:15:45,300,10\n2023-11-16 18:15:50,879,55\n"
)


def told(path: Path, *options: str) -> str:
    result = CliRunner().invoke(workload, [str(path), *options], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_a_trace_is_described(tmp_path: Path) -> None:
    """Form, requests, duration, rates, lengths, and what is cut are told; times as they are stretched."""
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    assert told(path, "--time-scale=0.1", "--clip-prompt=500").splitlines() == [
        "form azure, 3 requests",
        "over 1.0 s: 2 requests/s on average, 3 in the busiest minute of the file",
        "prompt tokens: mean 300, min 100, p50 300, p90 500, p99 500, max 500",
        "output tokens: mean 36.3333, min 10, p50 44, p90 55, p99 55, max 55",
        "cut: 1 prompts, 379 tokens in all",
    ]


def test_prompts_are_described_as_json(tmp_path: Path) -> None:
    """A file without times has lengths in characters, and no rate."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Name three rivers."}\n{"prompt": "Why?"}\n')
    found = json.loads(told(path, "--json"))
    assert (found["form"], found["num_requests"], found["prompt_characters"]["max"]) == ("prompts", 2, 18)
    assert "duration_s" not in found
