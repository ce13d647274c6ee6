"""Trials of a simulated GPU, whose steps are known, as observations of mean steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.simulated.shapes import load_shape
from probes.device import Conditions
from probes.simulated.device import SimulatedDevice
from probes.simulated.fit import predict
from tests.tuner.simulated_trials import H100, JOB_ID, Point, chat_request, run_trials
from tuner.observations import JobTrials, LeftOut, Seen, _served, observe
from tuner.request import TuneRequest, WorkloadSpec
from tuner.trial import Trial, TrialState

LONG_PROMPTS = WorkloadSpec(prompt_tokens=(1000, 3000), output_tokens=(50, 150))


def seen_of(request: TuneRequest, points: Sequence[Point], *, num_gpus: int = 1) -> tuple[Seen, ...]:
    job = run_trials(request, SimulatedDevice(H100, num_gpus=num_gpus, noise=0.0), points)
    seen, left_out = observe([job], H100, num_gpus)
    assert left_out == ()
    return seen


def errors_of(seen: Sequence[Seen]) -> tuple[list[float], list[float]]:
    """By how much the true model misses each trial's step and power: what was lost on the way."""
    observations = [one.observation for one in seen]
    predicted = predict(observations, H100, H100.coefficients)
    seconds = [step_s / one.seconds - 1 for one, (step_s, _) in zip(observations, predicted, strict=True)]
    watts = [step_w / one.power_w - 1 for one, (_, step_w) in zip(observations, predicted, strict=True) if one.power_w]
    assert len(observations) == len(watts)
    return seconds, watts


def changed_trial(job: JobTrials, **changes: object) -> JobTrials:
    """The job with its first trial changed, in the trial itself or in what it measured."""
    trial = job.trials[0]
    assert trial.measurement is not None
    of_trial = {name: value for name, value in changes.items() if name in Trial.__dataclass_fields__}
    of_measurement = {name: value for name, value in changes.items() if name not in of_trial}
    measurement = replace(trial.measurement, **of_measurement)  # type: ignore[arg-type] # whichever fields a test names
    return replace(job, trials=(replace(trial, measurement=measurement, **of_trial),))  # type: ignore[arg-type] # whichever fields a test names


@pytest.fixture(scope="module")
def one_trial() -> JobTrials:
    return run_trials(chat_request(), SimulatedDevice(H100, noise=0.0), [{"max_batch": 64}])


@pytest.mark.parametrize(
    ("workload", "policy"),
    [
        (chat_request().workload, "decode_first"),
        (LONG_PROMPTS, "decode_first"),
        (LONG_PROMPTS, "prefill_first"),
        (replace(LONG_PROMPTS, scenario="offline"), "decode_first"),
        (replace(chat_request().workload, scenario="server", rate_per_s=10.0), "decode_first"),
    ],
)
def test_the_mean_step_is_found_again(workload: WorkloadSpec, policy: str) -> None:
    """The model that made the trials predicts their mean step and power to 3 %, whatever load, chunk and clock."""
    points: list[Point] = [
        {"max_batch": 1, "prefill_chunk": 8192, "policy": policy},
        {"max_batch": 16, "prefill_chunk": 512, "policy": policy},
        {"max_batch": 64, "prefill_chunk": 2048, "sm_clock_cap_mhz": 1200, "policy": policy},
        {"max_batch": 128, "prefill_chunk": 8192, "precision": "fp8", "policy": policy},
    ]
    seconds, watts = errors_of(seen_of(chat_request(workload=workload), points))
    assert max(map(abs, seconds)) < 0.03
    assert max(map(abs, watts)) < 0.03


def test_gpus_without_a_replica_do_not_count() -> None:
    """Of a device of four GPUs of which two are used, the watts are those of one GPU at work."""
    points: list[Point] = [
        {"max_batch": 32, "precision": "bf16", "tensor_parallel": 2, "data_parallel": 1},
        {"max_batch": 32, "precision": "bf16", "tensor_parallel": 1, "data_parallel": 4},
    ]
    seconds, watts = errors_of(seen_of(chat_request(model="qwen3-30b-a3b"), points, num_gpus=4))
    assert max(map(abs, seconds)) < 0.03
    assert max(map(abs, watts)) < 0.03


def test_gaps_between_requests_are_taken_out() -> None:
    """Where the GPU idles most of the time, the observation is still that of its steps."""
    workload = replace(chat_request().workload, scenario="server", rate_per_s=0.2, output_tokens=(50, 100))
    window = replace(chat_request().window, window_s=60.0, max_window_s=120.0)
    request = chat_request(workload=workload, window=window)
    (seconds,), (watts,) = errors_of(seen_of(request, [{"max_batch": 8, "precision": "bf16"}]))
    assert abs(seconds) < 0.03
    assert abs(watts) < 0.06


@pytest.mark.parametrize(
    ("mean_clock_mhz", "cap_mhz", "expected_mhz"),
    [
        (None, None, None),
        (1980.0, None, None),
        (1950.0, None, None),  # some steps were power-limited
        (1610.0, None, 1605.0),  # all were
        (None, 1200, 1200.0),
        (1200.0, 1200, 1200.0),
        (1050.0, 1200, 1050.0),
        (1965.0, 1965, 1965.0),
    ],
)
def test_clock(
    one_trial: JobTrials, mean_clock_mhz: float | None, cap_mhz: int | None, expected_mhz: float | None
) -> None:
    """The clock is the one seen, else the cap; where only the power limit may have held it, the model says."""
    trial = one_trial.trials[0]
    assert trial.measurement is not None
    conditions = Conditions(device_uuid="SIM", num_samples=80, mean_clock_mhz=mean_clock_mhz)
    reading = replace(trial.measurement.reading, conditions=(conditions,))
    knobs = {} if cap_mhz is None else {"sm_clock_cap_mhz": cap_mhz}
    point = trial.point.of({**trial.point.as_dict(), **knobs})
    (seen,), _ = observe([changed_trial(one_trial, reading=reading, point=point)], H100, 1)
    assert seen.observation.clock_mhz == expected_mhz


def test_without_energy_time_remains(one_trial: JobTrials) -> None:
    """A trial whose energy could not be had is an observation of time alone."""
    (seen,), _ = observe([changed_trial(one_trial, mean_power_w=None)], H100, 1)
    assert seen.observation.power_w is None


def test_trials_over_a_limit_count(one_trial: JobTrials) -> None:
    """A point that broke a latency limit was measured as well as any other."""
    seen, left_out = observe([changed_trial(one_trial, state=TrialState.INFEASIBLE, reason="sla:x")], H100, 1)
    assert [one.number for one in seen] == [0]
    assert left_out == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": TrialState.INVALID, "reason": "hw_thermal"}, "invalid: hw_thermal"),
        ({"reasons": ("no_steady_state",)}, "complete: no_steady_state"),
        ({"output_tokens": 0}, "no token came"),
        ({"num_preemptions": 40, "num_finished": 100}, "40 requests were preempted and computed anew"),
    ],
)
def test_left_out(one_trial: JobTrials, changes: dict[str, object], reason: str) -> None:
    """A trial that tells nothing of a mean step is left out with the reason."""
    seen, left_out = observe([changed_trial(one_trial, **changes)], H100, 1)
    assert seen == ()
    assert left_out == (LeftOut(job_id=JOB_ID, number=0, reason=reason),)


def test_trials_that_never_were_are_not_mentioned(one_trial: JobTrials) -> None:
    """A trial without a measurement is neither seen nor left out."""
    failed = replace(one_trial.trials[0], measurement=None, state=TrialState.FAILED)
    assert observe([replace(one_trial, trials=(failed,))], H100, 1) == ((), ())


def test_layouts_that_the_accelerator_cannot_run_are_left_out(one_trial: JobTrials) -> None:
    """A precision that the base accelerator lacks is left out in the engine's words, not raised."""
    point = one_trial.trials[0].point.of({"max_batch": 8, "precision": "nvfp4"})
    seen, (left_out,) = observe([changed_trial(one_trial, point=point)], H100, 1)
    assert seen == ()
    assert "nvfp4" in left_out.reason


def test_separate_pools_are_left_out() -> None:
    """Prompts on GPUs of their own make two kinds of steps at once, which a window cannot tell apart."""
    request = chat_request()
    job = run_trials(request, SimulatedDevice(H100, num_gpus=2, noise=0.0), [{"max_batch": 16, "prefill_gpus": 1}])
    seen, (left_out,) = observe([job], H100, 2)
    assert seen == ()
    assert "GPUs of their own" in left_out.reason


@given(st.floats(0.001, 12.0), st.integers(1, 40))
def test_served_keeps_what_arrives(mean: float, most: int) -> None:
    """Shares add up to 1, none is above the limit, and as many are served as arrive unless there is no room."""
    served = _served(mean, most)
    assert sum(share for _, share in served) == pytest.approx(1.0, abs=2e-3)
    assert max(number for number, _ in served) <= most
    if mean < 0.8 * most:
        assert sum(number * share for number, share in served) == pytest.approx(mean, rel=0.02, abs=2e-3)


def test_windows_of_local_layers_bound_the_context() -> None:
    """A model with local layers is observed as well as any other."""
    request = chat_request(model="gpt-oss-20b")
    assert load_shape("gpt-oss-20b").window is not None
    seconds, watts = errors_of(seen_of(request, [{"max_batch": 64, "precision": "bf16"}]))
    assert max(map(abs, [*seconds, *watts])) < 0.03
