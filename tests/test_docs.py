"""Documents lag unless something holds them to the code: settings, knobs, commands, paths, files, links, codes, fields.

The map of the code is the tree in README.md: every module of the five packages has its line there.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel

from api import cli
from api.app import ROUTERS
from api.job_schemas import JobIn
from api.settings import Settings
from db.leases import INTERRUPTED_TWICE
from engine import errors as engine_errors
from engine.settings import PRECISIONS
from probes.settings import DEVICE_KNOBS
from tests.db.factories import REPOSITORY, make_measurement
from tests.tuner.factories import make_request
from tests.tuner.scripted import ScriptedDevice
from tuner.objectives import violations
from tuner.request import LATENCIES, STATISTICS, Limit
from tuner.space import search_space
from tuner.trial import TrialState

PACKAGES = ("tuner", "engine", "probes", "db", "api")
HEADINGS = ("What it does", "Why it moves watts", "Values", "How it interacts")
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
KNOBS = (REPOSITORY / "docs" / "knobs.md").read_text(encoding="utf-8")
GLOSSARY = (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8")
MEASURING = (REPOSITORY / "docs" / "measuring.md").read_text(encoding="utf-8")


def knob_names() -> list[str]:
    """Return the knobs that a job searches when it names none, and those of devices."""
    return [*(knob.name for knob in search_space(make_request(knobs=()), ScriptedDevice()).knobs), *DEVICE_KNOBS]


def sections_of(text: str, level: int) -> dict[str, str]:
    """Return the text under each heading of a level, by the heading's words without backticks."""
    parts = re.split(rf"^{'#' * level} (.+)$", text, flags=re.MULTILINE)
    return {title.replace("`", ""): body for title, body in zip(parts[1::2], parts[2::2], strict=True)}


def tree_entries() -> list[str]:
    """Return the paths in README.md's tree, folders without their slash."""
    block = re.search(r"^```\n(tuner/.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    assert block is not None
    parents: list[str] = []
    entries = []
    for line in block[1].splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        parents[depth:] = [name.rstrip("/")]
        entries.append("/".join(parents))
    return entries


def modules() -> list[str]:
    """Return every module of the packages but their maps and the revisions of the schema."""
    paths = [path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")]
    return sorted(
        str(path.relative_to(REPOSITORY))
        for path in paths
        if path.name != "__init__.py" and path.parent.name != "versions"
    )


def route_paths() -> list[str]:
    """Return every path that the service answers by a function of ours, and its schema."""
    routes = [route.path for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    return [*routes, str(FastAPI().openapi_url)]


def calls(path: str) -> Iterator[ast.Call]:
    """Yield every call in a file of the repository."""
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def words_in(node: ast.AST) -> Iterator[str]:
    """Yield the codes (lower-case words joined by underscores) that stand in an expression as text."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and re.fullmatch("[a-z_]+", inner.value):
            yield inner.value


def codes_given_to(path: str, *, keyword: str, function: str = "", place: int = 0) -> set[str]:
    """Return the codes that calls in a file pass by keyword, or to a function at a place."""
    by_keyword = [given.value for call in calls(path) for given in call.keywords if given.arg == keyword]
    by_place = [
        call.args[place]
        for call in calls(path)
        if function and ast.unparse(call.func).split(".")[-1] == function and len(call.args) > place
    ]
    return {word for node in (*by_keyword, *by_place) for word in words_in(node)}


def codes_returned_by(path: str, function: str) -> set[str]:
    """Return the codes that a function of a file returns."""
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    bodies = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function]
    returns = [node for body in bodies for node in ast.walk(body) if isinstance(node, ast.Return)]
    return {word for node in returns for word in words_in(node)}


def trial_reasons() -> set[str]:
    """Return every code that can stand as a trial's reason, but those of a reading."""
    kinds = {
        error.kind
        for error in vars(engine_errors).values()
        if isinstance(error, type) and issubclass(error, engine_errors.EngineError)
    }
    return {
        *codes_given_to("tuner/objectives.py", keyword="reason", function="Verdict", place=1),
        *codes_given_to("tuner/bench.py", keyword="reasons"),
        *codes_given_to("tuner/bench.py", keyword="reason"),
        *codes_given_to("db/jobs.py", keyword="reason"),
        *codes_given_to("db/claims.py", keyword="reason"),
        *codes_given_to("db/trials.py", keyword="reason"),
        INTERRUPTED_TWICE,
        *kinds,
    }


def ended_because() -> set[str]:
    """Return every code that can stand as what ended a job."""
    return {
        *codes_returned_by("tuner/search.py", "_reason_to_stop"),
        *codes_returned_by("tuner/budget.py", "reason_to_stop"),
        *codes_returned_by("tuner/budget.py", "hard_limit"),
        *codes_returned_by("api/job_run.py", "_reason_to_stop"),
        *codes_given_to("api/job_run.py", keyword="ended_because", function="finish", place=2),
        *codes_given_to("api/job_run.py", keyword="ended_because", function="fail", place=0),
        *codes_given_to("api/watchdog.py", keyword="ended_because", function="JobCut", place=0),
        *codes_given_to("db/claims.py", keyword="ended_because"),
    }


def fields_of(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the dotted names of a job file's fields."""
    names = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        is_block = isinstance(kind, type) and issubclass(kind, BaseModel)
        names += fields_of(kind, f"{name}.") if is_block else [f"{prefix}{name}"]  # type: ignore[arg-type] # a block
    return names


def answers() -> list[type[BaseModel]]:
    """Return every model that an answer is made of."""
    names = ["api.schemas", *(f"api.{path.stem}" for path in sorted((REPOSITORY / "api").glob("*_schemas.py")))]
    found = [one for name in names for one in vars(importlib.import_module(name)).values() if isinstance(one, type)]
    return [model for model in dict.fromkeys(found) if issubclass(model, BaseModel) and model.__name__.endswith("Out")]


def options_of(command: click.Command) -> set[str]:
    """Return the options of a command, and of all commands below it."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return {option for one in command.params for option in one.opts}.union(*(options_of(one) for one in below))


def slugs_of(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as forges make them."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_has_a_row(name: str) -> None:
    """Each WATTFRONT_* variable has a row of its own in README.md's table."""
    assert re.search(rf"^\| `WATTFRONT_{name.upper()}` \| .+ \| .+ \|$", README, flags=re.MULTILINE)


def test_no_setting_is_made_up() -> None:
    """Each row of README.md's table of settings is a variable that the program reads."""
    rows = re.findall(r"^\| `WATTFRONT_(\w+)` \|", README, flags=re.MULTILINE)
    assert {name.upper() for name in Settings.model_fields} == set(rows)


@pytest.mark.parametrize("name", knob_names())
def test_every_knob_has_the_four_headings(name: str) -> None:
    """Each knob's section in docs/knobs.md has the same four headings, none of them empty."""
    section = sections_of(KNOBS, 2)[name]
    told = {title: body.strip() for title, body in sections_of(section, 3).items()}
    assert list(told) == list(HEADINGS)
    assert all(told.values())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_is_explained(precision: str) -> None:
    """Each precision has a line of its own under the knob's values."""
    values = sections_of(sections_of(KNOBS, 2)["precision"], 3)["Values"]
    assert re.search(rf"^- `{precision}`: ", values, flags=re.MULTILINE)


@pytest.mark.parametrize("name", cli.cli.commands)
def test_every_command_is_documented(name: str) -> None:
    """Each command of `wattfront` has a row in README.md."""
    assert re.search(rf"^\| `wattfront {name}\b", README, flags=re.MULTILINE)


@pytest.mark.parametrize("path", route_paths())
def test_every_path_is_documented(path: str) -> None:
    """Each path that the service answers has a row in README.md."""
    assert re.search(rf"^\| `{re.escape(path)}` \|", README, flags=re.MULTILINE)


@pytest.mark.parametrize("field", fields_of(JobIn))
def test_every_field_of_a_job_file_is_documented(field: str) -> None:
    """Each field that a job file may have stands in README.md by its dotted name."""
    assert re.search(rf"^\| `{re.escape(field)}` \|", README, flags=re.MULTILINE)


@pytest.mark.parametrize("entry", tree_entries())
def test_every_entry_of_the_tree_exists(entry: str) -> None:
    """README.md's tree names no file that is not there."""
    assert (REPOSITORY / entry).exists()


@pytest.mark.parametrize("module", modules())
def test_every_module_has_its_line_in_the_tree(module: str) -> None:
    """Each module of the packages has a line in README.md's tree."""
    assert module in tree_entries()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_link_leads_somewhere(path: Path) -> None:
    """Relative links point to files that exist, and their anchors to headings in them."""
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", path.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        found = (path.parent / file) if file else path
        assert found.exists(), target
        assert not anchor or anchor in slugs_of(found), target


def test_the_codes_were_found() -> None:
    """What reads the codes out of the source still finds those of every kind."""
    assert trial_reasons() >= {"no_tokens", "no_steady_state", "worker_lost", "engine_died", "interrupted"}
    assert ended_because() >= {"trials", "stopped", "no_feasible_point", "cancelled", "error"}


@pytest.mark.parametrize("code", sorted(trial_reasons()))
def test_every_reason_of_a_trial_is_explained(code: str) -> None:
    """Each code that can be a trial's reason stands in docs/glossary.md or docs/measuring.md."""
    assert f"`{code}`" in GLOSSARY + MEASURING


def test_every_kind_of_limit_is_explained() -> None:
    """The reasons that missed limits give stand in docs/glossary.md, with the metric as an example."""
    request = make_request(sla=(Limit(metric="ttft_p99_ms", bound_ms=1.0),))
    assert {"sla:ttft_p99_ms", "quality:perplexity_ratio"} == set(violations(request, make_measurement()))
    assert "`sla:ttft_p99_ms`" in GLOSSARY
    assert "`quality:perplexity_ratio`" in GLOSSARY


@pytest.mark.parametrize("code", sorted(ended_because()))
def test_every_end_of_a_job_is_explained(code: str) -> None:
    """Each code that can end a job has a row in docs/glossary.md."""
    assert re.search(rf"^\| `{code}` \|", GLOSSARY, flags=re.MULTILINE)


@pytest.mark.parametrize("state", TrialState)
def test_every_state_of_a_trial_is_explained(state: TrialState) -> None:
    """Each state has a row in docs/glossary.md."""
    assert re.search(rf"^\| `{state.value}` \|", GLOSSARY, flags=re.MULTILINE)


@pytest.mark.parametrize("word", [*(f"{latency}_ms" for latency in LATENCIES), *STATISTICS])
def test_every_part_of_a_metric_is_explained(word: str) -> None:
    """Latencies and statistics, of which the figures' names are made, stand in docs/glossary.md."""
    assert f"`{word}`" in GLOSSARY


@pytest.mark.parametrize(
    ("model", "field"),
    [(model.__name__, field) for model in answers() for field in model.model_fields],
)
def test_every_field_of_an_answer_is_explained(model: str, field: str) -> None:
    """Each field of the JSON stands in docs/glossary.md."""
    assert f"`{field}`" in GLOSSARY, f"{model}.{field}"


def test_every_option_that_is_named_exists() -> None:
    """An option that README.md or CHANGELOG.md tells of is one that a command has."""
    told = re.findall(
        r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", README + (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    )
    assert set(told) <= options_of(cli.cli) | {"--help"}
