"""What the guard allows, and to whom, from a file."""

from __future__ import annotations

import grp
import os
import re
from pathlib import Path

import pytest

from probes.control import guard_config
from probes.control.guard_config import SOCKET, STATE_DIR, DeviceRules, GuardConfig, load_config, require_private
from probes.errors import InvalidSetting

#: A user and a group that every Linux has, and an id that none has.
ROOT = "root"
NOBODYS_ID = 54321


@pytest.fixture(autouse=True)
def has_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine lack the default group, as one without an installed guard does."""
    monkeypatch.setattr(guard_config, "GROUP", "a group that is not there")


def written(folder: Path, text: str) -> Path:
    path = folder / "guard.toml"
    path.write_text(text)
    path.chmod(0o644)
    return path


def refusal_of(folder: Path, text: str) -> str:
    with pytest.raises(InvalidSetting) as caught:
        load_config(written(folder, text))
    return str(caught.value).removeprefix(f"{folder}/guard.toml: ")


def test_everything_can_be_said(tmp_path: Path) -> None:
    """Every key arrives: places, group, users and groups by name or number, lapse, and rules by device."""
    config = load_config(
        written(
            tmp_path,
            f"""
socket = "/run/x/guard.sock"
state_dir = "/var/lib/x"
group = "{ROOT}"
users = ["{ROOT}", {NOBODYS_ID}]
groups = [{NOBODYS_ID}]
lapse_s = 4
[devices."*"]
power_cap_w = [300, 700]
[devices."GPU-1"]
sm_clock_cap_mhz = [900, 1980]
cpu_clock_cap_mhz = [800, 800]
prior_sm_clock_cap_mhz = 1500
""",
        )
    )
    assert config == GuardConfig(
        socket=Path("/run/x/guard.sock"),
        state_dir=Path("/var/lib/x"),
        socket_gid=0,
        uids=frozenset({0, NOBODYS_ID}),
        gids=frozenset({NOBODYS_ID}),
        lapse_s=4.0,
        devices={
            "*": DeviceRules(ranges={"power_cap_w": (300, 700)}),
            "GPU-1": DeviceRules(
                ranges={"sm_clock_cap_mhz": (900, 1980), "cpu_clock_cap_mhz": (800, 800)}, prior_sm_clock_cap_mhz=1500
            ),
        },
    )


def test_rules_are_those_of_the_device_else_of_any(tmp_path: Path) -> None:
    """A device's own table replaces the one for any device whole; without either nothing may be set."""
    text = '[devices."GPU-1"]\nsm_clock_cap_mhz = [900, 1980]\n'
    config = load_config(written(tmp_path, text + '[devices."*"]\npower_cap_w = [300, 700]\n'))
    assert set(config.rules_of("GPU-1").ranges) == {"sm_clock_cap_mhz"}
    assert set(config.rules_of("GPU-2").ranges) == {"power_cap_w"}
    assert not load_config(written(tmp_path, text)).rules_of("GPU-2").ranges


@pytest.mark.parametrize("text", ["", None])
def test_without_a_word_root_alone_may(tmp_path: Path, text: str | None) -> None:
    """Without a file, or with an empty one, the defaults hold, and where the group is missing only root may connect."""
    config = load_config(None if text is None else written(tmp_path, text))
    assert config == GuardConfig(socket=SOCKET, state_dir=STATE_DIR)
    assert config.allows(0, [0])
    assert config.allows(os.geteuid(), [])
    assert not config.allows(NOBODYS_ID, [NOBODYS_ID])


@pytest.mark.parametrize("text", ["", None])
def test_the_default_group_may_where_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    """The group `wattfront` may connect, and the socket is its, when the machine has it and nobody said otherwise."""
    group = grp.getgrall()[-1]
    monkeypatch.setattr(guard_config, "GROUP", group.gr_name)
    config = load_config(None if text is None else written(tmp_path, text))
    assert (config.socket_gid, config.gids) == (group.gr_gid, frozenset({group.gr_gid}))
    assert load_config(written(tmp_path, f"users = [{NOBODYS_ID}]")).gids == frozenset()


def test_groups_are_enough(tmp_path: Path) -> None:
    """A user is allowed by name or by any of its groups."""
    config = load_config(written(tmp_path, f"users = [{NOBODYS_ID}]\ngroups = [777, 778]"))
    assert config.allows(NOBODYS_ID, [])
    assert config.allows(NOBODYS_ID + 1, [5, 778])
    assert not config.allows(NOBODYS_ID + 1, [5])


def test_the_command_line_wins(tmp_path: Path) -> None:
    """Socket and state folder given by hand replace the file's; they must be whole paths too."""
    path = written(tmp_path, 'socket = "/a/b"\nstate_dir = "/c"')
    config = load_config(path, socket=Path("/d/e"))
    assert (config.socket, config.state_dir) == (Path("/d/e"), Path("/c"))
    assert load_config(path, state_dir=Path("/f")).state_dir == Path("/f")
    with pytest.raises(InvalidSetting, match=r"--socket is guard\.sock: give the whole path"):
        load_config(path, socket=Path("guard.sock"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('sockets = "/run/x"', "sockets is '/run/x': there is no such key; there are socket, group"),
        ("socket = 7", "socket is 7: write a whole path"),
        ('socket = "guard.sock"', "socket is 'guard.sock': write a whole path"),
        ("state_dir = []", r"state_dir is \[\]: write a whole path"),
        ('group = "no such group"', "group is 'no such group': this machine has none of that name"),
        ("group = true", "group is True: write a name, or its number"),
        ('users = "root"', "users is 'root': write a list"),
        ('users = ["no such user"]', "users is 'no such user': this machine has none"),
        ("users = [-1]", "users is -1: write a name, or its number"),
        ("groups = [1.5]", "groups is 1.5: write a name, or its number"),
        ("lapse_s = 0", "lapse_s is 0: write seconds from 0.5 to 600"),
        ("lapse_s = nan", "lapse_s is nan: write seconds"),
        ("lapse_s = true", "lapse_s is True: write seconds"),
        ('lapse_s = "10"', "lapse_s is '10': write seconds"),
        ("devices = 3", "devices is 3: write a table per device"),
        ('devices."*" = 3', r'devices."\*" is 3: write a table'),
        (
            '[devices."*"]\nmemory_clock_mhz = [1, 2]',
            r'devices."\*".memory_clock_mhz is \[1, 2\]: there is no such key',
        ),
        ('[devices."*"]\npower_cap_w = 300', r'devices."\*".power_cap_w is 300: write the lowest and the highest'),
        ('[devices."*"]\npower_cap_w = [300]', r'devices."\*".power_cap_w is \[300\]: write the lowest'),
        ('[devices."*"]\npower_cap_w = [700, 300]', r'devices."\*".power_cap_w is \[700, 300\]: write the lowest'),
        ('[devices."*"]\npower_cap_w = [0, 300]', r'devices."\*".power_cap_w is \[0, 300\]: write the lowest'),
        ('[devices."*"]\npower_cap_w = [true, 300]', r'devices."\*".power_cap_w is \[True, 300\]: write the lowest'),
        (
            '[devices."*"]\npower_cap_w = [300.0, 700.0]',
            r'devices."\*".power_cap_w is \[300.0, 700.0\]: write the lowest',
        ),
        (
            '[devices."GPU-1"]\nprior_sm_clock_cap_mhz = 0',
            r'devices."GPU-1".prior_sm_clock_cap_mhz is 0: write a whole',
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    """Key, value and remedy are told, after the file."""
    assert re.match(complaint, refusal_of(tmp_path, text))


def test_what_is_no_toml_is_refused(tmp_path: Path) -> None:
    """A syntax error is told with its line, bytes that are no text as well."""
    assert "is not TOML" in refusal_of(tmp_path, "lapse_s == 3")
    path = tmp_path / "guard.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidSetting, match="is not TOML"):
        load_config(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A guard that was given a file does not run without it."""
    with pytest.raises(InvalidSetting, match=r"none\.toml cannot be read \(No such file"):
        load_config(tmp_path / "none.toml")


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    """Whoever can write the file could set anything: group- and world-writable ones are refused with the remedy."""
    path = written(tmp_path, "")
    path.chmod(mode)
    with pytest.raises(InvalidSetting, match=rf"has mode {mode:o}.*run `chmod go-w {path}`"):
        load_config(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    """The file must be root's or the guard's own."""
    path = written(tmp_path, "")
    os.chown(path, NOBODYS_ID, -1)
    with pytest.raises(InvalidSetting, match=f"belongs to {NOBODYS_ID}.*run `chown root {path}`"):
        load_config(path)


def test_a_folder_is_held_to_the_same(tmp_path: Path) -> None:
    """A journal that others could write would let them choose what is put back."""
    require_private(tmp_path)
    tmp_path.chmod(0o777)
    with pytest.raises(InvalidSetting, match="others than its owner can write it"):
        require_private(tmp_path)


def test_the_file_that_is_shipped_says_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """deploy/guard.toml is what holds without it, and its examples can be used as they stand."""
    shipped = (Path(__file__).parents[3] / "deploy/guard.toml").read_text()
    group = grp.getgrall()[-1].gr_name
    monkeypatch.setattr(guard_config, "GROUP", group)
    text = shipped.replace('"wattfront"', f'"{group}"')
    assert load_config(written(tmp_path, text)) == load_config(None)
    examples = re.sub(r"^# (?=\[|\w+ = )", "", text, flags=re.MULTILINE)
    devices = load_config(written(tmp_path, examples)).devices
    assert [set(rules.ranges) for rules in devices.values()] == [
        {"sm_clock_cap_mhz", "power_cap_w"},
        {"sm_clock_cap_mhz"},
        {"cpu_clock_cap_mhz"},
    ]
    assert [rules.prior_sm_clock_cap_mhz for rules in devices.values()] == [None, 1500, None]
