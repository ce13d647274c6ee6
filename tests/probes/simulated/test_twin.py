"""A twin's file: written, read, and refused where anything in it is odd."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from probes.device import DeviceKind, Method
from probes.errors import UnknownDevice
from probes.simulated.accelerators import ACCELERATORS
from probes.simulated.device import SimulatedDevice
from probes.simulated.twin import Provenance, Quantiles, Residuals, Twin, read_twin, twin_json, write_twin

BASE = ACCELERATORS["h200-sxm"]
ERRORS = Residuals(
    seconds=Quantiles(median=0.01, p90=0.02, worst=0.05),
    power=Quantiles(median=0.02, p90=0.03, worst=0.04),
    j_per_token=Quantiles(median=0.02, p90=0.04, worst=0.08),
)


def make_twin(**changes: object) -> Twin:
    twin = Twin(
        base=BASE.key,
        coefficients=replace(BASE.coefficients, weight_factor=1.25, static_w=140.0),
        idle_loaded_w=121.5,
        untold=("expert_16_s", "scale_up_s"),
        in_sample=ERRORS,
        held_out=replace(ERRORS, seconds=Quantiles(median=0.02, p90=0.03, worst=0.06)),
        provenance=Provenance(
            device_uuid="GPU-1234",
            device_name="NVIDIA H200",
            driver="580.65",
            engine="embedded 0.1.0",
            job_ids=("a" * 32, "b" * 32),
            num_trials=34,
            created_at=datetime(2026, 3, 1, 12, 0, tzinfo=UTC),
        ),
    )
    return replace(twin, **changes)  # type: ignore[arg-type] # whichever fields a test names


@pytest.mark.parametrize(
    "twin", [make_twin(), make_twin(held_out=replace(ERRORS, power=None, j_per_token=None), untold=())]
)
def test_round_trip(twin: Twin, tmp_path: Path) -> None:
    """A twin comes back from its file as it was."""
    write_twin(twin, tmp_path / "twin.json")
    assert read_twin(tmp_path / "twin.json") == twin


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    """Whoever opens the file reads first that it is a simulation's."""
    write_twin(make_twin(), tmp_path / "twin.json")
    first = next(iter(json.loads((tmp_path / "twin.json").read_text()).items()))
    assert first[0] == "notice"
    assert "not a measurement" in first[1]


def test_accelerator() -> None:
    """The twin's accelerator has its own key, coefficients and idle power, and the base's everything else."""
    twin = make_twin()
    made = twin.accelerator
    assert made.key == twin.key
    assert made.key.startswith("h200-sxm-twin-")
    assert made.name == "NVIDIA H200 SXM, twin of GPU-1234"
    assert made.coefficients == twin.coefficients
    assert made.idle_loaded_w == 121.5
    assert made.coefficients_from == (
        "fitted to 34 trials of NVIDIA H200 (2 jobs, engine embedded 0.1.0); median error of trials left out: "
        "time 2.0%, power 2.0%"
    )
    same = ("key", "name", "coefficients", "idle_loaded_w", "coefficients_from")
    assert replace(made, **{name: getattr(BASE, name) for name in same}) == BASE


def test_two_twins_have_two_keys() -> None:
    """Results of two twins of one base never go by one name."""
    other = make_twin(coefficients=replace(BASE.coefficients, weight_factor=1.26, static_w=140.0))
    assert make_twin().key == make_twin(untold=()).key
    assert make_twin().key != other.key


def test_a_twin_never_looks_like_a_measurement() -> None:
    """A device opened on a twin is simulated in kind, name, driver and method of energy."""
    device = SimulatedDevice(make_twin().accelerator)
    assert device.info.kind is DeviceKind.SIMULATED
    assert device.info.name == "NVIDIA H200 SXM, twin of GPU-1234 (simulated)"
    assert device.info.uuid == f"SIM-{make_twin().key.upper()}-X1"
    assert device.power_source is not None
    assert device.power_source.method is Method.SIMULATED
    assert "nothing was measured" in device.power_source.detail
    assert "fitted to 34 trials" in device.power_source.detail


def changed_json(path: str, value: object) -> dict[str, Any]:
    """A twin's JSON with one field at another value; None takes it away."""
    whole: dict[str, Any] = json.loads(json.dumps(twin_json(make_twin())))
    *way, last = path.split(".")
    part = whole
    for name in way:
        part = part[name]
    if value is None:
        del part[last]
    else:
        part[last] = value
    return whole


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("version", 2, "version is 2, this program has 1; calibrate anew"),
        ("simulation", "0", "simulation is '0', this program has "),
        ("base", "h300", "base is 'h300'; expected one of a100-sxm-80, "),
        ("idle_loaded_w", "120", "idle_loaded_w is '120'; expected a number of 0 or more"),
        ("idle_loaded_w", float("nan"), "idle_loaded_w is 'nan'; expected a number of 0 or more"),
        ("coefficients", [], "coefficients is '[]'; expected an object"),
        ("coefficients.layer_s", -1e-6, "coefficients.layer_s is '-1e-06'; expected a number of 0 or more"),
        ("coefficients.layer_s", True, "coefficients.layer_s is 'True'; expected a number of 0 or more"),
        ("coefficients.layer_s", None, "coefficients.layer_s is missing; calibrate anew"),
        ("coefficients.speed", 1.0, "coefficients.speed is not known; remove it, or calibrate anew"),
        ("untold", ["layer_s", "speed"], "untold[1] is 'speed'; expected one of step_s, "),
        ("untold", "layer_s", "untold is 'layer_s'; expected a list of texts"),
        ("in_sample.seconds", None, "in_sample.seconds is missing; calibrate anew"),
        ("held_out.power", 0.02, "held_out.power is '0.02'; expected an object"),
        ("held_out.seconds.p90", "a", "held_out.seconds.p90 is 'a'; expected a number of 0 or more"),
        ("provenance.num_trials", 0, "provenance.num_trials is '0'; expected a whole number of 1 or more"),
        ("provenance.driver", 580, "provenance.driver is '580'; expected a text"),
        ("provenance.job_ids", [1], "provenance.job_ids[0] is '1'; expected a text"),
        ("provenance.created_at", "today", "provenance.created_at is 'today'; expected a time as in "),
        ("provenance.created_at", "2026-03-01T12:00:00", "provenance.created_at is '2026-03-01T12:00:00'; expected a "),
    ],
)
def test_odd_files_are_refused(field: str, value: object, message: str, tmp_path: Path) -> None:
    """Whatever is wrong in a file, the message names the file, the field and what was expected."""
    path = tmp_path / "twin.json"
    path.write_text(json.dumps(changed_json(field, value)))
    with pytest.raises(UnknownDevice) as caught:
        read_twin(path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize(("text", "message"), [("{", "not JSON: "), ("[1]", "the file is '[1]'; expected an object")])
def test_files_that_are_no_twin(text: str, message: str, tmp_path: Path) -> None:
    """A file that holds something else is refused with what it should be."""
    path = tmp_path / "twin.json"
    path.write_text(text)
    with pytest.raises(UnknownDevice) as caught:
        read_twin(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_missing_file(tmp_path: Path) -> None:
    """A file that is not there is an unknown device."""
    with pytest.raises(UnknownDevice, match="No such file or directory; give a file that wattfront calibrate wrote"):
        read_twin(tmp_path / "twin.json")
