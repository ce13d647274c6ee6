"""A simulated GPU with other coefficients than its kind, tuned and then calibrated: is it found again?"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest

from probes.device import DeviceInfo, DeviceKind, Method, Scope
from probes.simulated.accelerators import Accelerator
from probes.simulated.device import SimulatedDevice
from tests.tuner.simulated_trials import H100, JOB_ID, NOW, Point, changed, chat_request, run_trials
from tuner import calibration
from tuner.calibration import Calibration, base_of, calibrate
from tuner.errors import InvalidRequest
from tuner.measurement import Measurement
from tuner.observations import JobTrials

#: A GPU that is unlike others of its kind.
SECRET = changed(
    H100,
    layer_s=0.75,
    sequence_s=0.6,
    weight_factor=1.15,
    kv_factor=1.25,
    gemm_16_factor=1.2,
    gemm_8_factor=0.85,
    static_w=0.9,
    active_w=1.3,
    weight_w=0.8,
    kv_w=1.2,
    compute_w=1.15,
    voltage_per_ghz=1.4,
    prompt_layer_s=1.5,
)


def random_points(count: int, seed: int) -> list[Point]:
    draw = random.Random(seed)
    return [
        {
            "max_batch": draw.choice([8, 16, 32, 64, 128, 256, 512]),
            "precision": draw.choice(["bf16", "fp8"]),
            "prefill_chunk": draw.choice([512, 2048, 8192]),
            "sm_clock_cap_mhz": draw.choice([990, 1185, 1380, 1575, 1785, 1980]),
        }
        for _ in range(count)
    ]


def figures(job: JobTrials) -> list[tuple[float, float]]:
    """Tokens a second and watts of each trial."""
    measurements = [trial.measurement for trial in job.trials]
    return [(one.output_tok_s.value, one.mean_power_w) for one in measurements if one and one.mean_power_w]


def median_errors(accelerator: Accelerator, points: Sequence[Point]) -> tuple[float, float]:
    """By how much a simulation on an accelerator misses what the secret GPU shows: median of speed and of power."""
    truth = figures(run_trials(chat_request(), SimulatedDevice(SECRET), points))
    told = figures(run_trials(chat_request(), SimulatedDevice(accelerator), points))
    pairs = list(zip(truth, told, strict=True))
    return (
        statistics.median(abs(theirs[0] / ours[0] - 1) for ours, theirs in pairs),
        statistics.median(abs(theirs[1] / ours[1] - 1) for ours, theirs in pairs),
    )


@pytest.fixture(scope="module")
def secret_job() -> JobTrials:
    return run_trials(chat_request(), SimulatedDevice(SECRET), random_points(24, seed=5))


@pytest.fixture(scope="module")
def calibrated(secret_job: JobTrials) -> Calibration:
    """A twin of all trials, each predicted by a fit to two thirds of them: every part costs a fit."""
    return calibrated_in_parts(3, secret_job)


@pytest.fixture(scope="module")
def few(secret_job: JobTrials) -> JobTrials:
    """As few trials as are allowed."""
    return replace(secret_job, trials=secret_job.trials[:8])


@pytest.fixture(scope="module")
def roughly(few: JobTrials) -> Calibration:
    """A twin of few trials, left out in two parts: how far off they are is not the question."""
    return calibrated_in_parts(2, few)


def calibrated_in_parts(num_parts: int, job: JobTrials) -> Calibration:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "NUM_PARTS", num_parts)
        return calibrate([job], SimulatedDevice(SECRET).info, H100, now=NOW)


def test_a_gpu_is_found_again(calibrated: Calibration) -> None:
    """On points it was not fitted to the twin is within 3 % in speed and power, where the base is not in power."""
    points = random_points(12, seed=99)
    assert max(median_errors(calibrated.twin.accelerator, points)) < 0.03
    assert median_errors(H100, points)[1] > 0.03


def test_trials_left_out_are_as_far_off_as_new_ones(calibrated: Calibration) -> None:
    """Errors of trials left out are no smaller than in sample, below 3 % in the median, and far below the base's."""
    held_out, in_sample, before = calibrated.twin.held_out, calibrated.twin.in_sample, calibrated.before
    assert held_out.power is not None
    assert in_sample.power is not None
    assert before.power is not None
    assert in_sample.seconds.median <= held_out.seconds.median < 0.03
    assert in_sample.power.median <= held_out.power.median < 0.03
    assert held_out.seconds.median < before.seconds.median / 2
    assert held_out.power.median < before.power.median / 2


def test_what_the_trials_tell(calibrated: Calibration) -> None:
    """Coefficients that matter here are told and near the truth; those of experts and links stay the base's."""
    twin = calibrated.twin
    for name in ("weight_factor", "gemm_16_factor", "compute_w", "voltage_per_ghz"):
        assert name not in twin.untold
        assert getattr(twin.coefficients, name) == pytest.approx(getattr(SECRET.coefficients, name), rel=0.1)
    for name in ("expert_16_s", "scale_up_s", "gemm_4_factor", "regulated_share"):
        assert name in twin.untold
        assert getattr(twin.coefficients, name) == getattr(H100.coefficients, name)


def test_provenance(calibrated: Calibration) -> None:
    """A twin says which device, engine, driver and jobs it was fitted to."""
    of = calibrated.twin.provenance
    assert (of.device_uuid, of.driver, of.engine) == ("SIM-H100-SXM-X1", "simulation 1", "simulated 1")
    assert (of.job_ids, of.num_trials, of.created_at) == ((JOB_ID,), 24, NOW)
    assert calibrated.left_out == ()


def test_few_trials_stay_near_the_base(roughly: Calibration, calibrated: Calibration) -> None:
    """With the fewest trials allowed, more coefficients are left to the base than with three times as many."""
    assert set(roughly.twin.untold) > set(calibrated.twin.untold)


def test_the_same_trials_give_the_same_twin(few: JobTrials, roughly: Calibration) -> None:
    """Nothing in a calibration is left to chance."""
    assert roughly == calibrated_in_parts(2, few)


def test_measured_idle_power_is_taken_over(few: JobTrials) -> None:
    """The twin idles at the median of what the jobs measured, per GPU."""
    found = calibrated_in_parts(2, with_measurements(few, idle_power_w=131.0))
    assert found.twin.idle_loaded_w == 131.0


def with_measurements(job: JobTrials, **changes: object) -> JobTrials:
    """The job with the same change in what each trial measured."""

    def of(measurement: Measurement | None) -> Measurement:
        assert measurement is not None
        return replace(measurement, **changes)  # type: ignore[arg-type] # whichever fields a test names

    return replace(job, trials=tuple(replace(one, measurement=of(one.measurement)) for one in job.trials))


def refusal(jobs: Sequence[JobTrials], info: DeviceInfo | None = None) -> str:
    with pytest.raises(InvalidRequest) as caught:
        calibrate(jobs, info or SimulatedDevice(SECRET).info, H100, now=NOW)
    return str(caught.value)


def test_too_few_trials(secret_job: JobTrials) -> None:
    """Seven trials are refused, and the message says how many are needed."""
    assert refusal([replace(secret_job, trials=secret_job.trials[:7])]) == (
        "trials is 7: 8 or more usable ones are needed; tune longer"
    )


def test_no_trials() -> None:
    """No job at all is refused the same way."""
    assert refusal([]) == "trials is 0: 8 or more usable ones are needed; tune longer"


def test_one_batch(secret_job: JobTrials) -> None:
    """Trials that all ran as many requests cannot tell a step's cost from a request's, and are refused."""
    job = with_measurements(secret_job, mean_running=64.0)
    assert "'64 to 64 requests at once'" in refusal([job])


def test_mixed_drivers(secret_job: JobTrials) -> None:
    """Trials of another driver than the latest job's are left out, and the refusal says so."""
    old = with_measurements(secret_job, driver="simulation 0")
    new = replace(secret_job, trials=secret_job.trials[:3])
    assert "left out 24: measured under driver simulation 0, the latest trial under simulation 1" in refusal([new, old])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"method": Method.ESTIMATE}, "its energy is an estimate, nothing was measured"),
        ({"scope": Scope.MEMORY}, "its energy is that of memory, not of the GPU"),
    ],
)
def test_energy_that_is_no_gpus(secret_job: JobTrials, change: dict[str, object], reason: str) -> None:
    """Estimates, and energies of something else, are no base for a twin."""
    measurement = secret_job.trials[0].measurement
    assert measurement is not None
    job = with_measurements(secret_job, reading=replace(measurement.reading, **change))  # type: ignore[arg-type] # whichever fields a test names
    assert f"left out 24: {reason}" in refusal([job])


def test_simulated_trials_make_no_twin_of_a_gpu(secret_job: JobTrials) -> None:
    """Simulated trials never count as a real GPU's."""
    info = make_info("NVIDIA H100 80GB HBM3")
    assert "its energy is simulated, the device is not" in refusal([secret_job], info)


def test_cpu_is_refused(secret_job: JobTrials) -> None:
    """A CPU has no place in the model, and is refused before anything is fitted."""
    info = make_info("AMD EPYC", kind=DeviceKind.CPU)
    assert refusal([secret_job], info) == "device is 'GPU-1': AMD EPYC is a CPU; only accelerators can be simulated"
    with pytest.raises(InvalidRequest, match="is a CPU"):
        base_of(info)


def make_info(name: str, **changes: object) -> DeviceInfo:
    info = DeviceInfo(uuid="GPU-1", name=name, kind=DeviceKind.GPU, driver="580.1")
    return replace(info, **changes)  # type: ignore[arg-type] # whichever fields a test names


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200-sxm"),
        ("4 x NVIDIA H200", "h200-sxm"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB200", "gb200-nvl72"),
        ("NVIDIA GB300", "gb300-nvl72"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
    ],
)
def test_names_of_drivers(name: str, key: str) -> None:
    """The accelerator is known by the name that the driver gives it."""
    assert base_of(make_info(name)).key == key


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA A100 80GB PCIe",
        "NVIDIA GH200 480GB",
        "NVIDIA H200 NVL",
        "NVIDIA L40",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "1 x NVIDIA B200 + 1 x NVIDIA H200",
        "AMD Instinct MI300X",
    ],
)
def test_other_names_are_asked_for(name: str) -> None:
    """What is like none of the accelerators, or like several, is not guessed: the message lists them."""
    with pytest.raises(InvalidRequest, match=r"--base: a100-sxm-80, .*rtx-pro-6000$"):
        base_of(make_info(name))


def test_a_part_of_a_gpu_is_not_guessed() -> None:
    """A MIG instance is not the GPU whose name it has."""
    with pytest.raises(InvalidRequest, match="--base"):
        base_of(make_info("NVIDIA H100 80GB HBM3", details=(("is_mig", "True"),)))


def test_a_simulated_device_says_what_it_is() -> None:
    """The base of a simulated device is the accelerator it simulates."""
    assert base_of(SimulatedDevice(SECRET).info).key == "h100-sxm"
