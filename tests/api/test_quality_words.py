"""Quality in words: how much, against what, over what, and when."""

from __future__ import annotations

import dataclasses
from typing import Any

from api.quality_words import quality_notes, quality_words
from api.records import measurement_out
from api.schemas import EstimateOut, PointOut, QualityOut
from tests.db.factories import START, make_engine_info, make_measurement
from tuner.measurement import Quality, TaskScore

TASKS = (
    TaskScore(task="facts", metric="acc", score=0.76, reference_score=0.8, num_documents=20),
    TaskScore(task="piqa", metric="acc", score=0.66, reference_score=0.6, num_documents=190, num_too_long=10),
)
ONE = EstimateOut(value=1.0, low=None, high=None)


def make_quality(**changes: Any) -> Quality:
    usual = Quality(num_tokens=128, perplexity=3.5, perplexity_ratio=0.9914, top1_agreement=0.96875, kl=0.00508,
                    num_positions=256, num_prompts=4, measured_at=START)  # fmt: skip
    return dataclasses.replace(usual, **changes)


def make_point(quality: Quality | None, precision: str = "int8") -> PointOut:
    measurement = make_measurement(quality=quality, engine=make_engine_info(precision=precision))
    return PointOut.model_construct(measurement=measurement_out(measurement), tok_per_j=ONE, latency_ms=ONE)


def out(quality: Quality) -> QualityOut:
    shown = measurement_out(make_measurement(quality=quality)).quality
    assert shown is not None
    return shown


def test_words_have_ratio_and_divergence() -> None:
    """The ratio stands with three decimals, the divergence with two digits where it is known."""
    assert quality_words(out(make_quality())) == "ppl 0.991x, KL 0.0051"
    assert quality_words(out(make_quality(kl=0.0, perplexity_ratio=1.0))) == "ppl 1.000x, KL 0"
    assert quality_words(out(make_quality(kl=None))) == "ppl 0.991x"


def test_words_name_the_worst_task() -> None:
    """Of several tasks the one with the least share of the reference's score stands there."""
    assert quality_words(out(make_quality(tasks=TASKS))) == "ppl 0.991x, KL 0.0051, facts 0.950x"


def test_notes_have_every_task() -> None:
    """Score, share, reference and documents of each task are told for each precision but the reference."""
    points = [make_point(make_quality(tasks=TASKS)), make_point(make_quality(tasks=TASKS), "fp32")]
    assert quality_notes(points)[1:] == [
        "Task facts: int8 has acc 0.76, 0.9500 of the 0.8 of fp32, over 20 documents.",
        "Task piqa: int8 has acc 0.66, 1.1000 of the 0.6 of fp32, over 190 documents (10 more do not fit into the "
        "context).",
    ]


def test_notes_say_what_it_was_told_from() -> None:
    """Reference, positions, prompts and tokens are named once, however many points there are."""
    assert quality_notes([make_point(make_quality()), make_point(make_quality())]) == [
        "Quality: against fp32, over 256 positions at the ends of 4 of the job's prompts with fp32's completions "
        "(128 tokens); another task may fare otherwise."
    ]


def test_notes_say_what_earlier_jobs_measured() -> None:
    """Of what was reused each precision is named with its day, and of what was not, none."""
    notes = quality_notes([make_point(make_quality(is_reused=True)), make_point(make_quality(), "bf16")])
    assert notes[1:] == [f"Quality was measured by earlier jobs: int8 on {START:%Y-%m-%d}."]


def test_without_quality_there_is_nothing_to_say() -> None:
    """Simulated points, and those of before there were prompts, have no note."""
    assert quality_notes([make_point(None), make_point(make_quality(num_prompts=0))]) == []
