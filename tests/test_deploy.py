"""What stands in deploy/ fits the program: its commands, its variables, its metrics."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from api.cli import cli
from api.metrics import Metrics
from api.operator_file import load_operator
from api.settings import Settings
from api.stores import Stores, open_stores

DEPLOY = Path(__file__).parent.parent / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted(DEPLOY.glob("*.service"))
UNPRIVILEGED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    opened = open_stores(f"sqlite:///{tmp_path}/wattfront.db")
    yield opened
    opened.database.dispose()


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def pod_specs() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in MANIFESTS:
        for document in documents(path):
            if document["kind"] == "Deployment":
                yield document["metadata"]["name"], document["spec"]["template"]["spec"]


def command_lines() -> list[list[str]]:
    """Every call of `wattfront` that deploy/ makes, without the program's name."""
    compose = documents(DEPLOY / "compose.yaml")[0]["services"]
    lines = [service["command"] for service in compose.values() if "command" in service]
    lines += [container["args"] for _, spec in pod_specs() for container in spec["containers"]]
    for unit in UNITS:
        (start,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(encoding="utf-8"), flags=re.MULTILINE)
        lines.append(shlex.split(start)[1:])
    return lines


@pytest.mark.parametrize("line", command_lines(), ids=" ".join)
def test_every_command_that_is_started_exists(line: list[str]) -> None:
    """Containers, pods and units call commands that there are, with options that those take."""
    options, (name, *arguments) = line[: line[0].startswith("-")], line[line[0].startswith("-") :]
    cli.make_context("wattfront", [*options, name, "--help"], resilient_parsing=True)
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, f"there is no command {name}"
    command.make_parser(click.Context(command)).parse_args(list(arguments))


def test_every_variable_that_is_set_is_a_setting() -> None:
    """No file sets a WATTFRONT_* variable that nothing reads."""
    known = {f"WATTFRONT_{name.upper()}" for name in Settings.model_fields}
    for path in (path for path in DEPLOY.rglob("*") if path.is_file()):
        set_here = set(re.findall(r"\bWATTFRONT_[A-Z_]+\b", path.read_text(encoding="utf-8")))
        assert set_here <= known, path.name


def test_no_pod_has_a_privilege() -> None:
    """Every container runs as a user, without capabilities, on a file system that it cannot write."""
    specs = dict(pod_specs())
    assert {"wattfront-server", "wattfront-worker"} == set(specs)
    for spec in specs.values():
        assert spec["securityContext"]["runAsNonRoot"]
        assert not spec["automountServiceAccountToken"]
        for container in spec["containers"]:
            assert container["securityContext"] == UNPRIVILEGED
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted == {volume["name"] for volume in spec["volumes"]}


def test_the_kustomization_names_every_manifest() -> None:
    """`kubectl apply -k` leaves no file out."""
    (kustomization,) = documents(DEPLOY / "kubernetes" / "kustomization.yaml")
    assert {path.name for path in MANIFESTS} - {"kustomization.yaml"} == set(kustomization["resources"])


def test_the_example_of_an_operators_file_is_one() -> None:
    """The example loads, with and without what is commented out in it."""
    path = DEPLOY / "operator.example.yaml"
    assert load_operator(path).devices == {}
    (manifest,) = documents(DEPLOY / "kubernetes" / "operator.yaml")
    assert yaml.safe_load(manifest["data"]["operator.yaml"]) == {"devices": {}, "models": {}, "targets": {}}


def test_the_commented_examples_of_an_operators_file_are_right(tmp_path: Path) -> None:
    """Whoever removes the marks in front of the examples has a file that loads."""
    text = (DEPLOY / "operator.example.yaml").read_text(encoding="utf-8")
    whole = re.sub(r"^(\w+): \{\}$", r"\1:", text, flags=re.MULTILINE)
    path = tmp_path / "operator.yaml"
    path.write_text(re.sub(r"^#(  \S)", r"\1", whole, flags=re.MULTILINE), encoding="utf-8")
    operator = load_operator(path)
    assert ({"rack3-gpu0", "rack3-cpu"}, {"chat-8b"}, {"ops"}) == tuple(
        set(names) for names in (operator.devices, operator.models, operator.targets)
    )


def test_the_image_holds_every_package() -> None:
    """The Dockerfile copies every package that the wheel is made of."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    copied = set(re.findall(r"^COPY (\w+) \1$", text, flags=re.MULTILINE))
    assert {"tuner", "probes", "engine", "db", "api"} == copied


def test_dashboard_and_alerts_ask_for_metrics_that_there_are(stores: Stores) -> None:
    """Every metric that a panel or an alert names is one that the service tells."""
    metrics = Metrics(stores, lambda: 0)
    metrics.durations.labels("GET", "/", "200").observe(0.1)
    told = set(re.findall(r"^(\w+)[{ ]", metrics.text().decode(), flags=re.MULTILINE))
    panels = json.loads((DEPLOY / "grafana" / "wattfront.json").read_text(encoding="utf-8"))["panels"]
    (alerts,) = documents(DEPLOY / "prometheus" / "alerts.yaml")
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    asked += [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    named = {name for expression in asked for name in re.findall(r"\b(?:wattfront|process)_\w+", expression)}
    assert named <= told | {"wattfront_database_errors_total"}, named - told
    assert len(named) >= 10
