"""What is served: given settings, a stored trial, or the recommendation; and what of it is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api.errors import UsageError
from api.model_server.choice import Choice, by_limits, by_options, by_point
from api.settings import load_settings
from api.stores import Stores
from db.job import Job, JobState
from engine.embedded.models import resolve
from engine.errors import InvalidSettings
from probes.detect import find_device, list_devices
from probes.settings import DeviceSettings
from tests.api.scripted import claimed
from tests.db.factories import START, make_engine_info, make_measurement, make_reading, make_request, make_trial
from tuner.errors import InvalidRequest
from tuner.measurement import Estimate
from tuner.pareto import front_of
from tuner.point import OperatingPoint
from tuner.request import KnobRange

NO_OPTIONS: dict[str, Any] = {"precision": None, "max_batch": None, "max_context": None}


def quiet(what: str, share: float) -> None:
    """Show no progress."""


def stored_job(stores: Stores, model: Path, **changes: Any) -> Job:
    """Store an ended job of this machine's CPU with two points; the second is more frugal and caps the clock."""
    files = resolve(str(model), cache_dir=model, progress=quiet)
    device = find_device("cpu", list_devices())
    measured = {
        "engine": make_engine_info(model=str(model), model_hash=files.model_hash),
        "reading": make_reading(device_uuids=(device.info.uuid,)),
    }
    knobs = (KnobRange(name="max_batch", values=(2, 4)), KnobRange(name="cpu_clock_cap_mhz", values=(1800,)))
    request = make_request(model=str(model), device="cpu", knobs=knobs, allow_device_control=True, **changes)
    trials = [
        make_trial(number=3, point=OperatingPoint.of({"max_batch": 2}), measurement=make_measurement(**measured)),
        make_trial(
            number=7,
            point=OperatingPoint.of({"max_batch": 4, "cpu_clock_cap_mhz": 1800}),
            measurement=make_measurement(tok_per_j=Estimate(3.0, 2.9, 3.1), **measured),
        ),
    ]
    claim = claimed(stores, request)
    stores.devices.seen(device.info, [])
    stores.jobs.set_device(claim, device.info.uuid)
    stores.results.save(claim.job_id, trials, front_of(trials, "tpot_p99_ms", created_at=START))
    stores.jobs.finish(claim, JobState.FINISHED, ended_because="budget")
    return stores.jobs.get(claim.job_id)


def how(**changes: Any) -> dict[str, Any]:
    fields = {"options": NO_OPTIONS, "allow_device_control": False, "settings": load_settings(), "progress": quiet}
    return fields | changes


def test_given_settings_are_served(tiny_folder: Path) -> None:
    """Options become the engine's settings, the others stay at their defaults; nothing is set on the device."""
    choice = by_options(str(tiny_folder), "cpu", NO_OPTIONS | {"max_batch": 3}, load_settings(), quiet)

    assert (choice.settings.max_batch, choice.settings.precision, choice.settings.device) == (3, "fp32", "cpu")
    assert choice.device_settings.is_empty
    with pytest.raises(InvalidSettings, match="precision is 'fp7'"):
        by_options(str(tiny_folder), "cpu", NO_OPTIONS | {"precision": "fp7"}, load_settings(), quiet)


def test_a_trials_point_is_served(stores: Stores, tiny_folder: Path) -> None:
    """JOB:N is the trial's point with the context of its job; what the point does not name may be given beside it."""
    job = stored_job(stores, tiny_folder)

    choice = by_point(stores, f"{job.id[:8]}:3", model=str(tiny_folder), **how())
    longer = by_point(stores, f"{job.id}:3", model=str(tiny_folder), **how(options=NO_OPTIONS | {"max_context": 333}))

    workload = job.request.workload
    assert choice.settings.max_batch == 2
    assert choice.settings.max_context == workload.prompt_tokens[1] + workload.output_tokens[1]
    assert choice.origin == f"trial 3 of job {job.id[:8]}: max_batch=2"
    assert (choice.notes, choice.left_out) == ((), DeviceSettings())
    assert longer.settings.max_context == 333


def test_a_clock_that_nobody_sets_is_left_out_by_name(stores: Stores, tiny_folder: Path) -> None:
    """Without leave to set the device the best point's clock is told as left out; with it, the operator is asked."""
    job = stored_job(stores, tiny_folder)

    choice = by_point(stores, job.id, model=str(tiny_folder), **how())

    assert choice.settings.max_batch == 4
    assert (choice.device_settings, choice.left_out) == (DeviceSettings(), DeviceSettings(cpu_clock_cap_mhz=1800))
    with pytest.raises(InvalidRequest, match="operator has not set WATTFRONT_ALLOW_DEVICE_CONTROL"):
        by_point(stores, job.id, model=str(tiny_folder), **how(allow_device_control=True))


def test_other_weights_are_noted(stores: Stores, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose files have changed since is served, and it is said that they have."""
    job = stored_job(stores, tiny_folder)
    changed = resolve(str(tiny_folder), cache_dir=tiny_folder, progress=quiet)
    monkeypatch.setattr("engine.embedded.models._folder_hash", lambda _: "cd" * 32)

    choice: Choice = by_point(stores, job.id, model=str(tiny_folder), **how())

    assert changed.model_hash != choice.files.model_hash
    assert choice.notes == ("the model's files are not those that were measured",)


def test_a_recommendation_is_served_or_what_it_misses_is_told(stores: Stores, tiny_folder: Path) -> None:
    """Limits that points meet choose the most frugal of them; those that none meets are told with the nearest."""
    job = stored_job(stores, tiny_folder)
    asked = {"model": str(tiny_folder), "device": "cpu", **how()}

    choice = by_limits(stores, "ttft_p99_ms=1000, tpot_p99_ms<=1000", **asked)

    assert choice.origin.startswith(f"trial 7 of job {job.id[:8]}: ")
    with pytest.raises(UsageError, match=r"--sla is 'ttft_p99_ms=0\.001': "):
        by_limits(stores, "ttft_p99_ms=0.001", **asked)
    with pytest.raises(UsageError, match="--sla has 'speed=1'; give NAME=NUMBER by comma, of ttft_p99_ms"):
        by_limits(stores, "speed=1", **asked)
    with pytest.raises(UsageError, match="--sla: ttft_p99_ms is 'soon'"):
        by_limits(stores, "ttft_p99_ms=soon", **asked)


@pytest.mark.parametrize(
    ("text", "model", "options", "words"),
    [
        (":3", None, {}, "give JOB:N"),
        ("{job}:x", None, {}, "give JOB:N"),
        ("{job}", "other", {}, "serve that, or name a job of other"),
        ("{job}", None, {"max_batch": 2}, "--max-batch is 2, but the point has its own; leave it out"),
    ],
)
def test_wrong_points_are_refused(
    stores: Stores, tiny_folder: Path, text: str, model: str | None, options: dict[str, Any], words: str
) -> None:
    """What cannot be served as it was tuned is refused by name, before a model is loaded."""
    asked = text.format(job=stored_job(stores, tiny_folder).id)

    with pytest.raises(UsageError, match=words):
        by_point(stores, asked, model=model or str(tiny_folder), **how(options=NO_OPTIONS | options))


def test_other_engines_are_not_served(stores: Stores, tiny_folder: Path) -> None:
    """A job of another engine is refused with the command that tells how to run it."""
    job = stored_job(stores, tiny_folder, engine="simulated")

    with pytest.raises(UsageError, match=r"a job of the engine simulated; .* wattfront export prints how"):
        by_point(stores, job.id, model=str(tiny_folder), **how())
