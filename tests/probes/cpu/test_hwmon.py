"""Package temperatures from a fake hwmon tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.cpu.hwmon import package_temperature_c
from tests.probes.fake_host import write_sensor


def test_the_hottest_intel_package_counts(tmp_path: Path) -> None:
    """Of two packages the hotter one is told; their cores and other devices do not count."""
    write_sensor(tmp_path, 0, "coretemp", Package_id_0=61.5, Core_0=99.0)
    write_sensor(tmp_path, 1, "coretemp", Package_id_1=64.0, Core_0=99.0)
    write_sensor(tmp_path, 2, "nvme", Composite=90.0)
    assert package_temperature_c(tmp_path) == 64.0


def test_amds_die_goes_before_its_control_value(tmp_path: Path) -> None:
    """Tctl has an offset on some CPUs, so Tdie is taken where there is one, else Tctl."""
    write_sensor(tmp_path, 0, "k10temp", Tctl=80.0, Tdie=53.0, Tccd1=55.0)
    assert package_temperature_c(tmp_path) == 53.0


def test_amds_control_value_where_there_is_nothing_else(tmp_path: Path) -> None:
    """A k10temp with Tctl alone is read by that."""
    write_sensor(tmp_path, 0, "k10temp", Tctl=47.25)
    assert package_temperature_c(tmp_path) == 47.25


@pytest.mark.parametrize("text", ["", "N/A"])
def test_no_sensor_is_none(tmp_path: Path, text: str) -> None:
    """No tree, no CPU's driver and no number are all None, never 0 degrees."""
    assert package_temperature_c(tmp_path / "missing") is None
    write_sensor(tmp_path, 0, "coretemp", Package_id_0=text)
    write_sensor(tmp_path, 1, "acpitz", temp=40.0)
    assert package_temperature_c(tmp_path) is None
