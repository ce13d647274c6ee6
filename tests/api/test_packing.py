"""Answers that are packed once."""

from __future__ import annotations

import json

import pytest

from api.packing import Packed, pack, takes_gzip


@pytest.mark.parametrize(
    ("accept_encoding", "expected"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP, deflate, br", True),
        ("x-gzip", True),
        ("identity", False),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip; q = 0.000", False),
        ("gzip;q=0.001", True),
        ("*;q=0, gzip;q=0.5", True),
        ("*, gzip;q=0", False),
        (";;,,q=1", False),
    ],
)
def test_what_a_client_takes(accept_encoding: str, expected: bool) -> None:
    """Gzip is sent to whoever names it or everything, and not with a weight of zero."""
    assert expected == takes_gzip(accept_encoding)


def test_the_same_json_is_the_same_bytes() -> None:
    """Packing depends on nothing but the JSON, so that equal fronts have equal tags, and can be undone."""
    body = json.dumps({"points": list(range(100))}).encode()
    assert pack(body) == pack(body)
    assert Packed.of(pack(body)) == Packed.of(pack(body))
    assert Packed.of(pack(body)).json == body
