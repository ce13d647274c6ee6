"""Names of simulated devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.errors import UnknownDevice
from probes.simulated.accelerators import ACCELERATORS
from probes.simulated.names import SimulatedName, is_simulated_name, located, open_simulated, parse_name


@pytest.mark.parametrize(
    ("name", "key", "num_gpus"),
    [
        ("simulated:h100-sxm", "h100-sxm", 1),
        ("simulated:h100-sxm:8", "h100-sxm", 8),
        (" Simulated:H100-SXM:4608 ", "h100-sxm", 4608),
        ("simulated:gb200-nvl72", "gb200-nvl72", 72),
        ("simulated:gb200-nvl72:8", "gb200-nvl72", 8),
    ],
)
def test_a_name_is_an_accelerator_and_a_number(name: str, key: str, num_gpus: int) -> None:
    """Without a number it is one GPU, or the whole rack of those that come in racks."""
    assert is_simulated_name(name)
    assert parse_name(name) == SimulatedName(key=key, num_gpus=num_gpus)
    assert parse_name(str(parse_name(name))) == parse_name(name)


def test_measured_times_are_asked_for_by_name() -> None:
    """Only a name that ends with @aic takes times of kernels from elsewhere: what is installed changes nothing."""
    plain, timed = parse_name("simulated:h100-sxm:2"), parse_name("simulated:h100-sxm:2@aic")

    assert (plain.has_measured_times, timed.has_measured_times) == (False, True)
    assert (timed.key, timed.num_gpus, parse_name(str(timed))) == ("h100-sxm", 2, timed)


def test_a_file_that_is_no_twin_is_refused(tmp_path: Path) -> None:
    """The message names the file, whose path keeps its capital letters."""
    path = tmp_path / "Twin.json"
    path.write_text("{}", encoding="utf-8")

    for name in (f"simulated:{path}", f"simulated:{path}:8"):
        with pytest.raises(UnknownDevice, match=r"Twin\.json"):
            parse_name(name)


def test_a_twin_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path becomes an absolute one, with number and times as they were; other names stay as they are."""
    monkeypatch.chdir(tmp_path)

    assert located("simulated:Twin.json:8@aic") == f"simulated:{tmp_path}/Twin.json:8@aic"
    assert [located(name) for name in ("simulated:h100-sxm", "cpu")] == ["simulated:h100-sxm", "cpu"]


@pytest.mark.parametrize("name", ["simulated:h100-sxm:0", "simulated:h100-sxm:4609", "simulated:h100-sxm:x"])
def test_a_number_out_of_range_is_refused(name: str) -> None:
    """The message tells the range."""
    with pytest.raises(UnknownDevice, match="give 1 to 4608"):
        parse_name(name)


def test_an_unknown_accelerator_is_refused_with_those_that_there_are() -> None:
    """The message lists every key."""
    with pytest.raises(UnknownDevice) as refused:
        open_simulated("simulated:h900")
    assert all(key in str(refused.value) for key in ACCELERATORS)


def test_other_devices_have_other_names() -> None:
    """The names of real devices do not ask for a simulation."""
    assert [is_simulated_name(name) for name in ("cpu", "GPU-1234", "simulated", "h100-sxm")] == [False] * 4
    with pytest.raises(UnknownDevice, match="begin with simulated:"):
        parse_name("gpu:all")


def test_opening_gives_the_device_of_the_name() -> None:
    """The identity is the same each time it is opened, whatever the seed."""
    one, other = open_simulated("simulated:h100-sxm:8", seed=1), open_simulated("simulated:h100-sxm:8", seed=2)
    assert (one.info.uuid, one.num_gpus, one.seed) == ("SIM-H100-SXM-X8", 8, 1)
    assert other.info.uuid == one.info.uuid
