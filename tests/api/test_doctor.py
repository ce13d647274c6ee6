"""What the doctor finds."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from api.console import report
from api.doctor import Finding, can_tune, examine
from api.settings import Settings
from api.stores import Stores, open_stores
from probes.control.guard import Guard
from probes.control.guard_config import DeviceRules, GuardConfig
from probes.control.journal import Entry, Holder, Journal, State
from probes.detect import Host
from probes.identity import ProcessIdentity, boot_id
from probes.settings import DEVICE_KNOBS
from probes.simulated.accelerators import ACCELERATORS
from tests.api.commands import LONGEST_S
from tests.api.conftest import Main
from tests.db.factories import START, make_request
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_nvml import FIRST_UUID, FakeGpu, FakeNvml, install


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    """Those of the other tests, with control in folders of the test: a real guard may run on this machine."""
    return settings.model_copy(update={"state_dir": tmp_path / "state", "guard_socket": tmp_path / "run" / "g.sock"})


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[GuardConfig]:
    """A guard that lets the SM clock of a fake GPU be capped up to 1500 MHz."""
    install(monkeypatch, FakeNvml(FakeGpu(clock=FakeClock())))
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="wattfront-") as folder:  # a socket's path has 107 bytes
        rules = {FIRST_UUID: DeviceRules(ranges={"sm_clock_cap_mhz": (0, 1500)})}
        config = GuardConfig(socket=Path(folder) / "g.sock", state_dir=Path(folder) / "state", devices=rules)
        guard, listens = Guard(config, Host()), Event()
        thread = Thread(target=guard.serve, args=(listens.set,))
        thread.start()
        assert listens.wait(LONGEST_S)
        yield config
        guard.stop()
        thread.join(LONGEST_S)
        assert not thread.is_alive()


def of_control(settings: Settings, *names: str) -> list[Finding]:
    """Return the findings of these names under control, in the order asked."""
    found = {finding.name: finding for finding in of_section(examine(settings), "control")}
    return [found[name] for name in names]


def of_section(findings: list[Finding], section: str) -> list[Finding]:
    return [finding for finding in findings if finding.section == section]


def test_every_section_is_there(settings: Settings) -> None:
    """The report covers the machine from its cores to the database, and what can be simulated on it, in this order."""
    findings = examine(settings)
    sections = list(dict.fromkeys(finding.section for finding in findings))
    assert sections == [
        "machine", "versions", "devices", "power sources", "control", "simulated devices", "models", "database",
    ]  # fmt: skip
    assert all(finding.name and finding.text for finding in findings)


def test_what_can_be_simulated_is_told_on_any_machine(settings: Settings) -> None:
    """Every accelerator that there is a model of is listed as a job would name it, as a fact and not as a need."""
    told = next(finding for finding in examine(settings) if finding.section == "simulated devices")
    assert (told.is_good, told.is_needed) == (None, False)
    assert all(f"simulated:{key}" in told.text for key in ACCELERATORS)


def test_it_creates_nothing(settings: Settings, tmp_path: Path) -> None:
    """Looking makes neither a database nor a cache nor their folders."""
    found = of_section(examine(settings), "database")
    assert [finding.text for finding in found] == ["not there yet; made on first use"]
    assert list(tmp_path.iterdir()) == []


def test_a_missing_compiler_is_told(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a C++ compiler the report says what that costs and what to install; tuning can run."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    (told,) = (finding for finding in of_section(examine(settings), "machine") if finding.name == "kernels")

    assert (told.is_good, told.is_needed) == (False, False)
    assert "torch computes in their place, more slowly" in told.text
    assert "install one" in told.text


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


def test_devices_are_only_observed_unless_allowed(settings: Settings) -> None:
    """Without permission the report says so and how to give it, and nobody misses a guard."""
    permission, guard = of_control(settings, "permission", "guard")
    assert permission.text.startswith("observe only")
    assert "WATTFRONT_ALLOW_DEVICE_CONTROL=true" in permission.text
    assert guard.is_good is None
    assert "none is needed while nothing may be set" in guard.text


@pytest.mark.parametrize(("uid", "instead"), [(0, "sets devices itself, as root"), (1000, "can only observe")])
def test_without_a_guard_it_says_what_is_used_instead(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, uid: int, instead: str
) -> None:
    """Where setting is allowed and no guard is there, root sets devices itself and anybody else can only observe."""
    monkeypatch.setattr("os.geteuid", lambda: uid)
    permission, guard = of_control(settings.model_copy(update={"allow_device_control": True}), "permission", "guard")
    assert permission.text.startswith("allowed by WATTFRONT_ALLOW_DEVICE_CONTROL")
    assert guard.is_good is False
    assert str(settings.guard_socket) in guard.text
    assert instead in guard.text


def test_a_guard_tells_what_it_allows(settings: Settings, guard: GuardConfig) -> None:
    """A guard that answers is told with its process, its journal, and what it lets be set on each device."""
    (found,) = of_control(settings.model_copy(update={"guard_socket": guard.socket}), "guard")
    assert found.is_good
    assert f"process {os.getpid()} answers at {guard.socket}" in found.text
    assert f"its journal in {guard.state_dir}" in found.text
    assert f"{FIRST_UUID}: sm_clock_cap_mhz 210 to 1500 (87 values)" in found.text


def test_a_socket_without_a_guard_is_told(settings: Settings) -> None:
    """A socket that a dead guard left is found out, with the remedy and what it means for jobs."""
    settings.guard_socket.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(settings.guard_socket))
    (found,) = of_control(settings, "guard")
    assert found.is_good is False
    assert "start `wattfront guard` again" in found.text
    assert "jobs that would set something are refused" in found.text


def test_each_device_tells_its_knobs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is listed with its knobs and their values; what has none says why, and that trials run all the same."""
    install(monkeypatch, FakeNvml(FakeGpu(clock=FakeClock())))
    (gpu,) = of_control(settings, f"{FIRST_UUID} NVIDIA H100 80GB HBM3")
    assert gpu.is_good
    assert gpu.text == "sm_clock_cap_mhz 210 to 1980 (119 values), power_cap_w 200 to 700 (every whole number)"
    install(monkeypatch, FakeNvml(FakeGpu(clock=FakeClock(), is_mig=True)))
    (sliced,) = of_control(settings, f"{FIRST_UUID} NVIDIA H100 80GB HBM3")
    assert sliced.is_good is False
    assert sliced.text.startswith("nothing can be set here")
    assert sliced.text.endswith("trials run at the clocks they find")


def test_knobs_are_no_power_sources(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be set is told under control alone."""
    install(monkeypatch, FakeNvml(FakeGpu(clock=FakeClock())))
    names = [finding.name for finding in of_section(examine(settings), "power sources")]
    assert names
    assert not any(name.endswith(DEVICE_KNOBS) for name in names)


def test_a_device_that_could_not_be_restored_keeps_tuning_from_running(settings: Settings) -> None:
    """A failed restore is a fault of the machine, told with device, reason and the command that mends it."""
    holder = Holder(process=ProcessIdentity(pid=7, started="50", boot_id=boot_id()), label="job a")
    Journal(settings.state_dir).claim(
        Entry(
            device_uuid="GPU-1",
            boot_id=boot_id(),
            energy_mj=None,
            holder=holder,
            found={"power_cap_w": {"limit_mw": 500_000}},
            written={"power_cap_w": 400},
            state=State.RESTORE_FAILED,
            detail="power_cap_w: not permitted",
            since=START,
        )
    )
    findings = examine(settings)
    (found,) = [finding for finding in findings if finding.name == "GPU-1"]
    assert (found.section, found.is_good, found.is_needed, can_tune(findings)) == ("control", False, True, False)
    assert "power_cap_w: not permitted" in found.text
    assert "`wattfront restore`" in found.text


def test_a_state_folder_that_cannot_be_read_is_a_fault(settings: Settings) -> None:
    """Where it cannot be known whether a device is as it was found, tuning does not run."""
    settings.state_dir.parent.mkdir(parents=True, exist_ok=True)
    settings.state_dir.write_text("no folder")
    findings = examine(settings)
    (found,) = [finding for finding in findings if (finding.section, finding.name) == ("control", "state")]
    assert (found.is_good, can_tune(findings)) == (False, False)
    assert str(settings.state_dir) in found.text
