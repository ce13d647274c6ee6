"""A request checked against this machine before its job runs."""

from __future__ import annotations

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
