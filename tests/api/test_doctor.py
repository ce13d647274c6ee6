"""What the doctor finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.console import report
from api.doctor import Finding, can_tune, examine
from api.settings import Settings
from api.stores import Stores, open_stores
from tests.api.conftest import Main
from tests.db.factories import make_request


def of_section(findings: list[Finding], section: str) -> list[Finding]:
    return [finding for finding in findings if finding.section == section]


def test_every_section_is_there(settings: Settings) -> None:
    """The report covers machine, versions, devices, power sources, models and database, in this order."""
    findings = examine(settings)
    sections = list(dict.fromkeys(finding.section for finding in findings))
    assert sections == ["machine", "versions", "devices", "power sources", "models", "database"]
    assert all(finding.name and finding.text for finding in findings)


def test_it_creates_nothing(settings: Settings, tmp_path: Path) -> None:
    """Looking makes neither a database nor a cache nor their folders."""
    found = of_section(examine(settings), "database")
    assert [finding.text for finding in found] == ["not there yet; made on first use"]
    assert list(tmp_path.iterdir()) == []


def test_it_leaves_a_database_as_it_is(settings: Settings) -> None:
    """A database that is there is told with its version, and keeps its jobs."""
    job = open_stores(settings.database_url).jobs.create(make_request())
    (found,) = of_section(examine(settings), "database")
    assert found.is_good
    assert found.text.startswith("schema version")
    assert [job] == open_stores(settings.database_url).jobs.list(limit=5)


def test_what_is_no_database_is_found(settings: Settings, tmp_path: Path) -> None:
    """A file that is no database keeps tuning from running, and the report says so."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "wattfront.db").write_bytes(b"not a database, but long enough to be read as one" * 20)
    findings = examine(settings)
    (found,) = of_section(findings, "database")
    assert (found.is_good, found.is_needed, can_tune(findings)) == (False, True, False)
    assert "file is not a database" in found.text


def test_each_device_tells_how_its_energy_is_known(settings: Settings) -> None:
    """Every device is listed with scope and method of its energy, or with the reason why it has none."""
    devices = of_section(examine(settings), "devices")
    assert devices
    assert all("energy of scope" in found.text or "no power reading" in found.text for found in devices)


def test_what_is_needed_and_missing_is_marked() -> None:
    """Only a need that is not met keeps tuning from running; it is marked apart from what is merely absent."""
    fact = Finding(section="a", name="system", is_good=None, text="Linux")
    absent = Finding(section="a", name="NVML", is_good=False, text="no driver")
    missing = Finding(section="b", name="power", is_good=False, text="none", is_needed=True)
    assert can_tune([fact, absent])
    assert not can_tune([fact, absent, missing])
    assert [line.plain for line in report([fact, absent, missing])] == [
        "a",
        "    system: Linux",
        " -- NVML: no driver",
        "b",
        " !! power: none",
    ]


@pytest.mark.parametrize(("is_broken", "code", "words"), [(False, 0, "tuning can run here"), (True, 1, "cannot run")])
def test_the_exit_code_says_whether_tuning_can_run(
    main_with: Main, monkeypatch: pytest.MonkeyPatch, is_broken: bool, code: int, words: str
) -> None:
    """`wattfront doctor` ends with 0 on a machine that can tune, and with 1 and the fault marked on one that cannot."""
    if is_broken:
        monkeypatch.setenv("WATTFRONT_DATABASE_URL", "mysql://host/x")
    ended = main_with("doctor")
    assert (ended.code, ended.err) == (code, "")
    assert words in ended.out.splitlines()[-1]
    assert (" !! mysql" in ended.out) == is_broken


def test_stores_are_not_needed(stores: Stores, main_with: Main) -> None:
    """The report can be had while a worker has the database open."""
    assert main_with("doctor").code == 0
    assert stores.jobs.list(limit=1) == []
