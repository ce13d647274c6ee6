"""The operator's file: what callers may name, and errors that name the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.errors import UsageError
from api.operator_file import load_operator

WHOLE = """
devices:
  rack3-gpu0: {device: GPU-1, allow_device_control: true}
models:
  chat-8b: /models/llama
targets:
  ops: {url: "https://hooks.example.org/x", secret_env: OPS_SECRET}
"""


def test_without_a_file_nothing_can_be_named() -> None:
    """No file is an operator who names nothing."""
    operator = load_operator(None)
    assert (operator.devices, operator.models, operator.targets) == ({}, {}, {})


def test_names_become_devices_models_and_targets(tmp_path: Path) -> None:
    """A whole file gives every entry, and a target's secret comes from the environment alone."""
    path = tmp_path / "operator.yaml"
    path.write_text(WHOLE)
    operator = load_operator(path)
    assert (operator.devices["rack3-gpu0"].device, operator.devices["rack3-gpu0"].allow_device_control) == (
        "GPU-1",
        True,
    )
    assert operator.models == {"chat-8b": "/models/llama"}
    assert operator.targets["ops"].secret({"OPS_SECRET": "s3"}) == b"s3"
    assert operator.targets["ops"].secret({}) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("devices: {gpu 0: {device: x}}", "a name has letters"),
        ("targets: {ops: {url: 'file:///etc/passwd', secret_env: X}}", "http:// or https://"),
        ("targets: {ops: {url: 'http://127.0.0.1:99999', secret_env: X}}", "port out of range"),
        ("models: {a: 3}", "models.a"),
        ("hooks: {}", "hooks"),
        ("- a", "Operator"),
        ("devices: {", "not YAML"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    """A wrong file is refused with its path and the field."""
    path = tmp_path / "operator.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"operator\.yaml") as refused:
        load_operator(path)
    assert words in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(UsageError, match="WATTFRONT_OPERATOR_FILE"):
        load_operator(tmp_path / "none.yaml")
