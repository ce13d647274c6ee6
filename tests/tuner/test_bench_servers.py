"""What a bench makes of engines that are servers: reports of client and server, quality that is not told, flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import InvalidSettings, NotScored, PackageMissing, WrongFlag
from engine.load import LoadReport
from tests.tuner.bench_stand import Rig, with_
from tuner.errors import InvalidRequest
from tuner.point import OperatingPoint
from tuner.request import QualityGate, WorkloadSpec
from tuner.trial import TrialState


def server_rig(**changes: Any) -> Rig:
    return Rig(engine="vllm", **changes)


@pytest.mark.parametrize(
    ("report", "reasons"),
    [
        (LoadReport(), ()),
        (LoadReport(client_limits=("client_send_lag: 30 ms late",)), ("client_send_lag",)),
        (LoadReport(prefix_hit_share=0.05), ()),
        (LoadReport(prefix_hit_share=0.5), ("prefix_cache_hits",)),
        (LoadReport(has_restarted=True), ("server_restarted",)),
    ],
)
def test_what_client_and_server_say_counts(report: LoadReport, reasons: tuple[str, ...]) -> None:
    """BUG-11: a window in which the client set the pace, prompts were cached or the server began anew is not used."""
    rig = server_rig()
    rig.launcher.changes["fp32"] = with_(load_report=report)
    outcome = rig.measure()
    assert outcome.measurement is not None
    assert (report, reasons) == (outcome.measurement.load, outcome.measurement.reasons)
    assert (TrialState.INVALID if reasons else TrialState.COMPLETE) is outcome.state


def test_hits_that_a_trace_asks_for_are_no_fault(tmp_path: Path) -> None:
    """A trace whose prompts share blocks is meant to find them in the cache: their share is told, the window counts."""
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp": 0, "input_length": 9, "output_length": 4, "hash_ids": [1]}\n'
        '{"timestamp": 9, "input_length": 9, "output_length": 4, "hash_ids": [1]}\n'
    )
    rig = server_rig(workload=WorkloadSpec(trace_file=str(path)))
    rig.launcher.changes["fp32"] = with_(load_report=LoadReport(prefix_hit_share=0.5))
    assert rig.measure().state is TrialState.COMPLETE


def test_the_servers_preemptions_count() -> None:
    """What a server says of sequences that it threw out stands in the measurement; its records know nothing of it."""
    rig = server_rig()
    rig.launcher.changes["fp32"] = with_(load_report=LoadReport(num_preemptions=7))
    measurement = rig.measure().measurement
    assert measurement is not None
    assert measurement.num_preemptions == 7


def test_quality_that_a_server_does_not_tell_is_none() -> None:
    """Without limits of the job's own, a server that gives no probabilities is measured without quality."""
    rig = server_rig()
    rig.launcher.changes["fp32"] = with_(score_error=NotScored("no probabilities"))
    outcome = rig.measure()
    assert outcome.measurement is not None
    assert (outcome.state, outcome.measurement.quality) == (TrialState.COMPLETE, None)


def test_where_precision_is_the_files_no_quality_is_asked() -> None:
    """An engine whose jobs set no precision has nothing to be compared: no reference is launched."""
    rig = Rig(engine="openai")
    outcome = rig.bench.measure(OperatingPoint.of({"max_batch": 4}))
    assert outcome.measurement is not None
    assert (outcome.state, outcome.measurement.quality) == (TrialState.COMPLETE, None)
    assert not [step for step in rig.journal if step.startswith(("score", "complete"))]


def test_limits_on_quality_that_is_not_told_are_refused() -> None:
    """Limits that nothing could be held to end the job with what to do."""
    rig = server_rig(quality=QualityGate(max_perplexity_ratio=1.01))
    rig.launcher.changes["fp32"] = with_(score_error=NotScored("no probabilities"))
    with pytest.raises(InvalidRequest, match="no probabilities; leave the limits out"):
        rig.measure()


@pytest.mark.parametrize("error", [WrongFlag("no such flag"), InvalidSettings("policy has no flag")])
def test_a_setting_that_a_server_refuses_fails_its_trial(error: WrongFlag | InvalidSettings) -> None:
    """Another value may do: the trial has the server's words, and the next one is measured."""
    rig = server_rig()
    rig.launcher.errors = [error]
    outcome = rig.measure()
    assert (TrialState.FAILED, error.kind, str(error)) == (outcome.state, outcome.reason, outcome.detail)
    assert rig.measure().state is TrialState.COMPLETE


def test_a_server_that_is_not_installed_ends_the_job() -> None:
    """No other point could be served."""
    rig = server_rig()
    rig.launcher.errors = [PackageMissing("vllm is not installed")]
    with pytest.raises(PackageMissing):
        rig.measure()


def test_another_chunk_is_another_launch() -> None:
    """A server takes its prefill chunk as a flag: a point with another one starts it anew."""
    rig = server_rig()
    rig.measure()
    rig.measure(prefill_chunk=512)
    assert len(rig.launcher.opened) == 2
