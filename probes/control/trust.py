"""What may be believed of a folder and its files: root must not act on what others could have planted.

Knows owners, modes and kinds of files; nothing of what is in them. Access lists are as good as their mask, which Linux
shows as the group's mode.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def distrust(folder: Path) -> str | None:
    """Return why root must not believe what is in a folder, with the remedy; None where it may, or is not root.

    The folder, and every folder above it, must be root's and for root alone to write to; above it, a sticky one such
    as /tmp will do, where nobody can replace what is root's. Links on the way are judged, and so is where they lead.
    What is not there yet is passed over. Raises OSError where something cannot be looked at.
    """
    if os.geteuid() != 0:
        return None
    ends = (folder.absolute(), Path(os.path.realpath(folder)))
    for path in dict.fromkeys(path for end in ends for path in (end, *end.parents)):
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        is_open = not stat.S_ISLNK(found.st_mode) and bool(found.st_mode & OTHERS_WRITE)
        if is_open and (path in ends or not found.st_mode & stat.S_ISVTX):
            return f"others than root may write to {path}; `chmod go-w {path}`"
        if found.st_uid != 0:
            return f"{path} belongs to user {found.st_uid}; `chown -h root {path}`"
    return None


def read_regular(path: Path) -> str:
    """Return the text of a regular file, without following a link or waiting for a pipe.

    Raises OSError, or ValueError where it is no such file, no text, or, for root, not root's.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no regular file")
        if os.geteuid() == 0 and found.st_uid != 0:
            raise ValueError(f"it belongs to user {found.st_uid}, not to root")
        with open(descriptor, closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)
