"""`wattfront keys` and `wattfront audit`."""

from __future__ import annotations

import json

import pytest

from api.stores import Stores
from db.service import Scope
from tests.api.conftest import Main


def test_a_key_is_printed_once(main_with: Main, stores: Stores) -> None:
    """`keys create` prints the key alone on standard output; it opens the service, and no list shows it again."""
    made = main_with("keys", "create", "ci", "--scope", "tune", "--expires-days", "30")
    key = stores.keys.find(made.out.strip())
    assert key is not None
    assert (made.code, key.name, key.scope, key.expires_at is not None) == (0, "ci", Scope.TUNE, True)
    assert "it is not shown again" in made.err
    secret = made.out.strip().split("_")[2]
    for form in ("table", "json"):
        assert secret not in main_with("keys", "list", "--format", form).out


def test_keys_are_listed_with_their_state(main_with: Main) -> None:
    """`keys list` tells scope, state and last use of every key; without keys it tells how to make one."""
    assert "wattfront keys create" in main_with("keys", "list").out
    main_with("keys", "create", "ci", "--scope", "tune")
    main_with("keys", "create", "dashboard")
    main_with("keys", "revoke", "ci")
    listed = main_with("keys", "list").out.splitlines()
    assert [line.split()[:3] for line in listed] == [["ci", "tune", "revoked"], ["dashboard", "read", "valid"]]
    assert all("never used" in line for line in listed)
    items = json.loads(main_with("keys", "list", "--format", "json").out)["items"]
    assert [(item["name"], item["state"], item["expires_at"]) for item in items] == [
        ("ci", "revoked", None),
        ("dashboard", "valid", None),
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("local", "NAME is 'local': give letters, digits"),
        ("schedule", "NAME is 'schedule': "),
        ("a b", "NAME is 'a b': "),
        ("", "NAME is '': "),
        ("x" * 101, "NAME is 'xxx"),
        ("../x", "NAME is '../x': "),
    ],
)
def test_a_bad_name_is_refused(main_with: Main, stores: Stores, name: str, words: str) -> None:
    """A name that would be confused with somebody else's, or is none, makes no key."""
    ended = main_with("keys", "create", "--", name)
    assert (ended.code, stores.keys.list()) == (2, [])
    assert words in ended.err


def test_a_taken_name_and_an_unknown_one(main_with: Main) -> None:
    """A name is given once, and revoking needs one that is there."""
    main_with("keys", "create", "ci")
    assert "there is or was a key of that name" in main_with("keys", "create", "ci").err
    assert "there is no key 'cd'" in main_with("keys", "revoke", "cd").err


def test_the_audit_log_tells_of_keys(main_with: Main, stores: Stores) -> None:
    """`audit` lists who made and revoked keys, newest first, with the user's name; it never shows a secret."""
    assert main_with("audit").out == "nothing was done yet\n"
    made = main_with("keys", "create", "ci", "--scope", "tune")
    main_with("keys", "revoke", "ci")
    lines = main_with("audit").out.splitlines()
    assert [line.split()[4:7] for line in lines] == [
        ["local", "key.revoke", "key/ci"],
        ["local", "key.create", "key/ci"],
    ]
    assert "user=" in lines[0]
    entries = json.loads(main_with("audit", "--format", "json", "--subject", "key/ci", "--before", "2").out)["items"]
    assert [(entry["id"], entry["action"]) for entry in entries] == [(1, "key.create")]
    assert made.out.strip().split("_")[2] not in json.dumps(entries)


def test_beyond_loopback_serve_names_the_remedy(main_with: Main) -> None:
    """`serve --host 0.0.0.0` without keys ends with code 2 and the command that makes one."""
    ended = main_with("serve", "--host", "0.0.0.0")
    assert ended.code == 2
    assert "make one with `wattfront keys create NAME --scope admin`" in ended.err
