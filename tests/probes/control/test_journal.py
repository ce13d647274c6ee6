"""What was found, on disk."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.control.journal import Damaged, Entry, Holder, Journal, State
from probes.errors import DeviceInUse, InvalidSetting, Uncontrolled
from probes.identity import ProcessIdentity
from probes.settings import DEVICE_KNOBS

UUID = "GPU-1"
#: The file system calls of one write that can be cut short, in order.
STEPS = ("mkstemp", "fchmod", "fsync", "publish", "open", "fsync of the folder")


class Crash(BaseException):
    """The process dies here."""


def make_entry(**changes: Any) -> Entry:
    entry = Entry(
        device_uuid=UUID,
        boot_id="boot",
        energy_mj=5_000_000_000,
        holder=Holder(process=ProcessIdentity(pid=7, started="50", boot_id="boot"), label="job a"),
        found={"power_cap_w": {"limit_mw": 500_000}, "sm_clock_cap_mhz": {}},
        written={"power_cap_w": 400},
        since=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )
    return replace(entry, **changes)


def visible_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@given(
    found=st.dictionaries(
        st.sampled_from(DEVICE_KNOBS), st.none() | st.dictionaries(st.text(max_size=9), st.integers(), max_size=3)
    ),
    written=st.dictionaries(st.sampled_from(DEVICE_KNOBS), st.integers()),
    energy_mj=st.none() | st.integers(min_value=0, max_value=2**64),
    label=st.text(max_size=20),
    state=st.sampled_from(State),
)
def test_an_entry_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    found: dict[str, dict[str, int] | None],
    written: dict[str, int],
    energy_mj: int | None,
    label: str,
    state: State,
) -> None:
    """Whatever was found comes back unchanged, numbers beyond 2**32 and any label included."""
    journal = Journal(tmp_path_factory.mktemp("journal"))
    process = ProcessIdentity(pid=7, started="50", boot_id="boot", pid_namespace=4_026_531_836)
    entry = make_entry(
        found=found,
        written=written,
        energy_mj=energy_mj,
        holder=Holder(process=process, label=label),
        state=state,
    )
    journal.write(entry)
    assert entry == journal.entry(UUID)
    assert (entry,) == journal.entries()


def test_anyone_may_read_an_entry(tmp_path: Path) -> None:
    """The file has mode 0644 whatever the umask, and its folder is made."""
    former = os.umask(0o077)
    try:
        Journal(tmp_path / "a" / "b").write(make_entry())
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "a" / "b" / "GPU-1.json").stat().st_mode) == 0o644


def test_without_a_folder_there_are_no_entries(tmp_path: Path) -> None:
    """A journal that was never written is empty, and removing from it does nothing."""
    journal = Journal(tmp_path / "none")
    assert journal.entries() == ()
    assert journal.entry(UUID) is None
    journal.remove(UUID)
    assert not journal.folder.exists()


def test_a_removed_entry_is_gone(tmp_path: Path) -> None:
    """Removing leaves the others, and can be done twice."""
    journal = Journal(tmp_path)
    journal.write(make_entry())
    journal.write(make_entry(device_uuid="GPU-2"))
    journal.remove(UUID)
    journal.remove(UUID)
    assert [entry.device_uuid for entry in journal.entries()] == ["GPU-2"]


def test_a_device_is_claimed_once(tmp_path: Path) -> None:
    """Of two processes that begin at once, the second is refused, and the first one's entry stands."""
    journal = Journal(tmp_path)
    journal.claim(make_entry())
    with pytest.raises(DeviceInUse, match="GPU-1: another process has just begun"):
        journal.claim(make_entry(written={}))
    assert make_entry() == journal.entry(UUID)
    assert visible_files(tmp_path) == ["GPU-1.json"]


@pytest.mark.parametrize("uuid", ["", "../etc/passwd", "GPU/1", ".hidden", "GPU-1.json", "GPU-1\n"])
def test_a_uuid_names_no_other_file(tmp_path: Path, uuid: str) -> None:
    """What is no UUID never becomes a path."""
    with pytest.raises(InvalidSetting, match="no device's UUID"):
        Journal(tmp_path).entry(uuid)


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    """Return a good entry's text with one thing wrong."""
    document = {
        "format": 1,
        "device_uuid": UUID,
        "boot_id": "boot",
        "energy_mj": None,
        "holder": {"process": {"pid": 7, "started": "50", "boot_id": "boot"}, "label": "job a"},
        "found": {"power_cap_w": {"limit_mw": 500_000}},
        "written": {},
        "state": "applied",
        "detail": "",
        "since": "2026-01-02T03:04:05+00:00",
    }
    change(document)
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "\x00" * 200,
        changed(lambda document: document.pop("found")),
        changed(lambda document: document.update(format=2)),
        changed(lambda document: document.update(device_uuid="GPU-2")),
        changed(lambda document: document.update(state="weary")),
        changed(lambda document: document.update(found={"power_cap_w": {"limit_mw": "500"}})),
        changed(lambda document: document.update(found={"power_cap_w": {"limit_mw": True}})),
        changed(lambda document: document.update(found={"fan_speed": {}})),
        changed(lambda document: document.update(boot_id=None)),
        changed(lambda document: document.update(since="2026-01-02T03:04:05")),
    ],
)
def test_a_damaged_entry_is_told_apart(tmp_path: Path, text: str) -> None:
    """Whatever is wrong with a file, its device, path and reason are known, and the other entries are read."""
    (tmp_path / "GPU-1.json").write_text(text)
    journal = Journal(tmp_path)
    journal.write(make_entry(device_uuid="GPU-2"))
    damaged, good = journal.entries()
    assert isinstance(damaged, Damaged)
    assert (UUID, tmp_path / "GPU-1.json") == (damaged.device_uuid, damaged.path)
    assert damaged.reason
    assert make_entry(device_uuid="GPU-2") == good


@given(length=st.integers(min_value=0))
def test_no_beginning_of_an_entry_passes_for_one(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    """A file cut short anywhere is damaged, never another entry."""
    journal = Journal(tmp_path_factory.mktemp("journal"))
    journal.write(make_entry())
    path = journal.folder / "GPU-1.json"
    text = path.read_text()
    path.write_text(text[: length % (len(text) - 1)])  # without its last newline it is whole
    assert isinstance(journal.entry(UUID), Damaged)


def cut_short(monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException) -> None:
    """Let one step of a write raise."""
    fsyncs: list[int] = []
    real_fsync, real_open = os.fsync, os.open

    def fail(*_arguments: object, **_options: object) -> None:
        raise error

    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        fsyncs.append(descriptor)
        if is_folder == (step == "fsync of the folder"):
            raise error
        real_fsync(descriptor)

    def open_(path: Any, flags: int, *arguments: int, **options: Any) -> int:
        if flags & os.O_DIRECTORY:
            raise error
        return real_open(path, flags, *arguments, **options)

    if step == "publish":
        monkeypatch.setattr(os, "replace", fail)
        monkeypatch.setattr(os, "link", fail)
    elif step.startswith("fsync"):
        monkeypatch.setattr(os, "fsync", fsync)
    elif step == "open":
        monkeypatch.setattr(os, "open", open_)
    elif step == "mkstemp":
        monkeypatch.setattr("tempfile.mkstemp", fail)
    else:
        monkeypatch.setattr(os, step, fail)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_a_write_that_is_cut_short_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, is_first: bool
) -> None:
    """Dying at any step leaves the former entry or the new one whole, and no other visible file."""
    journal = Journal(tmp_path)
    new = make_entry(written={"power_cap_w": 300})
    if not is_first:
        journal.write(make_entry())
    with monkeypatch.context() as patch:
        cut_short(patch, step, Crash())
        with pytest.raises(Crash):
            (journal.claim if is_first else journal.write)(new)

    former = None if is_first else make_entry()
    is_published = step in ("open", "fsync of the folder")
    assert (new if is_published else former) == journal.entry(UUID)
    assert set(visible_files(tmp_path)) <= {"GPU-1.json"}


@pytest.mark.parametrize("step", STEPS)
def test_a_journal_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A full or read-only disk gives Uncontrolled with the folder, the cause and what to do."""
    cut_short(monkeypatch, step, OSError(28, "No space left on device"))
    with pytest.raises(Uncontrolled, match=r"journal of device settings in .* cannot be written \(No space left"):
        Journal(tmp_path).write(make_entry())


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    """Where something else has the folder's name, reading and writing say so."""
    (tmp_path / "journal").write_text("")
    journal = Journal(tmp_path / "journal")
    with pytest.raises(Uncontrolled, match="cannot be written"):
        journal.claim(make_entry())
    with pytest.raises(Uncontrolled, match="cannot be read"):
        journal.entries()


def test_an_entry_that_may_not_be_read_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing permission is an error of its own: resetting a device for it would be wrong."""
    journal = Journal(tmp_path)

    def refuse(*_arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(Uncontrolled, match="cannot be read"):
        journal.entry(UUID)


def test_an_entry_that_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that has become read-only is told, and the entry stands."""
    journal = Journal(tmp_path)
    journal.write(make_entry())

    def refuse(_path: Path, **_options: bool) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(Uncontrolled, match="Read-only file system"):
        journal.remove(UUID)
    assert make_entry() == journal.entry(UUID)


def test_what_is_no_regular_file_is_a_damaged_entry(tmp_path: Path) -> None:
    """Neither a pipe nor a link in an entry's place is read, nor waited for."""
    Journal(tmp_path).write(make_entry(device_uuid="GPU-3"))
    os.mkfifo(tmp_path / "GPU-1.json")
    (tmp_path / "GPU-2.json").symlink_to(tmp_path / "GPU-3.json")
    kinds = [(entry.device_uuid, type(entry)) for entry in Journal(tmp_path).entries()]
    assert kinds == [("GPU-1", Damaged), ("GPU-2", Damaged), ("GPU-3", Entry)]


def test_root_believes_no_folder_that_others_may_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted entries would let anybody set devices with root's rights: nothing is read, written or removed."""
    folder = tmp_path / "state"
    Journal(folder).write(make_entry())
    folder.chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    journal = Journal(folder)
    uses: list[Callable[[], object]] = [
        journal.entries,
        lambda: journal.entry(UUID),
        lambda: journal.write(make_entry(energy_mj=None)),
        lambda: journal.claim(make_entry(device_uuid="GPU-2")),
        lambda: journal.remove(UUID),
    ]
    for use in uses:
        with pytest.raises(Uncontrolled, match=f"write to {folder}; `chmod go-w {folder}`"):
            use()
    assert visible_files(folder) == ["GPU-1.json"]


def test_a_folder_is_made_for_its_owner_alone_to_write(tmp_path: Path) -> None:
    """Whatever the umask, root can believe the folder that it made."""
    former = os.umask(0)
    try:
        Journal(tmp_path / "state").write(make_entry())
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o755


def test_an_entry_without_pid_namespace_is_read(tmp_path: Path) -> None:
    """An entry of a version that knew no namespaces is whole; a number that is none is damage."""
    (tmp_path / "GPU-1.json").write_text(changed(lambda document: None))
    entry = Journal(tmp_path).entry(UUID)
    assert isinstance(entry, Entry)
    assert entry.holder.process.pid_namespace == 0
    wrong = changed(lambda document: document["holder"]["process"].update(pid_namespace="host"))
    (tmp_path / "GPU-1.json").write_text(wrong)
    assert isinstance(Journal(tmp_path).entry(UUID), Damaged)


def test_left_over_temporary_files_are_no_entries(tmp_path: Path) -> None:
    """What a crash left behind under a hidden name is not read."""
    (tmp_path / ".x.json").write_text("{}")
    (tmp_path / ".abc.tmp").write_text("{")
    (tmp_path / "notes.txt").write_text("")
    assert Journal(tmp_path).entries() == ()


def test_a_time_without_a_zone_is_refused() -> None:
    """Records are in aware UTC."""
    with pytest.raises(ValueError, match="without a time zone"):
        make_entry(since=datetime(2026, 1, 2))
