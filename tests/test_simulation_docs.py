"""docs/simulation.md lists what can be simulated: held to the tables of accelerators and models."""

from __future__ import annotations

import re

import pytest

from engine.simulated import catalogue
from probes.simulated.accelerators import ACCELERATORS
from probes.simulated.names import parse_name
from tests.db.factories import REPOSITORY

DOCUMENT = (REPOSITORY / "docs" / "simulation.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("key", ACCELERATORS)
def test_every_accelerator_has_a_row_with_its_default_number_of_gpus(key: str) -> None:
    """A row of the table of devices names the accelerator and as many GPUs as its name alone opens."""
    row = next(line for line in DOCUMENT.splitlines() if line.startswith("|") and f"`simulated:{key}`" in line)
    assert parse_name(f"simulated:{key}").num_gpus == int(row.split("|")[2])


@pytest.mark.parametrize("key", ACCELERATORS)
def test_only_announced_accelerators_are_called_preliminary(key: str) -> None:
    """A row calls its accelerator preliminary exactly when nobody outside its maker has measured one."""
    row = next(line for line in DOCUMENT.splitlines() if line.startswith("|") and f"`simulated:{key}`" in line)
    assert ACCELERATORS[key].is_preliminary == ("preliminary" in row)


def test_the_models_are_those_of_the_catalogue() -> None:
    """The list of models has every name of the catalogue and no other."""
    listed = re.search(r"^Models: (.+?); the Hugging", DOCUMENT, flags=re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert sorted(catalogue.names()) == sorted(re.findall(r"`([^`]+)`", listed[1]))
