"""A whole trial on a simulated device: virtual time, caps, loads, determinism, and what is labelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import CheckpointError, UnknownModel
from probes.device import Method
from probes.errors import UnknownDevice
from probes.settings import SM_CLOCK_CAP, DeviceSettings
from tests.tuner.simulated import WINDOW, make_simulated, open_bench
from tuner.bench import Outcome
from tuner.errors import InvalidRequest
from tuner.measurement import Measurement
from tuner.point import OperatingPoint
from tuner.request import KnobValue, TuneRequest, WorkloadSpec
from tuner.simulation import open_simulation
from tuner.trial import TrialState
from tuner.workload import OFFLINE_FACTOR


def measured(request: TuneRequest, **knobs: KnobValue) -> Measurement:
    outcome = tried(request, **knobs)
    assert (outcome.state, outcome.reason, outcome.detail) == (TrialState.COMPLETE, None, None)
    assert outcome.measurement is not None
    return outcome.measurement


def tried(request: TuneRequest, **knobs: KnobValue) -> Outcome:
    return open_bench(request).measure(OperatingPoint.of({"max_batch": 8, **knobs}))


def figures(measurement: Measurement) -> Sequence[object]:
    return measurement.tok_per_j, measurement.output_tok_s, measurement.tpot, measurement.ttft


def test_a_trial_is_simulated_from_end_to_end() -> None:
    """The figures come from the device's model, in its virtual seconds, and nothing about them says measured."""
    measurement = measured(make_simulated())
    assert measurement.reading.method is Method.SIMULATED
    assert measurement.reading.is_estimate
    assert measurement.engine.engine == "simulated"
    assert measurement.quality is None
    assert measurement.mean_running == pytest.approx(8, abs=0.2)
    assert measurement.window_s >= 2.0
    assert measurement.tok_per_j is not None


def test_the_same_seed_gives_the_same_figures_whatever_ran_before() -> None:
    """A point measured alone and after others has the same figures; another seed of the job changes them a little."""
    bench = open_bench(make_simulated())
    bench.measure(OperatingPoint.of({"max_batch": 2}))
    after = bench.measure(OperatingPoint.of({"max_batch": 8})).measurement
    alone = measured(make_simulated())
    assert after is not None
    assert figures(alone) == figures(after)
    other = measured(make_simulated(seed=1))
    assert figures(alone) != figures(other)
    assert alone.output_tok_s.value == pytest.approx(other.output_tok_s.value, rel=0.05)


def test_a_clock_cap_is_in_force_and_given_back() -> None:
    """Under a cap the clock is at most the cap in every look, and afterwards nothing is set."""
    request = make_simulated()
    simulation = open_simulation(request)
    rig = simulation.open_rig()
    with rig.applied(DeviceSettings(sm_clock_cap_mhz=990)):
        assert simulation.device.settings == DeviceSettings(sm_clock_cap_mhz=990)
    assert simulation.device.settings == DeviceSettings()
    capped = measured(request, **{SM_CLOCK_CAP: 990})
    assert capped.reading.conditions[0].highest_clock_mhz == 990
    free = measured(request)
    assert free.reading.conditions[0].highest_clock_mhz is not None
    assert free.reading.conditions[0].highest_clock_mhz > 990


def test_idle_power_is_that_of_a_loaded_device() -> None:
    """It is simulated once a job, above nothing and below the load's; and no figure hangs on whether it was."""
    with_idle = measured(make_simulated(window=replace(WINDOW, idle_s=30.0)))
    without = measured(make_simulated())
    assert without.idle_power_w is None
    assert with_idle.idle_power_w is not None
    assert with_idle.mean_power_w is not None
    assert 0 < with_idle.idle_power_w < with_idle.mean_power_w
    assert figures(with_idle) == figures(without)


def test_a_cap_costs_time_and_saves_power() -> None:
    """At half the clock a decoding GPU draws less and is slower."""
    free, capped = measured(make_simulated()), measured(make_simulated(), **{SM_CLOCK_CAP: 990})
    assert free.mean_power_w is not None
    assert capped.mean_power_w is not None
    assert capped.mean_power_w < free.mean_power_w
    assert capped.output_tok_s.value < free.output_tok_s.value


@pytest.mark.parametrize(
    ("workload", "running"),
    [
        ({"concurrency": 3}, 3),
        ({"scenario": "offline"}, 8),
        ({"scenario": "server", "rate_per_s": 400.0}, 8),
    ],
    ids=str,
)
def test_a_load_fills_the_batch_as_far_as_it_goes(workload: dict[str, Any], running: int) -> None:
    """Closed loads keep their number running, a backlog and an overload as many as the batch has room for."""
    spec = WorkloadSpec(prompt_tokens=(32, 64), output_tokens=(16, 32), **workload)
    outcome = tried(make_simulated(workload=spec))
    assert outcome.measurement is not None
    assert outcome.measurement.mean_running == pytest.approx(running, abs=0.2)


def test_offline_requests_wait_their_turn() -> None:
    """With twice as many in flight as run, time to first token is a wait, and throughput is the same as without."""
    spec = WorkloadSpec(prompt_tokens=(32, 64), output_tokens=(16, 32))
    closed = measured(make_simulated(workload=spec))
    offline = measured(make_simulated(workload=replace(spec, scenario="offline")))
    assert OFFLINE_FACTOR == 2
    assert closed.output_tok_s.value == pytest.approx(offline.output_tok_s.value, rel=0.05)
    assert closed.ttft.p50 is not None
    assert offline.ttft.p50 is not None
    assert offline.ttft.p50.value > 3 * closed.ttft.p50.value


def test_an_overload_is_no_operating_point() -> None:
    """Where requests come faster than they are served no limit need be missed for the point to be infeasible."""
    spec = WorkloadSpec(scenario="server", rate_per_s=400.0, prompt_tokens=(32, 64), output_tokens=(16, 32))
    outcome = tried(make_simulated(workload=spec))
    assert (outcome.state, outcome.reason) == (TrialState.INFEASIBLE, "overloaded")
    assert outcome.detail is not None
    assert "more were waiting at the window's end" in outcome.detail
    assert tried(make_simulated(workload=replace(spec, rate_per_s=4.0))).state is TrialState.COMPLETE


def test_a_trace_is_served(tmp_path: Path) -> None:
    """Requests of a trace come as recorded, in a context that holds the longest."""
    lines = [f'{{"timestamp": {200 * i}, "input_length": {100 + i}, "output_length": 9}}' for i in range(40)]
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    spec = WorkloadSpec(scenario="trace", trace_file=str(tmp_path / "trace.jsonl"))
    measurement = measured(make_simulated(workload=spec))
    assert measurement.num_finished / measurement.window_s == pytest.approx(5, abs=0.6)
    assert measurement.engine.max_context >= 139 + 9


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"tensor_parallel": 8, "data_parallel": 2}, "invalid_settings"),
        ({"tensor_parallel": 1, "data_parallel": 1}, "out_of_memory"),
    ],
    ids=["more GPUs than there are", "more weights than memory"],
)
def test_a_layout_that_does_not_fit_costs_one_trial(knobs: dict[str, KnobValue], reason: str) -> None:
    """Such a point has failed by name, and the next one of the same job is measured."""
    bench = open_bench(make_simulated(model="llama-3.1-70b", device="simulated:h100-sxm:8"))
    outcome = bench.measure(OperatingPoint.of(knobs))
    assert (outcome.state, outcome.reason) == (TrialState.FAILED, reason)
    fits = OperatingPoint.of({"max_batch": 8, "tensor_parallel": 4, "data_parallel": 2})
    assert bench.measure(fits).state is TrialState.COMPLETE


def test_a_model_must_have_the_context() -> None:
    """A workload longer than the model's context is refused with both numbers; nothing is truncated."""
    workload = WorkloadSpec(prompt_tokens=(1, 131_072), output_tokens=(1, 1))
    with pytest.raises(InvalidRequest, match=r"up to 131073 prompt \+ output tokens.* has a context of 131072 tokens"):
        open_simulation(make_simulated(workload=workload))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"device": "simulated:h1000"}, UnknownDevice, "there is no simulated 'h1000'; choose one of"),
        ({"model": "llama-31-8b-x"}, UnknownModel, "llama-3.1-8b"),
        ({"model": "config.json"}, CheckpointError, "config.json"),
    ],
)
def test_what_there_is_not_is_named(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    """Unknown devices and shapes are refused with what there is."""
    with pytest.raises(error, match=words):
        open_simulation(make_simulated(**changes))


def test_a_cap_that_does_not_hold_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the clock stays above its cap the trial is invalid and nothing is measured under its name."""
    request = make_simulated()
    simulation = open_simulation(request)
    watch = simulation.open_rig().watch(DeviceSettings(sm_clock_cap_mhz=990), "seed")
    status = simulation.device.status()
    monkeypatch.setattr(type(simulation.device), "status", lambda _: replace(status, clock_mhz=1005.0))
    assert watch.unattained() == ("clock_not_attained",)
    monkeypatch.setattr(type(simulation.device), "status", lambda _: replace(status, clock_mhz=990.0))
    assert watch.unattained() == ()
