"""A request checked against this machine before its job runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from api.errors import UsageError
from api.prepare import prepare
from api.settings import Settings
from engine.errors import UnknownModel
from probes.errors import UnknownDevice
from tests.api.scripted import tiny_request
from tests.tiny_model import write_tiny_model
from tuner.errors import InvalidRequest
from tuner.request import KnobRange, WorkloadSpec


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"device": "cuda:77"}, UnknownDevice, "there is no device 'cuda:77'"),
        ({"engine": "warp"}, InvalidRequest, "engine is 'warp'"),
        ({"model": "no-such-model"}, UnknownModel, "model is 'no-such-model'"),
        ({"knobs": (KnobRange(name="sm_clock_cap_mhz", values=(1200,)),)}, InvalidRequest, "is only observed unless"),
        (
            {"workload": WorkloadSpec(prompt_tokens=(8, 505), output_tokens=(4, 8))},
            InvalidRequest,
            r"505 prompt \+ 8 output tokens.*: together 513, but .* has a context of 512 tokens; nothing is truncated",
        ),
    ],
)
def test_what_cannot_run_is_refused(
    settings: Settings, tiny_folder: Path, changes: dict[str, object], error: type[Exception], words: str
) -> None:
    """What this machine, the engine or the model cannot do is refused by name before a job runs (BUG-38)."""
    with pytest.raises(error, match=words):
        prepare(tiny_request(tiny_folder, **changes), settings, lambda what, share: None)


def test_the_whole_context_can_be_used(settings: Settings, tiny_folder: Path) -> None:
    """A prompt and an output that fill the context to the last token are accepted."""
    workload = WorkloadSpec(prompt_tokens=(8, 504), output_tokens=(4, 8))
    prepared = prepare(tiny_request(tiny_folder, workload=workload), settings, lambda what, share: None)
    assert prepared.files is not None
    assert (prepared.space.size, prepared.files.folder) == (4, tiny_folder)


def test_a_folder_that_cannot_be_read_is_named(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the system refuses a model's file, the sentence names the file, and no traceback is needed to see it."""
    folder = write_tiny_model(tmp_path / "model")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(folder / "model.safetensors"))

    monkeypatch.setattr("api.prepare.resolve", refuse)
    with pytest.raises(UsageError, match=r"model\.safetensors: Permission denied; make room or give access there"):
        prepare(tiny_request(folder), settings, lambda what, share: None)


def with_operator(settings: Settings, tmp_path: Path, text: str, **changes: object) -> Settings:
    file = tmp_path / "operator.yaml"
    file.write_text(text)
    return settings.model_copy(update={"operator_file": file, **changes})


def test_the_operators_names_become_what_they_stand_for(settings: Settings, tiny_folder: Path, tmp_path: Path) -> None:
    """Device and model of the operator's file are opened by UUID and path; the request as it was asked keeps them."""
    text = f"devices: {{rack3-cpu: {{device: cpu}}}}\nmodels: {{tiny: {tiny_folder}}}\n"
    asked = replace(tiny_request(tiny_folder), device="rack3-cpu", model="tiny")
    prepared = prepare(asked, with_operator(settings, tmp_path, text), lambda what, share: None)
    assert (prepared.asked, prepared.request) == (asked, tiny_request(tiny_folder))
    assert prepared.files is not None
    assert prepared.files.folder == tiny_folder


@pytest.mark.parametrize("is_set", [True, False])
def test_a_name_that_this_machine_lacks_is_told(
    settings: Settings, tiny_folder: Path, tmp_path: Path, is_set: bool
) -> None:
    """Where the operator's file of this machine lacks a name, the sentence names both."""
    own = with_operator(settings, tmp_path, "") if is_set else settings
    file = (
        f"WATTFRONT_OPERATOR_FILE {own.operator_file} of this machine names no" if is_set else "no WATTFRONT_OPERATOR"
    )
    for changes, error in (({"device": "rack9-gpu0"}, UnknownDevice), ({"model": "chat-8b"}, UnknownModel)):
        with pytest.raises(error, match=file) as refused:
            prepare(tiny_request(tiny_folder, **changes), own, lambda what, share: None)
        assert next(iter(changes.values())) in str(refused.value)


@pytest.mark.parametrize(
    ("entry", "worker", "words"),
    [
        (False, True, "operator.yaml of this machine lets nobody set rack3-cpu"),
        (True, False, "has not set WATTFRONT_ALLOW_DEVICE_CONTROL=true"),
    ],
)
def test_three_must_allow_that_a_device_is_set(
    settings: Settings, tiny_folder: Path, tmp_path: Path, entry: bool, worker: bool, words: str
) -> None:
    """A job that asks to set a named device is refused where its entry or the worker's settings do not allow it."""
    text = f"devices: {{rack3-cpu: {{device: cpu, allow_device_control: {str(entry).lower()}}}}}\n"
    own = with_operator(settings, tmp_path, text, allow_device_control=worker)
    asked = tiny_request(tiny_folder, device="rack3-cpu", allow_device_control=True)
    with pytest.raises(InvalidRequest, match=words):
        prepare(asked, own, lambda what, share: None)
