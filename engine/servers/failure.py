"""What a server that ended, or never got ready, died of: read out of its last log lines.

The last line that is known wins, since what a server says last before it goes is nearest to the cause; vLLM and SGLang
print a traceback of each process, the cause's first and "initialization failed" after it. Knows nothing of processes.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from engine.errors import (
    EngineDied,
    EngineError,
    NotEnoughMemory,
    PackageMissing,
    PortInUse,
    UnknownModel,
    WrongFlag,
)

#: What servers print, in their own words. Out of memory comes first: its lines name flags to change, too.
_WORDS: tuple[tuple[type[EngineError], str], ...] = (
    (
        NotEnoughMemory,
        r"out of memory|OutOfMemoryError|OutOfMemory|cannot allocate memory|can't allocate memory|std::bad_alloc"
        r"|MemoryError\b|failed to allocate|No available memory for the cache blocks"
        r"|larger than the maximum number of tokens that can be stored in KV cache"
        r"|(?:than|exceeds) (?:the )?available KV cache memory|less than desired GPU memory utilization"
        r"|Not enough memory|increase --mem-fraction-static|unable to allocate"
        r"|is less than requested memory for kv",
    ),
    (PortInUse, r"address already in use|Errno 98\b|couldn't bind|port \d+ (?:is )?(?:already )?in use"),
    (PackageMissing, r"ModuleNotFoundError|No module named|command not found|Error while finding module specification"),
    (
        WrongFlag,
        r"unrecognized arguments|error: argument |invalid choice:|expected one argument|No such option"
        r"|error: invalid argument|error while handling argument|the following arguments are required"
        r"|Invalid value for|validation errors? for \w+|Value error, |Unknown arguments specified",
    ),
    (
        UnknownModel,
        r"Repository Not Found|is not a valid model identifier|is not a local folder and|failed to open GGUF file"
        r"|Can't load the configuration of|does not appear to have a file named|GatedRepoError|LocalEntryNotFoundError"
        r"|HFValidationError|Model snapshots for .* not found in cache|invalid magic characters",
    ),
)
_PATTERNS = tuple((kind, re.compile(words, re.IGNORECASE)) for kind, words in _WORDS)
#: A line that stands for a fall-back that is being taken, not for an end.
_HARMLESS = re.compile(r"\b(WARNING|WARN|INFO|DEBUG)\b")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NOT_FOUND = 127
_USAGE = 2
_NUM_SHOWN = 6
_MAX_LINE = 300


def failure_of(lines: Sequence[str], exit_code: int | None, *, what: str) -> EngineError:
    """Return the error that a server's last lines and exit code tell of; `what` begins its message.

    EngineDied where nothing in them is known.
    """
    kind, cause = _recognised(lines)
    if kind is None:
        kind = _by_code(exit_code, lines)
    how = "" if exit_code is None else f" with {exit_words(exit_code)}"
    because = f": {cause}" if cause else ""
    return kind(f"{what}{how}{because}{last_words(lines)}")


def exit_words(code: int) -> str:
    """Return an exit code in words; that of a shell around a killed program, too."""
    number = -code if code < 0 else code - 128
    if code >= 0 and not 0 < number < signal.NSIG:
        return f"exit code {code}"
    name = signal.Signals(number).name
    return f"{name}, possibly for lack of memory" if name == "SIGKILL" else name


def last_words(lines: Sequence[str]) -> str:
    """Return the last lines of a log for the end of a message; nothing of an empty log."""
    shown = [_short(line) for line in lines if line.strip(" ^~|")][-_NUM_SHOWN:]
    return "; its last log lines: " + " | ".join(shown) if shown else "; it logged nothing"


def plain(text: str) -> str:
    """Return text without the escapes that colour it: some servers colour files, too."""
    return _ESCAPE.sub("", text)


def _recognised(lines: Sequence[str]) -> tuple[type[EngineError] | None, str]:
    for line in reversed(lines):
        if _HARMLESS.search(line):
            continue
        for kind, pattern in _PATTERNS:
            if pattern.search(line):
                return kind, _short(line)
    return None, ""


def _by_code(code: int | None, lines: Sequence[str]) -> type[EngineError]:
    if code == _NOT_FOUND:
        return PackageMissing
    if code == _USAGE and any("usage:" in line.lower() for line in lines):
        return WrongFlag
    is_killed = code is not None and exit_words(code).startswith("SIGKILL")
    return NotEnoughMemory if is_killed else EngineDied


def _short(line: str) -> str:
    shown = "".join(letter if letter.isprintable() else " " for letter in line.strip())
    return shown if len(shown) <= _MAX_LINE else shown[: _MAX_LINE - 3] + "..."
