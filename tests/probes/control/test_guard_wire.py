"""The lines between a worker and the guard."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import errors
from probes.control.guard_wire import (
    MAX_LABEL,
    MAX_LINE_BYTES,
    Fault,
    Lines,
    Op,
    Request,
    WireError,
    decode_answer,
    decode_request,
    encode_answer,
    encode_error,
    encode_request,
)
from probes.errors import DeviceInUse, GuardUnavailable, ProbeError
from probes.settings import DeviceSettings
from probes.validity import is_probe_error

APPLY = {"v": 2, "op": "apply", "uuids": ["GPU-1"], "settings": {"power_cap_w": 400}}


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def fault_of(line: bytes) -> Fault:
    with pytest.raises(WireError) as caught:
        decode_request(line)
    return caught.value.fault


def changed(**changes: Any) -> bytes:
    return json.dumps(APPLY | changes).encode()


@pytest.mark.parametrize(
    "request_",
    [
        Request(op=Op.HELLO, label="job 8cce: ümlaut"),
        Request(op=Op.APPLY, uuids=("GPU-1", "GPU-2"), settings=DeviceSettings(sm_clock_cap_mhz=1005, power_cap_w=400)),
        Request(op=Op.APPLY, uuids=("CPU-1",), settings=DeviceSettings()),
        *(Request(op=op) for op in (Op.PROBLEMS, Op.HEARTBEAT, Op.RESTORE, Op.RECOVER, Op.STATUS)),
    ],
)
def test_a_request_arrives_as_it_was_sent(request_: Request) -> None:
    """Every op survives the line, and a line is one line."""
    line = encode_request(request_)
    assert line.count(b"\n") == 1
    assert decode_request(line.rstrip(b"\n")) == request_


@given(junk=st.binary(max_size=200))
def test_whatever_arrives_is_a_request_or_a_named_fault(junk: bytes) -> None:
    """No bytes make the parser raise anything but WireError."""
    try:
        request = decode_request(junk)
    except WireError:
        return
    assert request.op in Op


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"{", b"\xff\xfe", b"[1]", b"null", b'"hello"'),
        b"[" * MAX_LINE_BYTES,
        b'{"v": 2, "v": 2, "op": "status"}',
        b'{"v": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_not_an_object_of_json_is_refused(line: bytes) -> None:
    """Damaged, deeply nested, doubled or endless JSON has the fault not_json."""
    assert fault_of(line) is Fault.NOT_JSON


@pytest.mark.parametrize("version", [0, 1, 3, "2", None, True, [1]])
def test_another_version_is_refused(version: object) -> None:
    """Only version 2 is spoken, and the message names both."""
    with pytest.raises(WireError, match="this is version 2") as caught:
        decode_request(changed(v=version))
    assert caught.value.fault is Fault.UNKNOWN_VERSION


@pytest.mark.parametrize("op", ["reset", "APPLY", "", None, 1, ["apply"], {}])
def test_an_unknown_op_is_refused(op: object) -> None:
    """An op that this version does not have is named, with those it has."""
    with pytest.raises(WireError, match="heartbeat") as caught:
        decode_request(changed(op=op))
    assert caught.value.fault is Fault.UNKNOWN_OP


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": 1},  # who asks is the kernel's to say
        {"label": "job"},
        {"uuids": "GPU-1"},
        {"uuids": []},
        {"uuids": ["GPU-1", "GPU-1"]},
        {"uuids": [1]},
        {"uuids": [f"GPU-{number}" for number in range(65)]},
        {"settings": []},
        {"settings": {"memory_clock_mhz": 2619}},
        {"settings": {"power_cap_w": 400.5}},
        {"settings": {"power_cap_w": "400"}},
        {"settings": {"power_cap_w": True}},
        {"settings": {"power_cap_w": -1}},
        {"settings": {"power_cap_w": 2**32}},
        {"settings": {"power_cap_w": None}},
    ],
)
def test_a_field_that_is_not_as_agreed_is_refused(changes: dict[str, Any]) -> None:
    """Unknown and missing fields, and values of another type or size, have the fault bad_field."""
    assert fault_of(changed(**changes)) is Fault.BAD_FIELD


def test_a_missing_field_is_refused() -> None:
    """Apply without settings is not apply with none."""
    assert fault_of(b'{"v": 2, "op": "apply", "uuids": ["GPU-1"]}') is Fault.BAD_FIELD


@pytest.mark.parametrize("label", ["two\nlines", "\x1b[31m", "x" * (MAX_LABEL + 1)])
def test_a_label_is_short_and_printable(label: str) -> None:
    """What a client calls itself cannot forge lines of a log or colour a terminal."""
    assert fault_of(json.dumps({"v": 2, "op": "hello", "label": label}).encode()) is Fault.BAD_FIELD


@pytest.mark.parametrize("kind", [*filter(is_probe_error, vars(errors).values())])
def test_every_named_error_arrives_under_its_name(kind: type[ProbeError]) -> None:
    """An error that the guard raised is raised anew by the client, with its message."""
    with pytest.raises(kind, match="because") as caught:
        decode_answer(encode_error(kind("because")))
    assert type(caught.value) is kind


def test_a_fault_arrives_as_a_fault() -> None:
    """A guard that did not understand says what was wrong with the line."""
    with pytest.raises(WireError, match="op is 'x'") as caught:
        decode_answer(encode_error(WireError(Fault.UNKNOWN_OP, "op is 'x'")))
    assert caught.value.fault is Fault.UNKNOWN_OP


def test_an_unknown_error_is_not_swallowed() -> None:
    """An error that only a newer guard knows is told as GuardUnavailable, with its name."""
    line = b'{"v": 2, "error": {"kind": "on_fire", "message": "run"}}'
    with pytest.raises(GuardUnavailable, match="'on_fire': run"):
        decode_answer(line)


def test_an_answer_arrives_as_it_was_sent() -> None:
    """What an answer holds survives the line."""
    assert decode_answer(encode_answer(None)) is None
    assert decode_answer(encode_answer(["external_change"])) == ["external_change"]


@pytest.mark.parametrize("line", [b'{"v": 2}', b'{"v": 2, "ok": 1, "error": 2}', b'{"v": 2, "error": "x"}'])
def test_what_is_no_answer_is_refused(line: bytes) -> None:
    """An answer is either ok or an error."""
    with pytest.raises(WireError):
        decode_answer(line)


def test_an_endless_message_fits_in_a_line() -> None:
    """The longest error is cut so that its reader takes the line."""
    line = encode_error(DeviceInUse("\N{SNOWMAN}" * MAX_LINE_BYTES))
    assert len(line) <= MAX_LINE_BYTES


def test_lines_are_found_in_what_arrives(ends: tuple[socket.socket, socket.socket]) -> None:
    """Lines come out whole however they were cut up, then None when the other side closes."""
    ours, theirs = ends
    lines = Lines(ours)
    theirs.sendall(b"one\ntw")
    assert lines.read(60) == b"one"
    theirs.sendall(b"o\n\nfour")
    assert (lines.read(60), lines.read(60)) == (b"two", b"")
    theirs.close()
    assert lines.read(60) is None


def test_a_line_without_end_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    """What is longer than a line may be is not kept in memory."""
    ours, theirs = ends
    theirs.sendall(b"x" * (MAX_LINE_BYTES + 1))
    with pytest.raises(WireError) as caught:
        Lines(ours).read(60)
    assert caught.value.fault is Fault.TOO_LONG


def test_a_line_that_ends_too_late_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    """The limit is the line's, also where its end came with the same bytes."""
    ours, theirs = ends
    theirs.sendall(b"x" * MAX_LINE_BYTES + b"x\n")
    with pytest.raises(WireError) as caught:
        Lines(ours).read(60)
    assert caught.value.fault is Fault.TOO_LONG


def test_silence_ends_the_wait(ends: tuple[socket.socket, socket.socket]) -> None:
    """A line that does not come in time raises TimeoutError."""
    with pytest.raises(TimeoutError):
        Lines(ends[0]).read(0.01)


def test_a_trickle_is_silence(ends: tuple[socket.socket, socket.socket]) -> None:
    """Single bytes do not extend the time that a whole line has."""
    ours, theirs = ends
    began_s = time.monotonic()

    def trickle() -> None:
        try:
            while time.monotonic() < began_s + 60:
                theirs.send(b"x")
                time.sleep(0.0002)
        except OSError:
            return

    writer = Thread(target=trickle)
    writer.start()
    try:
        with pytest.raises(TimeoutError):
            Lines(ours).read(0.1)
    finally:
        ours.close()
        writer.join(60)
