"""The command `workload`: what a file of requests is, before anything is loaded with it.

Knows nothing of databases, nor of what an engine makes of the requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

_LENGTHS = ("prompt_tokens", "output_tokens", "prompt_characters")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--time-scale", type=float, default=1.0, help="What its times are multiplied by [default: 1].")
@click.option("--clip-prompt", type=int, metavar="N", help="Cut longer prompts to N tokens.")
@click.option("--clip-output", type=int, metavar="N", help="Cut longer outputs to N tokens.")
@click.option("--json", "is_json", is_flag=True, help="Print it as JSON.")
def workload(file: Path, time_scale: float, clip_prompt: int | None, clip_output: int | None, is_json: bool) -> None:
    """Say what a FILE of requests is: its form, how many, how they come, how long they are, what is cut.

    `wattfront tune --workload FILE` loads an engine with it.
    """
    from api.workload_files import summary_of
    from tuner.request import WorkloadSpec
    from tuner.request_trace import load_trace
    from tuner.workload import trace_of

    has_times = load_trace(str(file)).has_times
    spec = WorkloadSpec(
        scenario="trace" if has_times else "closed",
        trace_file=str(file),
        time_scale=time_scale,
        clip_prompt_tokens=clip_prompt,
        clip_output_tokens=clip_output,
    )
    trace = trace_of(spec)
    found: dict[str, Any] = {"form": trace.form, "num_requests": trace.num_requests}
    found |= _scaled(summary_of(trace), time_scale)
    cut = trace.clipping
    found["clipped"] = {name: getattr(cut, name) for name in cut.__dataclass_fields__}
    found["notes"] = list(trace.notes)
    click.echo(json.dumps(found, indent=2) if is_json else "\n".join(_lines(found)))


def _scaled(summary: Mapping[str, Any], time_scale: float) -> dict[str, Any]:
    """Return a summary with its times stretched; the busiest stretch is that of the file's own times."""
    scaled = dict(summary)
    if "duration_s" in scaled:
        scaled["duration_s"] *= time_scale
        for name in ("mean_rate_per_s", "peak_rate_per_s"):
            scaled[name] /= time_scale
    return scaled


def _lines(found: Mapping[str, Any]) -> Sequence[str]:
    lines = [f"form {found['form']}, {found['num_requests']} requests"]
    if "duration_s" in found:
        lines.append(
            f"over {found['duration_s']:.1f} s: {found['mean_rate_per_s']:.3g} requests/s on average, "
            f"{found['peak_rate_per_s']:.3g} in the busiest minute of the file"
        )
    else:
        lines.append("without times: its requests are taken in order, in flight or at random arrivals")
    for name in _LENGTHS:
        if name in found:
            told = ", ".join(f"{part} {value:.6g}" for part, value in found[name].items())
            lines.append(f"{name.replace('_', ' ')}: {told}")
    cut = found["clipped"]
    for kind in ("prompts", "outputs"):
        if cut[f"num_{kind}"]:
            tokens = cut[f"{kind.removesuffix('s')}_tokens"]
            lines.append(f"cut: {cut[f'num_{kind}']} {kind}, {tokens} tokens in all")
    return [*lines, *(f"note: {note}" for note in found["notes"])]
