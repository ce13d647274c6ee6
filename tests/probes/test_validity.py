"""Reasons and notes are explained where a reader looks for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import probes
from probes.validity import Note, Reason, all_codes, with_value

DOCUMENT = Path(__file__).parents[2] / "docs" / "measuring.md"


@pytest.mark.parametrize("code", sorted(all_codes()))
def test_every_code_is_explained(code: str) -> None:
    """Each reason, note and kind of error has a row of its own in docs/measuring.md."""
    assert re.search(rf"^\| `{code}` \|", DOCUMENT.read_text(), flags=re.MULTILINE)


def test_no_explained_code_is_made_up() -> None:
    """Each row in the tables of codes is one that the package can emit."""
    _, tables = DOCUMENT.read_text().split("\n## Reasons against a reading\n")
    explained = re.findall(r"^\| `([a-z_]+)` \|", tables, flags=re.MULTILINE)
    assert all_codes() == set(explained)


def test_every_code_is_emitted_somewhere() -> None:
    """No reason or note is defined without being used."""
    sources = "".join(path.read_text() for path in Path(probes.__path__[0]).rglob("*.py"))
    unused = [
        f"{type(code).__name__}.{code.name}"
        for code in (*Reason, *Note)
        if f"{type(code).__name__}.{code.name}" not in sources
    ]
    assert unused == []


def test_a_note_carries_its_figure() -> None:
    """A share is written after the code, so that the code can still be split off."""
    assert with_value(Note.FOREIGN_CPU_LOAD, 0.314) == "foreign_cpu_load:0.31"
