"""Imported results, on both databases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from db.database import Database
from db.errors import ImportNotFound, TooManyImports
from db.imports import Import, ImportStore
from tests.db.factories import START, Clock
from tuner.foreign.result import ForeignLatency, ForeignResult, Tool


@pytest.fixture
def imports(database: Database, clock: Clock) -> ImportStore:
    return ImportStore(database, clock.now)


def make_result(**changes: Any) -> ForeignResult:
    result = ForeignResult(
        tool=Tool.GUIDELLM,
        tool_version="0.8.1",
        model="tiny/llama",
        measured_at=START,
        load="constant",
        asked_rate_per_s=2.0,
        num_completed=58,
        output_tok_s=310.5,
        ttft_ms=ForeignLatency(mean=104.0, p50=101.0, p99=149.0),
        notes=("one cut off",),
        sha256="ab" * 32,
    )
    return replace(result, **changes)


def added(imports: ImportStore, name: str, digits: str, num_results: int = 1) -> Import:
    results = [make_result(sha256=digits * 32, asked_rate_per_s=float(i + 1)) for i in range(num_results)]
    return imports.add(name, results, num_bytes=10)[0]


def test_results_come_back_as_they_were(imports: ImportStore) -> None:
    """Every field of every result of a file is stored, and what the tool did not say is None again, not 0."""
    results = (make_result(), make_result(asked_rate_per_s=4.0, ttft_ms=None, num_completed=None))
    stored, is_new = imports.add("benchmarks.json", results, num_bytes=1234, created_by="ops")
    assert is_new
    assert stored == imports.get(stored.id)
    assert (stored.name, stored.tool, stored.num_results, stored.num_bytes, stored.created_by) == (
        "benchmarks.json", Tool.GUIDELLM, 2, 1234, "ops",
    )  # fmt: skip
    assert results == imports.results(stored.id)


def test_the_same_file_again_changes_nothing(imports: ImportStore) -> None:
    """A content is kept once, whatever its name is the second time."""
    first, _ = imports.add("a.json", [make_result()], num_bytes=10)
    assert (first, False) == imports.add("b.json", [make_result()], num_bytes=10)
    assert [first] == imports.list(limit=9)


def test_lists_go_on_where_they_ended(imports: ImportStore) -> None:
    """The newest files come first, and `before` goes on behind the last one seen."""
    ids = [added(imports, name, digits).id for name, digits in (("one", "aa"), ("two", "bb"), ("three", "cc"))]
    assert [one.name for one in imports.list(limit=2)] == ["three", "two"]
    assert [one.name for one in imports.list(limit=2, before=ids[1])] == ["one"]


def test_the_latest_results_are_of_the_newest_files(imports: ImportStore) -> None:
    """Results are counted over all files, and the newest file's come first, in its order."""
    added(imports, "old", "aa", num_results=2)
    added(imports, "new", "bb", num_results=3)
    found = imports.latest_results(limit=4)
    assert [(one.name, result.asked_rate_per_s) for one, result in found] == [
        ("new", 1.0), ("new", 2.0), ("new", 3.0), ("old", 1.0),
    ]  # fmt: skip
    assert imports.count_results() == 5


def test_a_deleted_file_is_gone_with_its_results(imports: ImportStore) -> None:
    """What is deleted is told once more, then neither found nor counted, and can be imported again."""
    stored = added(imports, "one", "aa")
    assert stored == imports.delete(stored.id)
    for ask in (imports.get, imports.results, imports.delete):
        with pytest.raises(ImportNotFound, match=f"there is no import {stored.id}; `wattfront imports`"):
            ask(stored.id)
    assert imports.count_results() == 0
    assert imports.add("one", [make_result(sha256="aa" * 32)], num_bytes=10)[1]


def test_no_more_than_can_be_kept_are_taken(imports: ImportStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound a new file is refused with the remedy, and one that is there is still known."""
    monkeypatch.setattr("db.imports.MAX_IMPORTS", 1)
    added(imports, "one", "aa")
    with pytest.raises(TooManyImports, match="1 imported result files are kept, and more are not taken; delete some"):
        added(imports, "two", "bb")
    assert not imports.add("one", [make_result(sha256="aa" * 32)], num_bytes=10)[1]
