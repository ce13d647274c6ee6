"""A systemd unit that sets clocks and power limit, and puts back what was found."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from api.export.recipe import NotExportable
from api.export.systemd import render, starts, stops, unit_of
from tests.api.export.making import GPU, make_recipe


def commands_of(unit: str, key: str) -> list[str]:
    return [line.partition("=")[2] for line in unit.splitlines() if line.startswith(f"{key}=")]


def test_what_is_set_is_put_back() -> None:
    """The unit locks the clocks and sets the limit of this GPU; at its end it resets the lock and the found limit."""
    recipe = make_recipe(sm_clock_cap_mhz=1410, power_cap_w=500)
    unit = unit_of(recipe)
    begin, end = commands_of(unit, "ExecStart"), commands_of(unit, "ExecStop")
    assert begin == starts(recipe)
    assert end == stops(recipe)
    smi = f"/usr/bin/nvidia-smi --id={GPU}"
    assert begin[0] == f"{smi} --persistence-mode=1"
    assert begin[2:] == [f"{smi} --power-limit=500", f"{smi} --lock-gpu-clocks=0,1410"]
    assert end[0] == f"-{smi} --reset-gpu-clocks"


def test_every_command_is_an_absolute_path_with_closed_quotes() -> None:
    """No path that systemd starts is relative; each line splits into words as a shell would."""
    recipe = make_recipe(sm_clock_cap_mhz=1410, power_cap_w=500, cpu_clock_cap_mhz=2400)
    for command in (*starts(recipe), *stops(recipe)):
        assert shlex.split(command.removeprefix("-"))[0].startswith("/")


def test_the_limit_that_was_found_comes_back(tmp_path: Path) -> None:
    """Run with a stand-in for nvidia-smi: what it first told as the limit of each GPU is what it is set to last."""
    recipe = make_recipe(power_cap_w=500)
    log, smi = tmp_path / "log", tmp_path / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\necho "$@" >> {log}\ncase "$@" in *query*) echo "{GPU}, 612.00";; esac\n')
    smi.chmod(0o755)
    for command in (*starts(recipe), *stops(recipe)):
        here = (
            command.removeprefix("-")
            .replace("/usr/bin/nvidia-smi", str(smi))
            .replace("/run/wattfront-point", str(tmp_path))
        )
        subprocess.run(shlex.split(here.replace("$$", "$").replace("%%", "%")), check=True, env=os.environ)
    lines = log.read_text().splitlines()
    assert f"--id={GPU} --power-limit=500" in lines
    assert lines[-1] == f"--id={GPU} --power-limit=612.00"


def test_a_point_that_sets_nothing_is_refused() -> None:
    """A point that leaves the device as it is makes no unit, and the message says what else to ask for."""
    with pytest.raises(NotExportable, match="sets neither clocks nor a power limit"):
        render(make_recipe())


def test_a_simulated_device_names_no_gpu() -> None:
    """Without a GPU that was measured the unit sets all of them, and says so."""
    recipe = make_recipe(sm_clock_cap_mhz=1410)
    assert "--id=" in render(recipe).decode()
    assert "SIMULATED" in render(recipe).decode()
