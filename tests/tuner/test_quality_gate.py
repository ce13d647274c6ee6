"""The quality gate on a real engine: what it lets through, and what it rejects."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.embedded.formats import Int8Rows
from engine.embedded.loop import EmbeddedEngine
from engine.settings import EngineSettings
from tests.db.factories import START
from tests.tiny_model import tiny_config, tiny_tensors, write_tiny_model
from tests.tuner.factories import make_request
from tuner.gauge import QualityGauge
from tuner.objectives import Verdict, quality_verdict
from tuner.request import QualityGate, WorkloadSpec
from tuner.trial import TrialState


def make_uneven(folder: Path) -> Path:
    """Write a tiny model in which a rotary pair of query channels is 200 times as large as the others.

    The keys that they meet are as much smaller, so its answers are those of the even model.
    """
    tensors = tiny_tensors(tiny_config())
    for prefix in ("model.layers.0.", "model.layers.1."):
        tensors[f"{prefix}self_attn.q_proj.weight"][[0, 8, 16, 24]] *= 200  # two query heads share a key head
        tensors[f"{prefix}self_attn.k_proj.weight"][[0, 8]] /= 200
    return write_tiny_model(folder, tensors=tensors)


def per_tensor(values: torch.Tensor) -> Int8Rows:
    """Quantise to int8 with one scale for all values, as torch's `quantize_dynamic` does by default."""
    scale = values.abs().max() / 127
    return Int8Rows(data=(values / scale).round().to(torch.int8), scales=scale.expand(len(values)).clone())


def test_the_gate_rejects_one_scale_for_a_whole_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where channels differ, int8 with a scale a row passes the gate, and dynamic int8 with one a tensor does not."""
    folder = make_uneven(tmp_path / "model")
    request = make_request(workload=WorkloadSpec(prompt_tokens=(20, 40), output_tokens=(8, 16)))
    gauge = QualityGauge(request, now=lambda: START)

    def verdict_of(precision: str) -> Verdict | None:
        settings = EngineSettings(model="tiny", precision=precision, max_batch=4, max_context=56, num_threads=1)
        return quality_verdict(QualityGate(), gauge.quality(settings, lambda wanted: EmbeddedEngine(wanted, folder)))

    assert verdict_of("int8") is None
    monkeypatch.setattr("engine.embedded.linears.to_int8", per_tensor)
    failed = verdict_of("int8_dynamic")
    assert failed is not None
    assert (failed.state, failed.reason) == (TrialState.INFEASIBLE, "quality:perplexity_ratio")
