"""Quality is measured once, against the widest precision there is, and remembered between points and jobs."""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.embedded.loop import EmbeddedEngine
from engine.errors import EngineDied, NotEnoughMemory, NumericsError
from engine.serving import ServingEngine
from engine.settings import EngineSettings
from tests.db.factories import START
from tests.tiny_model import write_tiny_model
from tests.tuner.factories import make_request
from tests.tuner.scripted import Launcher, MemoryStore, ScriptedEngine
from tests.tuner.task_sets import choose, make_task, make_tasks
from tuner.errors import InvalidRequest
from tuner.gauge import QualityGauge
from tuner.measurement import Quality
from tuner.quality import NUM_COMPLETED, NUM_PROMPTS
from tuner.request import QualityGate, WorkloadSpec
from tuner.tasks import TaskSet

KEPT = "wattfront-quality-*"


class Rig:
    """A gauge with scripted engines, one open at a time."""

    def __init__(self, store: MemoryStore | None = None, **changes: Any) -> None:
        self.launcher = Launcher()
        self.gauge = QualityGauge(make_request(**changes), store=store, now=lambda: START)
        self._open: ScriptedEngine | None = None

    def engine_for(self, settings: EngineSettings) -> ServingEngine:
        if self._open is None or self._open.settings.needs_relaunch(settings):
            self._open = self.launcher(settings)
        return self._open

    def quality(self, precision: str = "fp32", **settings: Any) -> Quality:
        asked = EngineSettings(model="m", precision=precision, **{"max_batch": 16} | settings)
        return self.gauge.quality(asked, self.engine_for)

    @property
    def journal(self) -> list[str]:
        """What the engines did, without the many pieces of one score."""
        steps = self.launcher.journal
        return [step for i, step in enumerate(steps) if i == 0 or step != steps[i - 1]]


def too_large(made: ScriptedEngine) -> ScriptedEngine:
    raise NotEnoughMemory(f"{made.settings.precision} needs 64 GiB")


def test_the_reference_completes_and_is_scored_first() -> None:
    """Asked for int8 the gauge launches fp32 with no more sequences than it has prompts, then int8 as it will serve."""
    rig = Rig()
    rig.launcher.changes["int8"] = lambda made: replace(made, logprob=-2.5)
    found = rig.quality("int8")
    assert rig.journal == [
        f"open fp32 {NUM_PROMPTS}", "complete fp32", "score fp32", "open int8 16", "score int8",
    ]  # fmt: skip
    assert pytest.approx(math.exp(0.5)) == found.perplexity_ratio
    assert (found.kl, found.top1_agreement, found.reference, found.measured_at) == (0.25, 1.0, "fp32", START)
    assert (found.num_prompts, found.num_tokens, found.is_reused) == (NUM_PROMPTS, NUM_PROMPTS * NUM_COMPLETED, False)


def test_the_reference_costs_nothing_against_itself() -> None:
    """The reference's own quality needs no second pass: ratio and agreement are 1, the divergence is 0."""
    rig = Rig()
    found = rig.quality("fp32")
    assert rig.journal == ["open fp32 16", "complete fp32", "score fp32"]
    assert (found.perplexity_ratio, found.top1_agreement, found.kl) == (1.0, 1.0, 0.0)
    assert len(rig.launcher.journal) == 2 + NUM_PROMPTS


def test_each_precision_and_kv_format_is_measured_once() -> None:
    """Batch and chunk change nothing of the quality; another format of keys and values is another measurement."""
    rig = Rig()
    first = rig.quality("bf16")
    before = len(rig.launcher.journal)
    assert first is rig.quality("bf16", max_batch=2) is rig.quality("bf16", prefill_chunk=32)
    assert before == len(rig.launcher.journal)
    assert (rig.quality("bf16", kv_precision="fp8").kv_precision, first.kv_precision) == ("fp8", "auto")
    assert rig.launcher.journal.count("complete fp32") == 1


def test_an_engine_that_shows_only_logprobs_has_no_divergence() -> None:
    """Of a server without distributions the divergence is unknown, and everything else is told."""
    rig = Rig()
    rig.launcher.changes["bf16"] = lambda made: replace(made, divergence=None)
    found = rig.quality("bf16")
    assert (found.kl, found.perplexity_ratio) == (None, 1.0)


def test_a_later_job_reuses_what_was_measured() -> None:
    """The same figures come back marked, with the day they were measured on, and nothing is completed or scored."""
    store = MemoryStore()
    measured = Rig(store).quality("int8")
    later = Rig(store)
    assert replace(measured, is_reused=True) == later.quality("int8")
    assert later.journal == ["open int8 16"]
    assert later.quality("fp32").is_reused is False
    assert len(store.kept) == 2


def test_what_is_stored_takes_no_further_launch() -> None:
    """Once an engine was open, the quality of other stored precisions is known without launching them."""
    store = MemoryStore()
    for precision in ("bf16", "int8"):
        Rig(store).quality(precision)
    later = Rig(store)
    assert [later.quality(precision).is_reused for precision in ("bf16", "int8")] == [True, True]
    assert later.journal == ["open bf16 16"]


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": WorkloadSpec(prompt_tokens=(9, 17), output_tokens=(2, 6))},
        {"workload": WorkloadSpec(prompt_tokens=(8, 16), output_tokens=(2, 6), seed=1)},
        {"quality": QualityGate(text_file=__file__)},
    ],
    ids=["lengths", "seed", "text"],
)
def test_other_prompts_are_measured_anew(changes: dict[str, Any]) -> None:
    """Other lengths, another seed or another text file is another sample: nothing of before is taken over."""
    store = MemoryStore()
    Rig(store).quality("fp32")
    assert Rig(store, **changes).quality("fp32").is_reused is False


def test_limits_do_not_matter_to_what_is_measured() -> None:
    """A stricter gate judges the figures of before; it does not ask for new ones."""
    store = MemoryStore()
    Rig(store).quality("fp32")
    strict = QualityGate(max_perplexity_ratio=1.0, max_kl=1e-6, min_top1_agreement=1.0)
    assert Rig(store, quality=strict).quality("fp32").is_reused is True


def test_the_next_reference_stands_in_where_the_widest_does_not_fit() -> None:
    """On a machine too small for fp32 int8 is compared with bf16, and says so."""
    rig = Rig()
    rig.launcher.errors = [NotEnoughMemory("fp32 needs 64 GiB")]
    assert rig.quality("int8").reference == "bf16"
    assert rig.quality("bf16").kl == 0.0
    assert rig.journal[:3] == ["open fp32 4", "open bf16 4", "complete bf16"]


def test_a_stand_ins_figures_serve_no_job_that_has_the_widest() -> None:
    """What was told against bf16 while memory was short is measured anew against fp32, and both are kept."""
    store = MemoryStore()
    short = Rig(store)
    short.launcher.changes["fp32"] = too_large
    assert {short.quality(name).reference for name in ("int8", "bf16")} == {"bf16"}
    later = Rig(store)
    assert [(one.reference, one.is_reused) for one in map(later.quality, ("int8", "bf16"))] == [("fp32", False)] * 2
    assert {key.reference for key in store.kept} == {"fp32", "bf16"}
    assert len(store.kept) == 4


def test_a_job_that_found_the_widest_too_large_reuses_what_the_next_one_told() -> None:
    """Once fp32 did not fit, figures of another such job against bf16 stand for the points that follow."""
    store = MemoryStore()
    for precision in ("int8", "bf16"):
        rig = Rig(store)
        rig.launcher.changes["fp32"] = too_large
        rig.quality(precision)
    later = Rig(store)
    later.launcher.changes["fp32"] = too_large
    assert [later.quality(name).is_reused for name in ("int8", "bf16")] == [False, True]


def test_without_any_reference_nothing_is_claimed() -> None:
    """Where no wider precision fits either, the engine's own error is told instead of a quality."""
    rig = Rig()
    rig.launcher.errors = [NotEnoughMemory("fp32 needs 64 GiB"), NotEnoughMemory("bf16 needs 32 GiB")]
    with pytest.raises(NotEnoughMemory, match="bf16 needs 32 GiB"):
        rig.quality("int8")


def test_a_precision_that_overflows_is_not_tried_again() -> None:
    """After a NumericsError the same precision gives the same error without an engine, and others are measured."""
    rig = Rig()
    rig.launcher.changes["fp16"] = lambda made: replace(made, score_error=NumericsError("fp16 overflows"))
    for _ in range(2):
        with pytest.raises(NumericsError, match="fp16 overflows"):
            rig.quality("fp16")
    assert rig.launcher.journal.count("open fp16 16") == 1
    assert rig.quality("bf16").reference == "fp32"


def test_an_engine_that_dies_is_asked_again() -> None:
    """A death while scoring says nothing about the precision: the next point measures it, with the reference kept."""
    rig = Rig()
    rig.launcher.changes["int8"] = lambda made: replace(made, score_error=EngineDied("killed"))
    with pytest.raises(EngineDied, match="killed"):
        rig.quality("int8")
    rig.launcher.changes.clear()
    assert rig.quality("int8", max_batch=8).kl == 0.25
    assert rig.launcher.journal.count("complete fp32") == 1


def test_the_text_file_gives_every_precision_a_perplexity(tmp_path: Path) -> None:
    """The reference's included; without a file there is none."""
    text = tmp_path / "mine.txt"
    text.write_text("some words of the user's own")
    rig = Rig(quality=QualityGate(text_file=str(text)))
    assert {rig.quality(name).text_perplexity for name in ("fp32", "int8")} == {math.exp(2.0)}
    assert rig.quality("fp32").num_text_tokens == 27
    assert Rig().quality("fp32").text_perplexity is None
    text.unlink()
    with pytest.raises(InvalidRequest, match=r"quality\.text_file is .*No such file"):
        Rig(quality=QualityGate(text_file=str(text)))


def test_what_the_reference_kept_goes_with_the_gauge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of distributions is there while there are precisions to compare, and is removed with the gauge."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rig = Rig()
    rig.quality("int8")
    assert len(list(tmp_path.glob(KEPT))) == 1
    del rig
    gc.collect()
    assert list(tmp_path.glob(KEPT)) == []


def test_narrow_precisions_of_a_real_model_cost_something(tmp_path: Path) -> None:
    """On a tiny model of the embedded engine int8 diverges from fp32 more than bf16 does, and both by little."""
    folder = write_tiny_model(tmp_path / "model")
    request = make_request(workload=WorkloadSpec(prompt_tokens=(20, 40), output_tokens=(8, 16)))
    gauge = QualityGauge(request, now=lambda: START)

    def quality(precision: str) -> Quality:
        settings = EngineSettings(model="tiny", precision=precision, max_batch=4, max_context=56, num_threads=1)
        return gauge.quality(settings, lambda wanted: EmbeddedEngine(wanted, folder))

    fp32, bf16, int8 = (quality(precision) for precision in ("fp32", "bf16", "int8"))
    assert (fp32.kl, fp32.top1_agreement, fp32.perplexity_ratio) == (0.0, 1.0, 1.0)
    assert bf16.kl is not None
    assert int8.kl is not None
    assert 0.0 < bf16.kl < int8.kl < 0.1
    assert bf16.num_positions == int8.num_positions > NUM_PROMPTS * 16


def with_tasks(store: MemoryStore | None = None, *names: str, limit: int = 200) -> Rig:
    """A rig whose job names tasks, which need no package."""
    rig = Rig(store)
    request = make_request(quality=QualityGate(tasks=names or ("facts",), task_limit=limit))
    rig.gauge = QualityGauge(request, store=store, now=lambda: START, open_tasks=make_tasks)
    return rig


def test_tasks_are_scored_against_the_reference() -> None:
    """The reference scores the tasks once, each other precision for itself, and the score stands beside its own."""
    rig = with_tasks()
    (found,) = rig.quality("int8").tasks
    assert (found.task, found.metric, found.score, found.reference_score) == ("facts", "acc", 1.0, 1.0)
    assert found.num_documents == 2
    counted = rig.launcher.journal.count("score fp32")
    assert rig.quality("fp32").tasks == (found,)
    assert counted == rig.launcher.journal.count("score fp32")
    assert counted == rig.launcher.journal.count("score int8") == NUM_PROMPTS + 4


def test_scores_of_tasks_are_kept_by_tasks_and_limit() -> None:
    """Another task or limit is measured anew, the same ones are not, and a job without tasks has its own figures."""
    store = MemoryStore()
    first = with_tasks(store, "facts").quality("int8")
    later = with_tasks(store, "facts").quality("int8")
    assert (later.is_reused, later.tasks) == (True, first.tasks)
    others = [with_tasks(store, "piqa"), with_tasks(store, "facts", "piqa"), with_tasks(store, "facts", limit=3)]
    assert [rig.quality("int8").is_reused for rig in (*others, Rig(store))] == [False] * 4
    assert Rig(store).quality("int8").tasks == ()


def test_a_task_that_the_reference_fails_says_nothing() -> None:
    """Of a score of 0 no share can be told: the job is refused by the task's name instead of passing everything."""
    rig = with_tasks()
    rig.gauge._tasks = TaskSet([make_task(choose("a", " long", " b"))], hash="")
    with pytest.raises(InvalidRequest, match=r"quality.tasks is 'facts': fp32 itself has acc 0 there"):
        rig.quality("int8")
