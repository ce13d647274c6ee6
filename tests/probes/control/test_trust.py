"""What root may believe of a folder and its files."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from threading import Thread

import pytest

from probes.control.trust import distrust, read_regular

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="folders of several owners take root")


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_root_distrusts_a_folder_that_others_may_write_to(tmp_path: Path, mode: int) -> None:
    """Whoever may write there could plant entries, sticky or not; the folder and the remedy are named."""
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(mode)
    assert distrust(folder) == f"others than root may write to {folder}; `chmod go-w {folder}`"


@pytest.mark.usefixtures("as_root")
def test_root_distrusts_a_folder_in_one_that_others_may_write_to(tmp_path: Path) -> None:
    """Whoever may write to a parent could put another folder in its place; one not made yet is judged likewise."""
    parent = tmp_path / "open"
    parent.mkdir()
    parent.chmod(0o777)
    assert f"write to {parent};" in (distrust(parent / "state" / "deep") or "")


@needs_root
def test_root_trusts_its_own_folders(tmp_path: Path) -> None:
    """A private folder of root's under a sticky /tmp can be believed, made or not."""
    assert distrust(tmp_path) is None
    assert distrust(tmp_path / "none") is None


@needs_root
def test_root_distrusts_a_folder_of_another_user(tmp_path: Path) -> None:
    """The owner could put anything there."""
    folder = tmp_path / "state"
    folder.mkdir()
    os.chown(folder, 1000, -1)
    assert f"{folder} belongs to user 1000" in (distrust(folder) or "")


@needs_root
def test_root_distrusts_a_link_of_another_user(tmp_path: Path) -> None:
    """A link could lead elsewhere at any time, even where it now leads to a folder of root's."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert distrust(link) is None
    os.chown(link, 1000, -1, follow_symlinks=False)
    assert f"{link} belongs to user 1000" in (distrust(link) or "")


@pytest.mark.usefixtures("as_root")
def test_where_a_link_leads_is_judged_too(tmp_path: Path) -> None:
    """A link of root's to a folder that others may write to is no better than that folder."""
    opened = tmp_path / "open"
    opened.mkdir()
    opened.chmod(0o777)
    (tmp_path / "link").symlink_to(opened)
    assert f"write to {opened};" in (distrust(tmp_path / "link") or "")


def test_users_trust_what_they_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user has no rights that somebody could borrow."""
    tmp_path.chmod(0o777)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert distrust(tmp_path) is None


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    """Its text comes back whole."""
    (tmp_path / "a").write_text("text")
    assert read_regular(tmp_path / "a") == "text"


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, make_socket, lambda path: path.symlink_to("/etc/hostname")])
def test_what_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, make: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe that nobody writes to holds up nothing, and a link is not followed."""
    assert callable(make)
    monkeypatch.chdir(tmp_path)
    make(Path("a"))
    raised: list[Exception] = []

    def read() -> None:
        try:
            read_regular(Path("a"))
        except (OSError, ValueError) as error:
            raised.append(error)

    reader = Thread(target=read, daemon=True)
    reader.start()
    reader.join(timeout=30)
    assert len(raised) == 1


@needs_root
def test_root_reads_no_file_of_another_user(tmp_path: Path) -> None:
    """A file that somebody else owns could have been changed by them."""
    (tmp_path / "a").write_text("text")
    os.chown(tmp_path / "a", 1000, -1)
    with pytest.raises(ValueError, match="it belongs to user 1000"):
        read_regular(tmp_path / "a")
