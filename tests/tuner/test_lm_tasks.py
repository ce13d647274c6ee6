"""Tasks of lm-eval: what is refused without the package, and what is read of task files where it is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.embedded.loop import EmbeddedEngine
from engine.settings import EngineSettings
from tests.db.factories import START
from tests.tiny_model import write_tiny_model
from tests.tuner.factories import make_request
from tuner import lm_tasks
from tuner.errors import InvalidRequest
from tuner.gauge import QualityGauge
from tuner.lm_tasks import is_folder, open_tasks, require_package, tasks_sha256
from tuner.measurement import Quality
from tuner.objectives import quality_verdict
from tuner.request import QualityGate, WorkloadSpec

FACTS = [
    {"question": "The capital of France is", "choices": ["Paris", "bread"], "answer": 0},
    {"question": "Two plus two is", "choices": ["seven", "four"], "answer": 1},
    {"question": "The sun rises in the", "choices": ["east", "spoon"], "answer": 0},
]
TASK = """task: facts
dataset_path: json
dataset_kwargs: {data_files: {test: facts.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


def write_task(folder: Path, text: str = TASK, name: str = "facts.yaml") -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / "facts.jsonl").write_text("\n".join(map(json.dumps, FACTS)))
    return str(folder)


@pytest.mark.parametrize(("name", "expected"), [("facts", False), ("./facts", True), ("~", True), ("a/b", True)])
def test_a_slash_makes_a_folder(name: str, expected: bool) -> None:
    """What an entry means does not depend on which folders there are."""
    assert expected == is_folder(name)


def test_without_the_package_tasks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal has the command that installs it, and a job without tasks needs nothing."""
    monkeypatch.setattr(lm_tasks, "PACKAGE", "no_such_package")
    require_package(())
    assert tasks_sha256((), 3) is None
    with pytest.raises(InvalidRequest, match=r"quality.tasks is \['facts'\]: .* pip install 'wattfront\[lm-eval\]'"):
        open_tasks(["facts"], 3)


def test_files_limit_and_names_decide_what_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another document, limit or name is another hash; another place of the folder is not."""
    monkeypatch.setattr(lm_tasks, "PACKAGE", "structlog")  # whatever is installed has a version
    here = write_task(tmp_path / "tasks")
    first = tasks_sha256([here], 3)
    (tmp_path / "there").mkdir()
    assert first == tasks_sha256([write_task(tmp_path / "there" / "tasks")], 3)
    assert len({first, tasks_sha256([here], 4), tasks_sha256([here, "piqa"], 3)}) == 3
    (tmp_path / "tasks" / "facts.jsonl").write_text("{}")
    assert first != tasks_sha256([here], 3)
    with pytest.raises(InvalidRequest, match="there is no such folder"):
        tasks_sha256([str(tmp_path / "nowhere")], 3)


@pytest.fixture(scope="module")
def package() -> Any:
    """The package itself, 0.4.13 of which this was written with."""
    return pytest.importorskip("lm_eval.tasks", reason=f"the extra is not installed: {lm_tasks.INSTALL}")


@pytest.fixture
def cached(package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the data that tasks are read into out of the home folder."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.usefixtures("cached")
@pytest.mark.filterwarnings("ignore")  # of packages that are not ours
class TestThePackage:
    """Local task files, without a network."""

    def test_it_reads_questions_and_judges_answers(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        """The first documents of the file beside the task are at hand, judged by its own metric, without a word."""
        tasks = open_tasks([write_task(tmp_path / "tasks")], 2)
        (task,) = tasks._tasks
        assert (task.name, task.metric, len(task.documents)) == ("facts", "acc", 2)
        assert task.documents[1].questions == (("Two plus two is", " seven"), ("Two plus two is", " four"))
        answers = [(-3.0, False), (-2.0, False)]
        values = [document.judge(answers)["acc"] for document in task.documents]
        assert (values, task.aggregate(values)) == ([0.0, 1.0], 0.5)
        assert capfd.readouterr() == ("", "")

    def test_the_hash_is_of_content_and_limit(self, tmp_path: Path) -> None:
        """The same files elsewhere are the same tasks; other documents, limits or templates are others."""
        found = [
            open_tasks([write_task(tmp_path / "a")], 2).hash,
            open_tasks([write_task(tmp_path / "b")], 2).hash,
            open_tasks([write_task(tmp_path / "b")], 3).hash,
            open_tasks([write_task(tmp_path / "c", TASK.replace("{{question}}", "Q: {{question}}"))], 2).hash,
        ]
        assert found[0] == found[1]
        assert len(set(found)) == 3

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            (
                ("multiple_choice", "generate_until"),
                "'facts': its output type is generate_until; only tasks of multiple",
            ),
            (("multiple_choice", "loglikelihood_rolling"), "'facts': its output type is loglikelihood_rolling"),
            (
                ("higher_is_better: true", "higher_is_better: false"),
                "'facts': it has no metric of which more is better",
            ),
            (("facts.jsonl", "lost.jsonl"), "'facts': lm-eval cannot load it (FileNotFoundError: "),
            (("task: facts", "name: facts"), "facts.yaml': lm-eval finds no task in it"),
        ],
        ids=["generated", "rolling", "no better", "no data", "no task"],
    )
    def test_what_cannot_be_scored_is_refused(self, tmp_path: Path, changes: tuple[str, str], words: str) -> None:
        """A task that generates, has no score, no data or no name is refused by its name with the reason."""
        folder = write_task(tmp_path / "tasks", TASK.replace(*changes))
        with pytest.raises(InvalidRequest) as refused:
            open_tasks([folder], 2)
        assert words in str(refused.value)

    def test_a_folder_without_tasks_is_refused(self, tmp_path: Path) -> None:
        """An empty folder asks nothing, and a task that two folders have is meant once."""
        with pytest.raises(InvalidRequest, match="the folder has no task file"):
            open_tasks([str(tmp_path)], 2)
        folders = [write_task(tmp_path / name) for name in ("a", "b")]
        with pytest.raises(InvalidRequest, match="'facts': it stands there twice"):
            open_tasks(folders, 2)

    def test_precisions_of_a_real_model_are_compared(self, tmp_path: Path) -> None:
        """A tiny model has a score in every precision beside fp32's own, over the documents that fit."""
        folder, tasks = write_tiny_model(tmp_path / "model"), write_task(tmp_path / "tasks")
        gate = QualityGate(tasks=(tasks,), min_task_share=1.0)
        workload = WorkloadSpec(prompt_tokens=(20, 40), output_tokens=(8, 16))
        gauge = QualityGauge(make_request(workload=workload, quality=gate), now=lambda: START)

        def quality(precision: str) -> Quality:
            settings = EngineSettings(model="tiny", precision=precision, max_batch=4, max_context=56, num_threads=1)
            return gauge.quality(settings, lambda wanted: EmbeddedEngine(wanted, folder))

        fp32, int8 = quality("fp32").tasks[0], quality("int8").tasks[0]
        assert (fp32.task, fp32.metric, fp32.num_documents, fp32.share) == ("facts", "acc", 3, 1.0)
        assert int8.reference_score == fp32.score
        assert quality_verdict(gate, quality("fp32")) is None
