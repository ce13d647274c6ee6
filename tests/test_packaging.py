"""What is installed: five packages with generic names that are ours alone, with every file they need."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import re
import tomllib
from fnmatch import fnmatch
from importlib import resources
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGES = ("tuner", "probes", "engine", "db", "api")
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
#: What the program reads at run time beside its modules.
DATA = (
    "engine/simulated/configs/models.json",
    "tuner/corpus/prose.txt",
    "api/templates/base.html",
    "api/templates/job.html",
    "api/templates/jobs.html",
    "api/templates/login.html",
    "api/templates/devices.html",
    "api/templates/error.html",
    "api/templates/job_cells.html",
    "api/templates/macros.html",
    "api/templates/overview.html",
    "api/templates/form_macros.html",
    "api/templates/job_fields.html",
    "api/templates/new_job.html",
    "api/templates/schedule.html",
    "api/templates/schedule_form.html",
    "api/templates/schedule_macros.html",
    "api/templates/schedules.html",
    "api/static/forms.css",
    "api/static/js/explanation.mjs",
    "api/static/js/form_fields.mjs",
    "api/static/js/job_form.mjs",
    "api/static/js/knob_fields.mjs",
    "api/static/js/new_job.mjs",
    "api/static/js/quantities.mjs",
    "api/static/js/rest.mjs",
    "api/static/js/schedule_form.mjs",
    "api/static/js/schedules.mjs",
    "api/static/js/sla_fields.mjs",
    "api/static/js/viewer_times.mjs",
    "api/static/job.css",
    "api/static/js/drawer.mjs",
    "api/static/js/elements.mjs",
    "api/static/js/figures.mjs",
    "api/static/js/job.mjs",
    "api/static/js/job_events.mjs",
    "api/static/js/numbers.mjs",
    "api/static/js/recommendation.mjs",
    "api/static/js/table.mjs",
    "api/templates/chart_head.html",
    "api/templates/compare.html",
    "api/static/chart.css",
    "api/static/compare.css",
    "api/static/js/charts.mjs",
    "api/static/js/compare.mjs",
    "api/static/js/front_rows.mjs",
    "api/static/js/vega_view.mjs",
    "api/static/style.css",
    "api/static/icon.svg",
    "api/static/js/base.mjs",
    "api/static/js/copy.mjs",
    "api/static/js/live.mjs",
    "api/static/js/moments.mjs",
    "db/migrations/env.py",
    "db/migrations/versions/0001_initial.py",
)


def test_the_wheel_has_the_five_packages() -> None:
    """The wheel is built from the five packages and is marked so that no index takes it."""
    assert tuple(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == PACKAGES
    assert "Private :: Do Not Upload" in PYPROJECT["project"]["classifiers"]


@pytest.mark.parametrize("name", PACKAGES)
def test_nobody_else_claims_a_package(name: str) -> None:
    """No other installed distribution brings a package of that name, and it is imported from this checkout."""
    assert set(importlib.metadata.packages_distributions().get(name, [])) <= {"wattfront"}
    module = importlib.import_module(name)
    assert module.__file__ is not None
    assert Path(module.__file__).resolve() == REPOSITORY.resolve() / name / "__init__.py"


@pytest.mark.parametrize("path", sorted(path for name in PACKAGES for path in (REPOSITORY / name).rglob("__init__.py")))
def test_a_package_says_what_is_in_it_and_no_more(path: Path) -> None:
    """A package's __init__ is its docstring: importing it runs nothing."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    assert [type(statement) for statement in body] == [ast.Expr]
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", sorted(path for name in PACKAGES for path in (REPOSITORY / name).rglob("*.py")))
def test_every_folder_with_modules_is_a_package(path: Path) -> None:
    """No module stands in a folder without an __init__, except migrations, which alembic loads by their path."""
    assert (path.parent / "__init__.py").is_file() or "migrations" in path.parts


@pytest.mark.parametrize("path", DATA)
def test_data_is_part_of_its_package(path: str) -> None:
    """A file that the program reads is found through its package, and no rule keeps it out of the wheel.

    Hatchling takes every file of a package that .gitignore does not name.
    """
    package, *parts = path.split("/")
    assert resources.files(package).joinpath(*parts).is_file()
    ignored = [rule.rstrip("/") for rule in (REPOSITORY / ".gitignore").read_text(encoding="utf-8").split()]
    assert not [rule for rule in ignored for part in path.split("/") if fnmatch(part, rule)]


def test_every_data_file_is_known() -> None:
    """Templates, static files and texts that were added to a package stand in this test's list."""
    suffixes = (".html", ".css", ".svg", ".js", ".mjs", ".json", ".txt")
    found = [path for name in PACKAGES for path in (REPOSITORY / name).rglob("*") if path.suffix in suffixes]
    assert {str(path.relative_to(REPOSITORY)) for path in found} <= set(DATA)


@pytest.mark.parametrize("extra", ["", "dev"])
def test_every_dependency_is_pinned(extra: str) -> None:
    """constraints.txt has an exact version of whatever pyproject.toml names, and it meets the range given there."""
    project = PYPROJECT["project"]
    wanted = project["optional-dependencies"][extra] if extra else project["dependencies"]
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    pinned = {normalised(name): version for name, version in pins.items()}
    for requirement in wanted:
        match = re.match(r"([A-Za-z0-9_.-]+?)(?:\[.*\])?(?:>=(.+))?$", requirement)
        assert match is not None, requirement
        assert normalised(match[1]) in pinned, requirement
        if match[2]:
            assert release(pinned[normalised(match[1])]) >= release(match[2]), requirement


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def release(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def test_the_command_is_installed() -> None:
    """`wattfront` starts the command line."""
    assert PYPROJECT["project"]["scripts"] == {"wattfront": "api.cli:main"}
