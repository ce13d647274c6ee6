"""The tables of knobs agree with what engines understand."""

from __future__ import annotations

import pytest

from engine.settings import KV_PRECISIONS, POLICIES, PRECISIONS, EngineSettings
from tuner.errors import InvalidRequest
from tuner.knobs import ENGINES, LAYOUT_KNOBS, rules_of, usual_engine


@pytest.mark.parametrize("engine", ENGINES)
def test_every_knob_is_a_field_of_the_settings(engine: str) -> None:
    """Each knob is spelled like the setting it is, and its default and what is tried are values that it may have."""
    for name, rule in rules_of(engine).items():
        assert name in EngineSettings.__dataclass_fields__
        assert not rule.words or {rule.default, *rule.tried} <= set(rule.words)


def test_words_are_those_of_the_settings() -> None:
    """Precisions and policies are the settings' own; a simulation lacks those that only the embedded engine has."""
    rules = rules_of("simulated")
    assert (rules["policy"].words, rules["kv_precision"].words) == (POLICIES, KV_PRECISIONS)
    assert set(rules["precision"].words) < set(PRECISIONS) == set(rules_of("embedded")["precision"].words)
    assert set(LAYOUT_KNOBS) <= set(rules)
    assert rules_of("embedded")["policy"].words == POLICIES


def test_an_unknown_engine_is_refused() -> None:
    """An engine that there is not is refused with those that there are."""
    with pytest.raises(InvalidRequest, match="engine is 'warp': this version has embedded, simulated"):
        rules_of("warp")


@pytest.mark.parametrize(
    ("device", "engine"),
    [("auto", "embedded"), ("GPU-1", "embedded"), ("simulated:h100-sxm:8", "simulated"), ("SIMULATED:no", "simulated")],
)
def test_the_name_of_a_device_tells_its_engine(device: str, engine: str) -> None:
    """Whatever calls itself simulated takes the simulated engine, be the device known or not."""
    assert engine == usual_engine(device)
