"""`wattfront import` and `wattfront imports`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from api.stores import Stores
from tests.api.conftest import Main
from tests.tuner.foreign.test_guidellm import benchmark, report
from tests.tuner.foreign.test_loadgen import SERVER


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A report of two rates, and LoadGen's summary."""
    benchmarks, summary = tmp_path / "benchmarks.json", tmp_path / "mlperf_log_summary.txt"
    rates = [benchmark({"type_": "constant", "rate": rate}) for rate in (2.0, 4.0)]
    benchmarks.write_text(json.dumps(report(*rates)))
    summary.write_text(SERVER)
    return benchmarks, summary


def test_files_are_imported_and_printed(main_with: Main, stores: Stores, files: tuple[Path, Path]) -> None:
    """Each file is kept and printed with its label, its figures and its notes; a dash is what it does not say."""
    ended = main_with("import", *files)
    assert (ended.code, ended.err) == (0, "")
    assert "import 1: benchmarks.json, 2 results; imported from guidellm, not metered: no energy" in ended.out
    assert "import 2: mlperf_log_summary.txt, 1 result; imported from MLPerf LoadGen, not metered: no" in ended.out
    (line,) = [line for line in ended.out.splitlines() if "constant, 4/s" in line]
    assert [cell.strip() for cell in line.split("│")[1:-1]] == [
        "2", "tiny/llama", "constant, 4/s", "58", "1", "-", "103", "113", "-", "-",
    ]  # fmt: skip
    assert "  LoadGen says INVALID: early stopping not satisfied" in ended.out.splitlines()
    assert [one.num_results for one in stores.imports.list(limit=9)] == [1, 2]
    assert "benchmarks.json, 2 results, imported before; imported" in main_with("import", files[0]).out
    assert [entry.action for entry in stores.audit.list(limit=9)] == ["import.create", "import.create"]


def test_a_bad_file_keeps_the_others_out(main_with: Main, stores: Stores, files: tuple[Path, Path]) -> None:
    """With one file that cannot be read nothing is kept: the command ends with code 2 and names file and remedy."""
    files[1].write_text("nothing")
    ended = main_with("import", *files)
    assert (ended.code, stores.imports.list(limit=9)) == (2, [])
    assert ended.complaint.startswith(
        "mlperf_log_summary.txt: format is \"text that begins with 'nothing'\": it is not known; known are vLLM"
    )


def test_imports_are_listed_shown_and_deleted(main_with: Main, files: tuple[Path, Path]) -> None:
    """`imports` lists files, newest first, `--json` has their results, `show` prints and `delete` removes one."""
    assert "import a result file with: wattfront import FILE" in main_with("imports").out
    main_with("import", *files)
    listed = main_with("imports").out.splitlines()
    assert [line.split()[0] for line in listed] == ["2", "1"]
    assert listed[1].endswith("guidellm             2 results    benchmarks.json")
    items = json.loads(main_with("imports", "--json").out)["items"]
    assert [(one["id"], one["tool"], len(one["results"])) for one in items] == [(2, "loadgen", 1), (1, "guidellm", 2)]
    assert "constant, 2/s" in main_with("imports", "show", "1").out
    assert main_with("imports", "delete", "1").out == "deleted: import 1, benchmarks.json\n"
    gone = main_with("imports", "delete", "1")
    assert (gone.code, gone.complaint) == (
        2, "there is no import 1; `wattfront imports` and GET /v1/imports list them",
    )  # fmt: skip
