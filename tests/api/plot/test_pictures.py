"""What stands above a front's picture."""

from __future__ import annotations

from dataclasses import replace

from api.plot.pictures import heading, workload_words
from api.stores import Stores
from tests.api.plot.figures import make_figures
from tests.db.factories import make_request
from tuner.request import WorkloadSpec


def test_the_heading_names_what_the_front_is_of(stores: Stores) -> None:
    """Model, device, workload, limits and job stand above a picture, and in capitals that nothing was measured."""
    job = stores.jobs.create(make_request(model="llama-3.1-8b", device="simulated:h100-sxm"))
    shown = heading(job, make_figures())
    assert shown.title == "llama-3.1-8b on simulated:h100-sxm"
    assert shown.lines[0].startswith("SIMULATED, nothing was measured")
    assert "TTFT p99 ≤ 500 ms" in shown.lines[1]
    assert job.id[:8] in shown.lines[2]
    estimate = heading(job, make_figures(is_simulated=False))
    assert estimate.lines[0].startswith("ESTIMATE")
    assert heading(job, make_figures(is_simulated=False, is_estimate=False)).lines[0] == "Measured"
    without = replace(job, request=replace(job.request, sla=()))
    assert "no latency limits" in heading(without, make_figures()).lines[1]


def test_workloads_are_told_in_a_line() -> None:
    """Arrivals, requests in flight and lengths of a workload are told; a trace has lengths of its own."""
    poisson = WorkloadSpec(scenario="server", prompt_tokens=(32, 32), output_tokens=(8, 16), rate_per_s=2.5)
    assert workload_words(poisson) == "server workload at 2.5 requests/s, prompts of 32 and outputs of 8 to 16 tokens"
    closed = WorkloadSpec(concurrency=4)
    assert workload_words(closed).startswith("closed workload with 4 in flight, prompts of 64 to 192")
