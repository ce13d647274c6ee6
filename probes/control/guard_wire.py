"""The lines between a worker and the guard: one JSON object each, one request at a time, every one answered.

Parsing is strict: what is not expected is refused by name and ends the connection. What answers hold stands in
`probes.control.guard_answers`. Knows nothing of sockets' paths, of leases or of devices.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from probes import errors
from probes.errors import GuardUnavailable, ProbeError
from probes.settings import DEVICE_KNOBS, DeviceSettings
from probes.validity import is_probe_error

VERSION = 2
#: Far more than the knobs of a machine full of GPUs take.
MAX_LINE_BYTES = 64 * 1024
MAX_DEVICES = 64
MAX_LABEL = 120
#: The drivers' own fields are 32 bits wide, as are process and user ids.
MAX_WHOLE = 2**32 - 1


class Fault(StrEnum):
    """What can be wrong with a line."""

    NOT_JSON = "not_json"
    TOO_LONG = "too_long"
    UNKNOWN_VERSION = "unknown_version"
    UNKNOWN_OP = "unknown_op"
    BAD_FIELD = "bad_field"


class WireError(Exception):
    """A line that is not of this protocol: use a worker and a guard of the same version."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class Op(StrEnum):
    """What can be asked."""

    HELLO = "hello"  # who is asking, and what may be set
    APPLY = "apply"  # set knobs
    PROBLEMS = "problems"  # why what was applied no longer holds
    HEARTBEAT = "heartbeat"  # the asker is alive
    RESTORE = "restore"  # put back what this connection set
    RECOVER = "recover"  # put back what dead processes left
    STATUS = "status"  # who holds what, and what is blocked


_FIELDS = {Op.HELLO: {"label"}, Op.APPLY: {"uuids", "settings"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question; the fields that its op does not have are empty."""

    op: Op
    #: What the asker is busy with, in words for people: of HELLO. It identifies nobody.
    label: str = ""
    #: Of APPLY.
    uuids: tuple[str, ...] = ()
    settings: DeviceSettings = field(default_factory=DeviceSettings)


class Lines:
    """Whole lines from a connection, each within a time limit and a size limit."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()

    def read(self, timeout_s: float) -> bytes | None:
        """Return the next line without its end; None once the other side has closed.

        A line that trickles in is held to the same limit. Raises TimeoutError, WireError (too long), OSError.
        """
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            if len(self._buffer) > MAX_LINE_BYTES:
                raise WireError(Fault.TOO_LONG, f"a line is longer than {MAX_LINE_BYTES} bytes")
            # A limit of 0 would make the socket non-blocking.
            self._connection.settimeout(max(deadline_s - time.monotonic(), 0.001))
            received = self._connection.recv(65536)
            if not received:
                return None
            self._buffer += received
            if time.monotonic() > deadline_s and b"\n" not in self._buffer:
                raise TimeoutError(f"no whole line within {timeout_s:g} s")
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        if len(line) > MAX_LINE_BYTES:
            raise WireError(Fault.TOO_LONG, f"a line is longer than {MAX_LINE_BYTES} bytes")
        return line


def encode_request(request: Request) -> bytes:
    """Return the line of a request."""
    document: dict[str, Any] = {"v": VERSION, "op": request.op}
    for name in _FIELDS.get(request.op, ()):
        document[name] = request.settings.as_dict() if name == "settings" else getattr(request, name)
    return _line(document)


def decode_request(line: bytes) -> Request:
    """Return the request in a line; raise WireError."""
    document = _document(line)
    op = document.pop("op", None)
    if op not in tuple(Op):
        raise WireError(Fault.UNKNOWN_OP, f"op is {shown(op)}; this guard knows {', '.join(Op)}")
    if document.keys() != (expected := _FIELDS.get(Op(op), set())):
        raise WireError(Fault.BAD_FIELD, f"{op} has the fields {shown(sorted(document))} instead of {sorted(expected)}")
    return Request(
        op=Op(op),
        label=_label(document.get("label", "")),
        uuids=_uuids(document["uuids"]) if "uuids" in document else (),
        settings=settings_of(document.get("settings", {})),
    )


def encode_answer(body: Any) -> bytes:
    """Return the line of an answer: what `probes.control.guard_answers` makes of a record, or None for `done`."""
    return _line({"v": VERSION, "ok": body})


def encode_error(error: ProbeError | WireError) -> bytes:
    """Return the line that tells what went wrong."""
    kind = error.fault if isinstance(error, WireError) else error.kind
    # Cut so that the line is within its limit whatever the message quotes; a character takes six bytes at most.
    return _line({"v": VERSION, "error": {"kind": kind, "message": str(error)[: MAX_LINE_BYTES // 8]}})


def decode_answer(line: bytes) -> Any:
    """Return what an answer holds, to be read by the function for its op.

    Raises the ProbeError that the guard raised, by its name, and WireError where the answer is none, or where the
    guard did not understand the question.
    """
    document = _document(line)
    if document.keys() == {"ok"}:
        return document["ok"]
    if document.keys() != {"error"}:
        raise WireError(Fault.BAD_FIELD, f"an answer has the fields {shown(sorted(document))}")
    error = object_of(document["error"], "error", {"kind", "message"})
    kind, message = text_of(error["kind"], "kind"), text_of(error["message"], "message")
    if kind in tuple(Fault):
        raise WireError(Fault(kind), message)
    raise _error_of(kind, message)


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _document(line: bytes) -> dict[str, Any]:
    """Return the object in a line of this version, without its version."""
    try:
        document = json.loads(line, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise WireError(Fault.NOT_JSON, f"{shown(line)} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise WireError(Fault.NOT_JSON, f"{shown(document)} is not a JSON object")
    version = document.pop("v", None)
    if version is True or version != VERSION:
        raise WireError(
            Fault.UNKNOWN_VERSION,
            f"version {shown(version)} of the guard's protocol was spoken, this is version {VERSION}; "
            "use a worker and a guard of the same version",
        )
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return document


def _error_of(kind: str, message: str) -> ProbeError:
    for candidate in vars(errors).values():
        if is_probe_error(candidate) and candidate.kind == kind:
            error: ProbeError = candidate(message)
            return error
    return GuardUnavailable(f"the guard answered with an error unknown here, {shown(kind)}: {message}")


def _label(value: Any) -> str:
    label = text_of(value, "label")
    if len(label) > MAX_LABEL or not label.isprintable():
        raise WireError(Fault.BAD_FIELD, f"label is {shown(label)}: up to {MAX_LABEL} printable characters are taken")
    return label


def _uuids(value: Any) -> tuple[str, ...]:
    uuids = tuple(text_of(one, "uuids") for one in list_of(value, "uuids"))
    if not uuids or len(uuids) > MAX_DEVICES or len(set(uuids)) != len(uuids):
        raise WireError(Fault.BAD_FIELD, f"uuids is {shown(value)}: 1 to {MAX_DEVICES} different ones are taken")
    return uuids


def settings_of(value: Any) -> DeviceSettings:
    """Return the knobs in an object of whole numbers; raise WireError."""
    chosen = object_of(value, "settings")
    if unknown := chosen.keys() - set(DEVICE_KNOBS):
        raise WireError(Fault.BAD_FIELD, f"settings has {shown(sorted(unknown))}; knobs are {', '.join(DEVICE_KNOBS)}")
    return DeviceSettings(**{knob: whole_of(number, knob) for knob, number in chosen.items()})


def object_of(value: Any, name: str, keys: set[str] | None = None) -> dict[str, Any]:
    """Return an object, with exactly these keys where they are given; raise WireError."""
    if not isinstance(value, dict) or (keys is not None and value.keys() != keys):
        wanted = "an object" if keys is None else f"an object of {', '.join(sorted(keys))}"
        raise WireError(Fault.BAD_FIELD, f"{name} is {shown(value)}: not {wanted}")
    return value


def list_of(value: Any, name: str) -> list[Any]:
    """Return a list; raise WireError."""
    if not isinstance(value, list):
        raise WireError(Fault.BAD_FIELD, f"{name} is {shown(value)}: not a list")
    return value


def text_of(value: Any, name: str) -> str:
    """Return text; raise WireError."""
    if not isinstance(value, str):
        raise WireError(Fault.BAD_FIELD, f"{name} is {shown(value)}: not text")
    return value


def whole_of(value: Any, name: str) -> int:
    """Return a whole number of 32 bits; raise WireError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_WHOLE:
        raise WireError(Fault.BAD_FIELD, f"{name} is {shown(value)}: not a whole number from 0 to {MAX_WHOLE}")
    return value


def shown(value: object) -> str:
    """Return a value as a message quotes it: never long."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
