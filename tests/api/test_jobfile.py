"""Job files: what they say, and the line of what is wrong with them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from api.errors import JobFileError, UsageError
from api.jobfile import MAX_BYTES, read_job
from tests.db.factories import REPOSITORY
from tuner import lm_tasks
from tuner.request import Budget, KnobRange, Limit, WindowRule

#: name -> (content, line, what the sentence holds).
BAD: dict[str, tuple[str | bytes, int, str]] = {
    "bad YAML": ("model: x\nknobs: [1, 2\n", 3, "not valid YAML"),
    "a tab": ("model: x\nbudget:\n\ttrials: 3\n", 3, "cannot start any token"),
    "two documents": ("model: x\n---\nmodel: y\n", 2, "expected a single document"),
    "an unknown tag": ("model: x\nname: !!python/object:os.system {}\n", 2, "could not determine a constructor"),
    "a date that is none": ("model: x\nname: 2026-02-30\n", 2, "'2026-02-30' is no valid timestamp; put it in quotes"),
    "a whole number that is none": ("model: x\nseed: !!int one\n", 2, "'one' is no valid int"),
    "a control character": ("model: x\nname: a\0b\n", 2, "special characters are not allowed"),
    "an unhashable key": ("model: x\n? [a, b]\n: 3\n", 2, "unhashable key"),
    "a number for a key": ("model: x\n7: 3\n", 2, "keys should be strings"),
    "not UTF-8": (b"model: x\n# gr\xfcn\nname: y\n", 2, "not UTF-8 text"),
    "UTF-16": ("model: x\n".encode("utf-16"), 1, "not UTF-8 text"),
    "a list": ("- model: x\n", 1, "a job file is a mapping"),
    "a word": ("smollm2-135m\n", 1, "a job file is a mapping"),
    "nothing": ("", 1, "model is missing"),
    "no model": ("# only this\nname: x\n", 1, "model is missing"),
    "an empty model": ("name: x\nmodel: ''\n", 2, "model is ''"),
    "a model that is a number": ("name: x\nmodel: 135\n", 2, "model is 135"),
    "an unknown field": ("model: x\nmodle: y\n", 2, "modle is not a field of a job; there are model, engine"),
    "an unknown nested field": ("model: x\nbudget:\n  trials: 3\n  hours: 2\n", 4, "there are trials, minutes"),
    "a repeated key": ("model: x\nname: y\nmodel: z\n", 3, "model stands here and on line 1"),
    "a repeated nested key": ("model: x\nsla:\n  ttft_p99_ms: 5\n  ttft_p99_ms: 6\n", 4, "and on line 3"),
    "a word for a number": ("model: x\nbudget:\n  trials: many\n", 3, "budget.trials is 'many'"),
    "yes for a number": ("model: x\nbudget:\n  trials: yes\n", 3, "budget.trials is True"),
    "a fraction for a count": ("model: x\nbudget:\n  trials: 2.5\n", 3, "budget.trials is 2.5"),
    "a block that is a number": ("model: x\nworkload: 3\n", 2, "workload is 3"),
    "infinite minutes": ("model: x\nbudget: {trials: 2,\n  minutes: .inf}\n", 3, "budget.minutes is inf"),
    "an SLA of NaN": ("model: x\nsla:\n  ttft_p99_ms: .nan\n", 3, "sla.ttft_p99_ms is nan"),
    "a knob of NaN": ("model: x\nknobs:\n  max_batch: [1, .nan]\n", 3, "knobs.max_batch.1 is nan"),
    "an SLA of zero": ("model: x\nsla:\n  tpot_p50_ms: 8\n  ttft_p99_ms: 0\n", 4, "sla.ttft_p99_ms is 0"),
    "an unknown metric": ("model: x\nsla:\n  tpot_p50_ms: 8\n  speed_ms: 3\n", 4, "'speed_ms'"),
    "an unknown axis": ("model: x\nlatency_metric: speed\n", 2, "latency_metric is 'speed'"),
    "an empty range": ("model: x\nworkload:\n  prompt_tokens: 9-3\n", 3, "workload.prompt_tokens is '9..3'"),
    "a range of words": ("model: x\nworkload:\n  output_tokens: a-b\n", 3, "workload.output_tokens is 'a-b'"),
    "an unknown scenario": ("model: x\nworkload:\n  scenario: bursts\n", 3, "workload.scenario is 'bursts'"),
    "a scenario without its rate": ("model: x\nworkload:\n  scenario: server\n", 2, "workload.rate_per_s is None"),
    "a rate that nobody has": ("model: x\nworkload:\n  rate_per_s: 2\n", 3, "only server and interactive have it"),
    "a word for a rate": ("model: x\nworkload:\n  rate_per_s: fast\n", 3, "workload.rate_per_s is 'fast'"),
    "no knob value": ("model: x\nknobs:\n  precision: [fp32]\n  max_batch: []\n", 4, "knobs.max_batch is []"),
    "a repeated knob value": ("model: x\nknobs:\n  max_batch: [1, 2, 1]\n", 3, "knobs.max_batch is [1, 2, 1]"),
    "numbers and words": ("model: x\nknobs:\n  max_batch: [1, two]\n", 3, "either numbers or words"),
    "a knob without a list": ("model: x\nknobs:\n  max_batch: 4\n", 3, "knobs.max_batch is 4"),
    "a window that contradicts itself": ("model: x\nwindow:\n  window_s: 9\n  max_window_s: 5\n", 4, "is 5"),
    "a negative seed": ("model: x\nseed: -1\n", 2, "seed is -1"),
    "a seed that no sampler takes": ("model: x\nseed: 4294967296\n", 2, "seed is 4294967296"),
    "a long name": (f"model: x\nname: {'y' * 201}\n", 2, "at most 200 characters"),
    "an alias without end": ("model: x\nworkload: &w\n  seed: *w\n", 3, "workload.seed is {"),
    "deep nesting": (f"model: x\nname: {'[' * 1000}\n", 1, "nested too deeply"),
}


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "job.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", BAD)
def test_a_fault_is_told_with_its_line(tmp_path: Path, name: str) -> None:
    """Every kind of bad job file is refused in one line that names the file, the faulty line, and the fault."""
    content, line, words = BAD[name]
    path = written(tmp_path, content)
    with pytest.raises(JobFileError) as refused:
        read_job(path, {})
    assert str(refused.value).startswith(f"{path}:{line}: ")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_fault_is_not_told_at_any_length(tmp_path: Path) -> None:
    """A file full of text in the wrong place is refused without printing all of it."""
    with pytest.raises(JobFileError) as refused:
        read_job(written(tmp_path, f"model: x\nbudget: {'y' * 100_000}\n"), {})
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "No such file or directory; give the path of a YAML file"),
        (lambda path: path.mkdir(), "Is a directory; give the path of a YAML file"),
        (lambda path: path.write_bytes(b"#" * (MAX_BYTES + 1)), f"larger than {MAX_BYTES} bytes"),
    ],
    ids=["missing", "directory", "huge"],
)
def test_what_is_no_job_file_is_named(tmp_path: Path, make: object, words: str) -> None:
    """A path that leads to no readable job file is refused by its name."""
    assert callable(make)
    make(tmp_path / "job.yaml")
    with pytest.raises(JobFileError) as refused:
        read_job(tmp_path / "job.yaml", {})
    assert str(refused.value).startswith(f"job file {tmp_path / 'job.yaml'}: {words}")


def test_a_job_file_says_everything(tmp_path: Path) -> None:
    """Every block of a job file reaches the request, and what it leaves out has its default."""
    content = (
        "model: x\nname: all\ndevice: cpu\nseed: 5\nlatency_metric: ttft_p90_ms\n"
        "workload: {prompt_tokens: 8-16, output_tokens: 4, concurrency: 3, seed: 9}\n"
        "sla: {ttft_p99_ms: 500, tpot_p50_ms: 12.5}\nknobs: {max_batch: [1, 4], precision: [fp32]}\n"
        "budget: {trials: 7, minutes: 1.5}\nwindow: {warmup_s: 1, window_s: 2}\nquality: {max_perplexity_ratio: 1.2}\n"
    )
    request = read_job(written(tmp_path, content), {})
    assert (
        request.model,
        request.engine,
        request.name,
        request.device,
        request.seed,
        request.latency_metric,
    ) == ("x", "embedded", "all", "cpu", 5, "ttft_p90_ms")
    assert (
        request.workload.prompt_tokens,
        request.workload.output_tokens,
        request.workload.concurrency,
        request.workload.seed,
    ) == ((8, 16), (4, 4), 3, 9)
    assert (Limit(metric="ttft_p99_ms", bound_ms=500), Limit(metric="tpot_p50_ms", bound_ms=12.5)) == request.sla
    assert (KnobRange(name="max_batch", values=(1, 4)), KnobRange(name="precision", values=("fp32",))) == request.knobs
    assert Budget(trials=7, minutes=1.5) == request.budget
    assert WindowRule(warmup_s=1, window_s=2) == request.window
    assert request.quality.max_perplexity_ratio == 1.2


@pytest.mark.parametrize("content", ["\ufeffmodel: x\n", "model: x\r\nname: y\r\n", "model: x"])
def test_a_job_file_may_come_from_any_editor(tmp_path: Path, content: str) -> None:
    """A byte-order mark, Windows line ends and a missing last line end are no faults."""
    assert read_job(written(tmp_path, content), {}).model == "x"


def test_a_long_window_needs_no_second_field(tmp_path: Path) -> None:
    """Times above the usual longest ones move those along, as long as the file does not say otherwise."""
    request = read_job(written(tmp_path, "model: x\nwindow: {warmup_s: 300, window_s: 600}\n"), {})
    assert (request.window.max_warmup_s, request.window.max_window_s) == (300, 600)


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    """A flag replaces the file's value of the same field and leaves its neighbours alone."""
    path = written(
        tmp_path, "model: x\nbudget: {trials: 7, minutes: 2}\nknobs: {max_batch: [1, 4], precision: [int8]}\n"
    )
    request = read_job(path, {"model": "y", "budget.trials": 3, "knobs.max_batch": [2], "sla.ttft_p99_ms": 9.0})
    assert ("y", Budget(trials=3, minutes=2)) == (request.model, request.budget)
    assert (KnobRange(name="max_batch", values=(2,)), KnobRange(name="precision", values=("int8",))) == request.knobs
    assert (Limit(metric="ttft_p99_ms", bound_ms=9.0),) == request.sla


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"budget.trials": 0}, "budget.trials is 0: give 1 to 100000"),
        ({"knobs.max_batch": []}, "knobs.max_batch is []: give at least one value"),
        ({"knobs.max_batch": [1, 1.5, float("nan")]}, "knobs.max_batch.2 is nan"),
        ({"workload.prompt_tokens": "9-3"}, "workload.prompt_tokens is '9..3'"),
        ({"sla.speed_ms": 5.0}, "sla is 'speed_ms'"),
        ({"latency_metric": "speed"}, "latency_metric is 'speed'"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_a_fault_in_a_flag_names_no_line(tmp_path: Path, flags: dict[str, object], words: str) -> None:
    """What a flag got wrong is told by field and value, and not blamed on a line of the file."""
    path = written(tmp_path, "model: x\nsla: {ttft_p99_ms: 5}\nbudget:\n  trials: 3\n")
    with pytest.raises(UsageError) as refused:
        read_job(path, flags)
    assert str(refused.value).startswith(words)
    assert not isinstance(refused.value, JobFileError)


def test_a_fault_in_the_file_keeps_its_line_beside_flags(tmp_path: Path) -> None:
    """A flag for one field of a block does not take the blame for another field of the file."""
    path = written(tmp_path, "model: x\nbudget:\n  minutes: -4\n")
    with pytest.raises(JobFileError, match=r"job.yaml:3: budget.minutes is -4"):
        read_job(path, {"budget.trials": 3})


@pytest.mark.parametrize(
    ("device", "engine", "expected"),
    [
        ("auto", "", "embedded"),
        ("GPU-1234", "", "embedded"),
        ("simulated:h100-sxm", "", "simulated"),
        (" Simulated:H100-SXM:8", "", "simulated"),
        ("auto", "engine: simulated\n", "simulated"),
        ("simulated:h100-sxm", "engine: embedded\n", "embedded"),
    ],
)
def test_the_device_decides_the_engine_unless_it_is_named(
    tmp_path: Path, device: str, engine: str, expected: str
) -> None:
    """A simulated device takes the simulated engine, any other the embedded one; what is named is kept as it is."""
    content = f"model: x\ndevice: '{device}'\n{engine}"
    assert expected == read_job(written(tmp_path, content), {}).engine


def test_a_trace_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path of a trace is made absolute: whoever resumes the job may stand in another folder."""
    monkeypatch.chdir(tmp_path)
    content = "model: x\nworkload: {scenario: trace, trace_file: day.csv, time_scale: 2}\n"
    workload = read_job(written(tmp_path, content), {}).workload
    assert (workload.trace_file, workload.time_scale) == (str(tmp_path / "day.csv"), 2)


def test_a_trace_is_noted_as_it_was_submitted(tmp_path: Path) -> None:
    """The job keeps the SHA-256 of its trace; of one that is not there it keeps none, and is refused later for it."""
    day, content = tmp_path / "day.csv", f"model: x\nworkload: {{scenario: trace, trace_file: {tmp_path}/day.csv}}\n"
    assert read_job(written(tmp_path, content), {}).workload.trace_sha256 is None
    day.write_bytes(b"a day")
    assert read_job(written(tmp_path, content), {}).workload.trace_sha256 == hashlib.sha256(b"a day").hexdigest()


def test_folders_of_tasks_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative folder is made absolute, the name of a task is kept, though there is a folder of that name."""
    monkeypatch.setattr(lm_tasks, "PACKAGE", "structlog")  # stands for an installed package
    monkeypatch.chdir(tmp_path)
    (tmp_path / "piqa").mkdir()
    content = "model: x\nquality: {tasks: [./facts, piqa], task_limit: 20, min_task_share: 0.999}\n"
    gate = read_job(written(tmp_path, content), {}).quality
    assert (gate.tasks, gate.task_limit, gate.min_task_share) == ((str(tmp_path / "facts"), "piqa"), 20, 0.999)


def test_tasks_without_their_package_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything runs the line is named, and the command that installs the package; a flag names no line."""
    monkeypatch.setattr(lm_tasks, "PACKAGE", "no_such_package")
    path = written(tmp_path, "model: x\nquality:\n  tasks: [piqa]\n")
    with pytest.raises(
        JobFileError, match=r"job.yaml:3: quality.tasks is \['piqa'\]: .*pip install 'wattfront\[lm-eval"
    ):
        read_job(path, {})
    with pytest.raises(
        UsageError, match=r"^quality.tasks is \['copa'\]: the optional package lm-eval is not installed"
    ):
        read_job(path, {"quality.tasks": ["copa"]})


def test_the_first_job_parses() -> None:
    """The job file that `make run` submits is a good one."""
    request = read_job(REPOSITORY / "docs" / "examples" / "first-job.yaml", {})
    assert (request.name, request.model) == ("first job", "smollm2-135m")


def test_a_knob_can_be_on_and_off(tmp_path: Path) -> None:
    """`on` and `off` are a knob's words without quotes, too."""
    text = "model: x\nknobs:\n  prefix_caching: [off, on]\n  policy: [prefill_first]\n"
    (tmp_path / "job.yaml").write_text(text)

    request = read_job(tmp_path / "job.yaml", {})

    assert KnobRange(name="prefix_caching", values=("off", "on")) in request.knobs
