"""Tasks of EleutherAI's lm-evaluation-harness, read for `tuner.tasks`: the only import of lm_eval.

The package is an optional extra (`lm-eval`), loaded when a job names tasks. It says what is asked and how an answer
counts; engines only score texts, so that tasks must compare likelihoods (`multiple_choice`, `loglikelihood`). A name is
one of the package's own tasks, whose data it fetches; an entry with a slash is a folder with task files, which needs no
network. A task may bring Python of its own, which runs here. Knows nothing of engines, references and limits.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import io
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tuner.errors import InvalidRequest
from tuner.tasks import FIELD, Document, Task, TaskSet

PACKAGE = "lm_eval"
INSTALL = "pip install 'wattfront[lm-eval]'"
#: Output types of tasks that an engine can answer which scores a given text.
TYPES = ("multiple_choice", "loglikelihood")
#: What lm-eval draws its examples with unless told otherwise; the same for every precision.
_FEWSHOT_SEED = 1234


def is_folder(name: str) -> bool:
    """Tell whether an entry of `quality.tasks` is a folder with task files: it has a slash, or begins with `~`."""
    return "/" in name or name.startswith("~")


def require_package(names: Sequence[str]) -> None:
    """Raise InvalidRequest when tasks are named and the package that has them is not installed."""
    if names and importlib.util.find_spec(PACKAGE) is None:
        remedy = f"the optional package lm-eval is not installed; run {INSTALL}, or leave them out"
        raise InvalidRequest(FIELD, list(names), remedy)


def tasks_sha256(names: Sequence[str], limit: int) -> str | None:
    """Hash what can be told of tasks without opening them: names, files of folders, limit and package; None of none.

    Raises InvalidRequest when a folder cannot be read.
    """
    if not names:
        return None
    require_package(names)
    parts = [importlib.metadata.version(PACKAGE), str(limit)]
    for name in names:
        for path in _files(name) if is_folder(name) else ():
            parts.append(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}")
        parts.append(Path(name).name)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def open_tasks(names: Sequence[str], limit: int) -> TaskSet:
    """Load tasks with at most so many documents each, their first.

    Takes seconds, and up to a minute with names of the package's own tasks: it looks through 13,000 files. Raises
    InvalidRequest when the package is missing, or for an entry that names nothing, or nothing that can be scored.
    """
    require_package(names)
    manager = importlib.import_module(f"{PACKAGE}.tasks").TaskManager
    found: dict[str, Any] = {}
    own = [name for name in names if not is_folder(name)]
    places = [
        (name, manager(include_path=str(_folder(name)), include_defaults=False)) for name in names if name not in own
    ]
    places += [("", manager())] if own else []
    for folder, known in places:
        for name in _of_folder(folder, known) if folder else own:
            if name in found:
                raise InvalidRequest(FIELD, name, "it stands there twice; keep one of the two")
            found[name] = _loaded(name, known, limit)
    tasks = [_task(name, one) for name, one in found.items()]
    content = [importlib.metadata.version(PACKAGE), *(_content(task, found[task.name]) for task in tasks)]
    return TaskSet(tasks, hash=hashlib.sha256(repr(content).encode()).hexdigest())


def _folder(name: str) -> Path:
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise InvalidRequest(FIELD, name, "there is no such folder; give one with lm-eval's task files (*.yaml)")
    return folder.absolute()


def _files(name: str) -> list[Path]:
    return sorted(path for path in _folder(name).rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _of_folder(folder: str, manager: Any) -> list[str]:
    """Return the names of a folder's tasks. lm-eval passes over files that it cannot read; here they are refused."""
    read = {str(entry.yaml_path) for entry in manager.task_index.values()}
    for path in _files(folder):
        if path.suffix == ".yaml" and not path.name.startswith("_") and str(path) not in read:
            remedy = "lm-eval finds no task in it; correct it, or begin its name with _ where others include it"
            raise InvalidRequest(FIELD, str(path), remedy)
    if not manager.all_subtasks:
        raise InvalidRequest(FIELD, folder, "the folder has no task file (*.yaml)")
    return list(manager.all_subtasks)


def _loaded(name: str, manager: Any, limit: int) -> Any:
    """Return lm-eval's task with the requests of its first documents."""
    if name not in manager.all_subtasks:
        remedy = "lm-eval has no task of that name; write ./NAME for a folder, and see `lm-eval ls tasks`"
        if name in manager.all_tasks:
            remedy = "that is a group or a tag, whose tasks may fare differently; name them one by one"
        raise InvalidRequest(FIELD, name, remedy)
    entry = manager.task_index[name]
    _require_type(name, entry.cfg.get("output_type", "generate_until") if "class" not in entry.cfg else TYPES[0])
    kwargs = entry.cfg.get("dataset_kwargs") or {}
    changes = {"dataset_kwargs": _located(kwargs, entry.yaml_path.parent)} if kwargs else {}
    try:
        with _quiet():
            task = manager.load({"group": "wattfront", "task": [{"task": name, **changes}]})["tasks"][name]
            _require_type(name, task.OUTPUT_TYPE)
            task.set_fewshot_seed(_FEWSHOT_SEED)
            task.build_all_requests(limit=limit)
    except InvalidRequest:
        raise
    except Exception as error:  # of the task's own file, templates, Python and data, or of the network
        words = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise InvalidRequest(FIELD, name, f"lm-eval cannot load it ({words}); correct it or leave it out") from error
    return task


def _require_type(name: str, kind: object) -> None:
    if kind not in TYPES:
        remedy = f"its output type is {kind}; only tasks of {' and '.join(TYPES)} can be scored, so leave it out"
        raise InvalidRequest(FIELD, name, remedy)


def _located(value: Any, folder: Path) -> Any:
    """Make relative paths of a task's data absolute where they lie beside its file: else they mean where we stand."""
    match value:
        case str() if (folder / value).exists():
            return str(folder / value)
        case dict():
            return {name: _located(inner, folder) for name, inner in value.items()}
        case list():
            return [_located(inner, folder) for inner in value]
    return value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the packages' progress bars and notices from the console, on which a job's own are shown."""
    noisy = [logging.getLogger(name) for name in (PACKAGE, "datasets")]
    before = [logger.level for logger in noisy]
    for logger in noisy:
        logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        for logger, level in zip(noisy, before, strict=True):
            logger.setLevel(level)


def _task(name: str, task: Any) -> Task:
    better = [metric for metric, is_better in task.higher_is_better().items() if is_better]
    if not better:
        raise InvalidRequest(FIELD, name, "it has no metric of which more is better, so that no share can be told")
    if task.get_config("filter_list"):
        raise InvalidRequest(FIELD, name, "it filters answers (filter_list), which likelihoods have no use for")
    by_document: dict[int, list[Any]] = {}
    for one in task.instances:
        by_document.setdefault(one.doc_id, []).append(one)
    return Task(
        name=name,
        metric=better[0],
        documents=tuple(_document(name, task, asked) for asked in by_document.values()),
        aggregate=task.aggregation()[better[0]],
    )


def _document(name: str, task: Any, asked: Sequence[Any]) -> Document:
    asked = sorted(asked, key=lambda one: one.idx)
    if not all(len(one.args) == 2 and all(isinstance(text, str) for text in one.args) for one in asked):
        raise InvalidRequest(FIELD, name, "it asks about more than text; leave it out")
    return Document(
        questions=tuple((one.args[0], one.args[1]) for one in asked),
        judge=lambda answers: dict(task.process_results(asked[0].doc, answers)),
    )


def _content(task: Task, loaded: Any) -> tuple[object, ...]:
    """Return what a task's scores depend on; where its files and data lie is no part of it."""
    config = {name: value for name, value in loaded.dump_config().items() if name not in ("metadata", "dataset_kwargs")}
    asked = [(one.args, one.doc) for one in loaded.instances]
    return task.name, str(loaded.VERSION), task.metric, sorted(config.items()), asked
