"""`wattfront calibrate` on stored trials of a simulated GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from api.calibrate_commands import calibrate
from api.settings import Settings
from api.stores import Stores
from db.job import Job, JobState
from probes.simulated.device import SimulatedDevice
from probes.simulated.twin import read_twin
from tests.tuner.simulated_trials import H100, Point, changed, chat_request, run_trials
from tuner import calibration
from tuner.request import TuneRequest
from tuner.trial import Trial

POINTS: list[Point] = [
    {"max_batch": max_batch, "precision": "bf16", "sm_clock_cap_mhz": clock_mhz}
    for max_batch in (8, 64, 256)
    for clock_mhz in (1005, 1500, 1980)
]
UUID = "SIM-H100-SXM-X1"


@pytest.fixture(scope="module")
def trials() -> tuple[Trial, ...]:
    device = SimulatedDevice(changed(H100, weight_factor=1.2, compute_w=1.2))
    return run_trials(chat_request(), device, POINTS).trials


@pytest.fixture(autouse=True)
def _few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "NUM_PARTS", 2)


def store(stores: Stores, trials: Sequence[Trial], request: TuneRequest | None = None) -> Job:
    """Keep trials as a job's that ran on the simulated H100."""
    device = SimulatedDevice(H100)
    stores.devices.seen(device.info, device.capabilities())
    claim = stores.jobs.create_claimed(request or chat_request(), "test", 60.0)
    stores.jobs.set_device(claim, device.info.uuid)
    for trial in trials:
        assert stores.trials.finish(stores.trials.start(claim, trial.number, trial.point), trial)
    stores.jobs.finish(claim, JobState.FINISHED, "trials")
    return stores.jobs.get(claim.job_id)


def run(settings: Settings, *arguments: object) -> Result:
    return CliRunner().invoke(calibrate, [str(one) for one in arguments], obj=settings)


def complaint(settings: Settings, *arguments: object) -> str:
    """What the command line would say of the error that ended the command."""
    result = run(settings, *arguments)
    assert result.exception is not None
    assert result.stdout == ""
    return str(result.exception)


def test_report_and_file(settings: Settings, stores: Stores, trials: tuple[Trial, ...], tmp_path: Path) -> None:
    """The report tells errors, coefficients and what was not told; the file it names can be read."""
    job = store(stores, trials)
    out = tmp_path / "twin.json"
    result = run(settings, "--device", UUID, "--out", out)
    assert result.exit_code == 0, result.exception
    twin = read_twin(out)
    assert twin.provenance.job_ids == (job.id,)
    assert twin.coefficients.compute_w == pytest.approx(1.2 * H100.coefficients.compute_w, rel=0.1)
    for words in ("How far off the simulation is, 9 trials", "twin, trials left out, in 2 parts", "compute_w",
                  "Nothing that it tells is a measurement", f"simulated:{out}"):  # fmt: skip
        assert words in result.stdout


def test_json(settings: Settings, stores: Stores, trials: tuple[Trial, ...], tmp_path: Path) -> None:
    """As JSON the report holds the very twin that is written, and every coefficient with its uncertainty."""
    store(stores, trials)
    out = tmp_path / "twin.json"
    report = json.loads(run(settings, "--device", "simulated:h100-sxm", "--format", "json", "--out", out).stdout)
    assert report["twin"] == json.loads(out.read_text())
    told = {one["name"]: one["is_told"] for one in report["coefficients"]}
    assert told["compute_w"] is True
    assert told["expert_16_s"] is False
    assert report["left_out"] == []


def test_beginning_of_a_uuid_and_of_a_job(settings: Settings, stores: Stores, trials: tuple[Trial, ...]) -> None:
    """Devices and jobs may be named by their beginnings; only the named job's trials count."""
    job = store(stores, trials)
    store(stores, trials)
    result = run(settings, "--device", "sim-h100", "--job", job.id[:8], "--format", "json")
    assert json.loads(result.stdout)["twin"]["provenance"]["job_ids"] == [job.id]


def test_jobs_on_other_devices_do_not_count(settings: Settings, stores: Stores, trials: tuple[Trial, ...]) -> None:
    """A job named though it ran elsewhere, or has not run, is refused."""
    store(stores, trials)
    waiting = stores.jobs.create(chat_request())
    message = complaint(settings, "--device", UUID, "--job", waiting.id)
    assert message == f"--job {waiting.id[:8]} has not run yet, not on {UUID}; leave it out"


def test_unknown_device(settings: Settings, stores: Stores, trials: tuple[Trial, ...]) -> None:
    """A device that no job ran on is refused with those that had one."""
    store(stores, trials)
    message = complaint(settings, "--device", "GPU-1")
    assert message == f"--device is 'GPU-1': no job has run there; devices that have had one: {UUID}"


@pytest.mark.usefixtures("stores")
def test_no_device(settings: Settings) -> None:
    """In an empty store the message says to run a job first."""
    assert complaint(settings, "--device", "GPU-1").endswith("none: run a job first")


def test_too_few_trials(settings: Settings, stores: Stores, trials: tuple[Trial, ...], tmp_path: Path) -> None:
    """With too few trials nothing is written."""
    store(stores, trials[:5])
    out = tmp_path / "twin.json"
    message = complaint(settings, "--device", UUID, "--out", out)
    assert message == "trials is 5: 8 or more usable ones are needed; tune longer"
    assert not out.exists()


@pytest.mark.parametrize("name", ["twin", "twin.txt", "of:me.json"])
def test_names_that_could_not_be_opened_again(settings: Settings, name: str) -> None:
    """A file name that no device name could hold is refused before any work is done."""
    assert complaint(settings, "--device", UUID, "--out", name) == (
        f"--out is {name!r}: give a path that ends with .json and has no colon"
    )


def test_unknown_base(settings: Settings) -> None:
    """A base that there is not is refused with the list."""
    assert complaint(settings, "--device", UUID, "--base", "h300").startswith("--base is 'h300'; choose one of a100-")


def test_a_place_that_cannot_be_written(
    settings: Settings, stores: Stores, trials: tuple[Trial, ...], tmp_path: Path
) -> None:
    """A folder that is not there is told as such."""
    store(stores, trials)
    out = tmp_path / "none" / "twin.json"
    assert complaint(settings, "--device", UUID, "--out", out) == (
        f"--out is {str(out)!r}: No such file or directory; choose another place"
    )


def test_models_that_only_an_engine_knows(settings: Settings, stores: Stores, trials: tuple[Trial, ...]) -> None:
    """Where a job's model tells no shape it must be named; then the calibration works."""
    store(stores, trials, replace(chat_request(), model="my-model"))
    message = complaint(settings, "--device", UUID)
    assert message.startswith("the shape of 'my-model' is not known (")
    assert message.endswith("); name it with --model-shape")
    assert run(settings, "--device", UUID, "--model-shape", "llama-3.1-8b").exit_code == 0
