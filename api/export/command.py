"""Shell commands to be copied: words quoted, one flag a line, with comments above. Knows nothing of any engine."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from api.export.recipe import one_line
from engine.servers.flags import Flag


def comments(lines: Sequence[str]) -> str:
    """Return lines as comments, each of them in one line whatever is in it."""
    return "".join(f"# {one_line(line)}".rstrip() + "\n" for line in lines)


def command(words: Sequence[str], flags: Sequence[Flag]) -> str:
    """Return a command with a flag a line, as sh reads it."""
    shown = [" ".join(shlex.quote(str(word)) for word in flag) for flag in flags]
    return " \\\n  ".join([shlex.join(words), *shown]) + "\n"


def script(remarks: Sequence[str], body: str, *, notes: Sequence[str] = ()) -> str:
    """Return a script: what it is, what must be known, and the command."""
    return "#!/bin/sh\n" + comments(remarks) + comments(notes) + body
