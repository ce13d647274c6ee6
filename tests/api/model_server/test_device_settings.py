"""Clocks while a model is served: set, watched, and put back however serving ends."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from api.model_server import device_settings
from api.model_server.choice import Choice, by_options
from api.model_server.device_settings import Holding, applied
from api.settings import load_settings
from probes.errors import Uncontrolled
from probes.settings import DeviceSettings
from tests.tuner.scripted import ScriptedControl


@pytest.fixture(name="choice")
def _choice(tiny_folder: Path) -> Choice:
    """A choice that sets nothing."""
    return by_options(str(tiny_folder), "cpu", {}, load_settings(), lambda what, share: None)


def given(control: ScriptedControl, monkeypatch: pytest.MonkeyPatch, choice: Choice) -> Choice:
    """Return a choice that sets a clock through this control."""

    def open_control(*_: Any, **__: Any) -> ScriptedControl:
        return control

    monkeypatch.setattr(device_settings, "open_control", open_control)
    return dataclasses.replace(choice, device_settings=DeviceSettings(cpu_clock_cap_mhz=1800))


def test_nothing_is_opened_where_nothing_is_set(choice: Choice) -> None:
    """Observing is the default: without settings no control is asked for."""
    with applied(choice, load_settings()) as holding:
        assert holding is None


def test_what_was_set_is_put_back_after_an_error(monkeypatch: pytest.MonkeyPatch, choice: Choice) -> None:
    """However serving ends, what was found is restored by closing the control."""
    control = ScriptedControl()
    setting = given(control, monkeypatch, choice)

    with pytest.raises(RuntimeError, match="on purpose"), applied(setting, load_settings()):
        raise RuntimeError("on purpose")

    assert control.calls == ["apply {'cpu_clock_cap_mhz': 1800}", "close"]


def test_a_clock_that_is_not_taken_serves_nothing(monkeypatch: pytest.MonkeyPatch, choice: Choice) -> None:
    """A point whose clock cannot be set is not served under its name; the error goes to whoever asked."""
    control = ScriptedControl(apply_error=Uncontrolled("not taken"))
    setting = given(control, monkeypatch, choice)

    with pytest.raises(Uncontrolled, match="not taken"), applied(setting, load_settings()):
        raise AssertionError("must not be reached")
    assert control.calls[-1] == "close"


def test_what_no_longer_holds_is_not_claimed() -> None:
    """Once a look finds a problem the figure says 0, and 1 again when the next finds none."""
    control = ScriptedControl(reasons=[("clock_changed",), ()])
    holding = Holding(control.problems, look_s=1000.0)
    seen = [holding.is_in_force]
    for _ in range(2):
        holding.look()
        seen.append(holding.is_in_force)

    assert seen == [True, False, True]
