"""A job's front as a picture: its figures, drawn and titled with what they are of.

The same for `wattfront front --plot` and /v1/jobs/{job}/front.png. Knows nothing of terminals, nor of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.plot.axes import metric_words, origin_of
from api.plot.render import Form, Heading, rendered
from api.plot.rows import front_rows
from api.plot.theme import Scheme
from db.job import Job
from tuner.request import WorkloadSpec

#: Of a picture, unless another size is asked for.
WIDTH, HEIGHT = 960, 600
#: Below these, heading and legends leave no room for the chart.
MIN_WIDTH, MIN_HEIGHT = 480, 360
MAX_WIDTH, MAX_HEIGHT = 2400, 1600

_ORIGINS = {
    "simulated": "SIMULATED, nothing was measured: every figure comes from a model of the device",
    "estimate": "ESTIMATE: energy was not measured, but told from how busy the device was",
    "measured": "Measured",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How a picture is asked for."""

    form: Form = "png"
    scheme: Scheme = "light"
    width: int = WIDTH
    height: int = HEIGHT
    #: On the latency axis, instead of the job's own.
    limit_ms: float | None = None


def front_picture(job: Job, figures: Mapping[str, Any], look: Look) -> bytes:
    """Return a job's front as PNG or SVG, of exactly the size asked for; `figures` as FiguresOut describes them."""
    # Altair takes a second and 70 MB to import: `import api.app` must not, as most commands draw nothing.
    from api.plot import front_chart

    rows = front_rows(figures, limit_ms=look.limit_ms)
    spec = front_chart.build(rows, look.scheme, width=look.width, height=look.height)
    return rendered(spec, heading(job, figures), look.form, look.scheme)


def heading(job: Job, figures: Mapping[str, Any]) -> Heading:
    """Return what stands above the front: model and device, where figures come from, workload and limits, the job."""
    request = job.request
    origin = origin_of(is_simulated=bool(figures["is_simulated"]), is_estimate=bool(figures["is_estimate"]))
    limits = ", ".join(f"{metric_words(limit.metric)} ≤ {limit.bound_ms:g} ms" for limit in request.sla)
    name = f" {job.name}" if job.name else ""
    return Heading(
        title=f"{request.model} on {request.device}",
        lines=(
            _ORIGINS[origin],
            f"{workload_words(request.workload)}; {f'limits {limits}' if limits else 'no latency limits'}",
            f"Wattfront job {job.id[:8]}{name}, {job.created_at:%Y-%m-%d}, {request.engine} engine",
        ),
    )


def workload_words(workload: WorkloadSpec) -> str:
    """Return a workload in a line."""
    if workload.scenario == "trace":
        return "replay of a trace"
    arrivals = f" at {workload.rate_per_s:g} requests/s" if workload.rate_per_s is not None else ""
    in_flight = f" with {workload.concurrency} in flight" if workload.concurrency is not None else ""
    prompt, output = _range(workload.prompt_tokens), _range(workload.output_tokens)
    return f"{workload.scenario} workload{arrivals}{in_flight}, prompts of {prompt} and outputs of {output} tokens"


def _range(tokens: tuple[int, int]) -> str:
    return f"{tokens[0]}" if tokens[0] == tokens[1] else f"{tokens[0]} to {tokens[1]}"
