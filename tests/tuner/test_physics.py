"""The small physical model: laws that it cannot break, figures of its own parts, and simulated trials."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import truth_sets
from tests.tuner.factories import make_request
from tuner.physics import (
    TOK_PER_J,
    Array,
    PhysicalModel,
    Work,
    _energy_parts,
    _factors,
    _latency_parts,
    _running,
    _step_parts,
)
from tuner.point import OperatingPoint
from tuner.request import KnobValue, WorkloadSpec

LATENCY = "tpot_p99_ms"
CLOSED = make_request().workload
HIGHEST = {"max_batch": 256.0, "sm_clock_cap_mhz": 2000.0}
#: Factors of any machine: some parts may be missing, none is negative.
factors = st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 10.0)), min_size=30, max_size=30).map(np.array)
batches = st.integers(1, 256)
clocks = st.integers(500, 2000)
workloads = st.one_of(
    st.just(CLOSED), st.floats(0.1, 100.0).map(lambda rate: WorkloadSpec(scenario="server", rate_per_s=rate))
)


def work_of(*points: Mapping[str, KnobValue], workload: WorkloadSpec = CLOSED) -> Work:
    return Work.of([OperatingPoint.of(point) for point in points], workload, HIGHEST)


def grid(workload: WorkloadSpec = CLOSED) -> Work:
    """Batches, precisions and clocks, all with all."""
    return work_of(
        *(
            {"max_batch": batch, "precision": precision, "sm_clock_cap_mhz": clock}
            for batch in (1, 4, 16, 64)
            for precision in ("bf16", "fp8")
            for clock in (800, 1200, 2000)
        ),
        workload=workload,
    )


def model_of(factors: Array) -> PhysicalModel:
    """A machine with these factors, and a little of everything fixed so that nothing is free."""
    step, energy, latency = factors[:6].copy(), factors[6:12].copy(), factors[12:23].copy()
    step[-1] += 0.1
    energy[0] += 0.1
    latency[5] += 0.1
    return PhysicalModel(step=step, tok_per_j=energy, latencies={LATENCY: latency})


class TestLaws:
    """What holds whatever the factors are."""

    @settings(deadline=None, max_examples=30)
    @given(factors=factors, batch=batches, low=clocks, high=clocks, workload=workloads)
    def test_a_higher_clock_is_never_slower(
        self, factors: Array, batch: int, low: int, high: int, workload: WorkloadSpec
    ) -> None:
        """Of two points that differ in clock alone, the one with the higher clock has no longer step."""
        low, high = sorted((low, high))
        steps = step_ms(
            model_of(factors),
            work_of(
                {"max_batch": batch, "sm_clock_cap_mhz": low},
                {"max_batch": batch, "sm_clock_cap_mhz": high},
                workload=workload,
            ),
        )
        assert steps[1] <= steps[0] * (1 + 1e-9)

    @settings(deadline=None, max_examples=30)
    @given(factors=factors, batch=batches, clock=clocks, workload=workloads)
    def test_more_bits_are_never_faster(self, factors: Array, batch: int, clock: int, workload: WorkloadSpec) -> None:
        """Weights of 16 bits take no shorter step than those of 8, and those than 4.5."""
        steps = step_ms(
            model_of(factors),
            work_of(
                *(
                    {"max_batch": batch, "sm_clock_cap_mhz": clock, "precision": precision}
                    for precision in ("nvfp4", "fp8", "bf16")
                ),
                workload=workload,
            ),
        )
        assert steps[0] * (1 - 1e-9) <= steps[1] <= steps[2] * (1 + 1e-9)

    @settings(deadline=None, max_examples=30)
    @given(factors=factors, few=batches, many=batches, clock=clocks, workload=workloads)
    def test_a_larger_batch_never_has_a_shorter_step(
        self, factors: Array, few: int, many: int, clock: int, workload: WorkloadSpec
    ) -> None:
        """A step with more sequences in it takes no less time."""
        few, many = sorted((few, many))
        steps = step_ms(
            model_of(factors),
            work_of(
                {"max_batch": few, "sm_clock_cap_mhz": clock},
                {"max_batch": many, "sm_clock_cap_mhz": clock},
                workload=workload,
            ),
        )
        assert steps[0] <= steps[1] * (1 + 1e-9)

    @settings(deadline=None, max_examples=30)
    @given(
        figures=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8),
        seed=st.integers(0, 1000),
    )
    def test_factors_are_never_negative(self, figures: list[float], seed: int) -> None:
        """Whatever the figures are, no part is given a negative factor, and no figure a negative sum."""
        parts = np.random.default_rng(seed).random((len(figures), 5))
        found = _factors(parts, np.array(figures))
        assert np.all(found >= 0)
        assert np.all(parts @ found > 0)

    @settings(deadline=None, max_examples=30)
    @given(figures=st.lists(st.floats(1e-2, 1e2), min_size=24, max_size=24).map(np.array), workload=workloads)
    def test_any_figures_give_a_model_that_answers(self, figures: Array, workload: WorkloadSpec) -> None:
        """Figures that no physics could explain still give a model with finite figures everywhere."""
        model = PhysicalModel.fit(
            grid(workload),
            log_step_ms=np.log(figures),
            log_tok_per_j=np.log(figures),
            log_latencies={LATENCY: -figures},
        )
        means = model.means(grid(workload))
        assert {TOK_PER_J, LATENCY} == set(means)
        assert all(np.all(np.isfinite(mean)) for mean in means.values())


def step_ms(model: PhysicalModel, work: Work) -> Array:
    """A step's time, read off a latency that is a step and nothing else."""
    latency = np.zeros_like(model.latencies[LATENCY])
    latency[:6] = model.step
    return np.exp(dataclasses.replace(model, latencies={LATENCY: latency}).means(work)[LATENCY])


class TestArrivals:
    """How many sequences run at once where requests come at their own times."""

    @settings(deadline=None)
    @given(rate=st.floats(0.01, 1000.0), step=st.floats(0.1, 500.0), batch=batches)
    def test_littles_law(self, rate: float, step: float, batch: int) -> None:
        """As many run as arrive while one is served, one in ten seconds at least, and never more than may."""
        workload = WorkloadSpec(scenario="server", rate_per_s=rate, output_tokens=(100, 100))
        running = _running(work_of({"max_batch": batch}, workload=workload), np.array([step]))
        assert min(batch, max(rate * 100 * step / 1e3, 0.1)) == pytest.approx(float(running[0]))

    @settings(deadline=None, max_examples=30)
    @given(factors=factors, rate=st.floats(0.1, 50.0), batch=batches)
    def test_batch_and_speed_agree_when_it_is_found(self, factors: Array, rate: float, batch: int) -> None:
        """The step that is found is that of the batch which arrivals at this step make."""
        workload = WorkloadSpec(scenario="server", rate_per_s=rate, output_tokens=(100, 100))
        work = work_of({"max_batch": batch, "sm_clock_cap_mhz": 1500}, workload=workload)
        model = model_of(factors)
        steps = step_ms(model, work)
        assert steps == pytest.approx(_step_parts(work, _running(work, steps)) @ model.step)

    def test_requests_kept_in_flight_fill_the_batch(self) -> None:
        """Without arrivals as many run as may, or as are in flight."""
        assert _running(work_of({"max_batch": 16}), np.array([3.0])).tolist() == [16.0]
        few = work_of({"max_batch": 16}, workload=WorkloadSpec(concurrency=5))
        assert _running(few, np.array([3.0])).tolist() == [5.0]


class TestFit:
    """What is found from figures."""

    @pytest.mark.parametrize("workload", [CLOSED, WorkloadSpec(scenario="server", rate_per_s=1.0)])
    @pytest.mark.parametrize("seed", range(3))
    def test_figures_of_its_own_parts_are_found_again(self, workload: WorkloadSpec, seed: int) -> None:
        """Figures of a machine of this kind are found to 20 % at worst, half of those not seen to 6 %."""
        work = grid(workload)
        machine = model_of(np.random.default_rng(seed).random(30))
        known, unknown = np.split(np.random.default_rng(seed).permutation(24), [12])
        truth = machine.means(work)
        steps = np.log(step_ms(machine, work))
        model = PhysicalModel.fit(
            work.at(known),
            log_step_ms=steps[known],
            log_tok_per_j=truth[TOK_PER_J][known],
            log_latencies={LATENCY: truth[LATENCY][known]},
        )
        found = model.means(work)
        for name in (TOK_PER_J, LATENCY):
            away = np.abs(found[name] - truth[name])
            assert float(away.max()) < 0.2, name
            assert float(np.median(away[unknown])) < 0.06, name

    def test_one_trial_is_enough_to_say_something_sensible(self) -> None:
        """From one point the model meets its figures, and says that twice the clock is faster, half the bits too."""
        here: dict[str, KnobValue] = {"max_batch": 16, "precision": "bf16", "sm_clock_cap_mhz": 1000}
        model = PhysicalModel.fit(
            work_of(here),
            log_step_ms=np.log([20.0]),
            log_tok_per_j=np.log([3.0]),
            log_latencies={LATENCY: np.log([25.0])},
        )
        means = model.means(work_of(here, here | {"sm_clock_cap_mhz": 2000}, here | {"precision": "fp8"}))

        assert np.exp([means[TOK_PER_J][0], means[LATENCY][0]]) == pytest.approx([3.0, 25.0], rel=0.05)
        assert np.all(np.exp(means[LATENCY][1:]) < 25.0)
        assert np.all(np.exp(means[LATENCY][1:]) > 5.0)
        assert np.exp(means[TOK_PER_J][2]) > 3.0

    def test_parts_have_the_shapes_that_factors_need(self) -> None:
        """Step, energy and latency have 6, 6 and 11 parts, none of them negative."""
        work = grid()
        step = np.full(24, 3.0)
        parts = [
            _step_parts(work, work.max_batch),
            _energy_parts(work, work.max_batch, step),
            _latency_parts(work, work.max_batch, step),
        ]
        assert [one.shape for one in parts] == [(24, 6), (24, 6), (24, 11)]
        assert all(np.all(one >= 0) for one in parts)


@pytest.fixture(scope="module")
def truth() -> truth_sets.Truth:
    return truth_sets.load("h100-8b-chat")


class TestSimulatedTrials:
    """Against figures of simulated devices, which know far more physics than this model."""

    @pytest.mark.parametrize("seed", range(4))
    def test_eight_trials_tell_energy_of_the_rest(self, truth: truth_sets.Truth, seed: int) -> None:
        """From eight random points inside or outside the limits, half of all others are predicted within 15 %."""
        points = truth.points()
        usable = [i for i in range(len(points)) if np.isfinite(truth.figures["tok_per_j"][i])]
        draw = random.Random(seed)
        known, others = draw.sample(usable, 8), draw.sample(usable, 400)
        model = fitted(truth, [points[i] for i in known], known)
        found = model.means(worked(truth, [points[i] for i in others]))[TOK_PER_J]

        away = np.abs(np.exp(found) / truth.figures["tok_per_j"][others].astype(np.float64) - 1.0)
        assert float(np.median(away)) < 0.15


def worked(truth: truth_sets.Truth, points: Sequence[OperatingPoint]) -> Work:
    landscape = next(one for one in truth_sets.landscapes() if one.name == truth.name)
    highest = {
        name: max(float(value) for value in values)
        for name, values in truth.knobs.items()
        if not isinstance(values[0], str)
    }
    return Work.of(points, landscape.request.workload, highest)


def fitted(truth: truth_sets.Truth, points: Sequence[OperatingPoint], rows: Sequence[int]) -> PhysicalModel:
    logs = {name: np.log(figures[rows].astype(np.float64)) for name, figures in truth.figures.items()}
    return PhysicalModel.fit(
        worked(truth, points),
        log_step_ms=logs["tpot_p50_ms"],
        log_tok_per_j=logs["tok_per_j"],
        log_latencies={LATENCY: logs[LATENCY]},
    )
