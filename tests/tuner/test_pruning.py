"""What cannot matter: sizes and caps that do not bind, sizes that do not fit, precisions that fail the gate."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.errors import NotEnoughMemory
from engine.simulated.shapes import load_shape
from probes.simulated.names import open_simulated
from tests.db.factories import make_trial
from tests.tuner.factories import make_knob, make_request
from tests.tuner.simulated import make_simulated
from tuner.bench import Bench
from tuner.evidence import Evidence, Observation
from tuner.grid import Grid
from tuner.point import OperatingPoint
from tuner.pruning import CLOCK_MARGIN, allowed, merged, one_of_each
from tuner.request import KnobValue, TuneRequest, WorkloadSpec
from tuner.simulation import Simulation
from tuner.space import SearchSpace
from tuner.trial import Trial

OOM = NotEnoughMemory.kind
BATCHES = (16, 32, 64, 128, 256)
SPACE = SearchSpace(
    knobs=(
        make_knob("max_batch", BATCHES),
        make_knob("precision", ("bf16", "fp8")),
        make_knob("prefill_chunk", (512, 2048), needs_launch=False),
        make_knob("sm_clock_cap_mhz", (1000, 1500, 2000), needs_launch=False),
    )
)
GRID = Grid.of(SPACE, make_request().workload, seed="0")


def point_of(**changes: KnobValue) -> OperatingPoint:
    """256 at once in bf16 with chunks of 512 at 1500 MHz, or what is changed of it."""
    usual: dict[str, KnobValue] = {
        "max_batch": 256, "precision": "bf16", "prefill_chunk": 512, "sm_clock_cap_mhz": 1500
    }  # fmt: skip
    return OperatingPoint.of(usual | changes)


def observed(peak: int | None, **changes: KnobValue) -> Observation:
    """A point with the most sequences that ran at once."""
    return shown_at(point_of(**changes), peak)


def shown_at(point: OperatingPoint, peak: int | None = None) -> Observation:
    return Observation(
        point=point,
        num_windows=1,
        log_tok_per_j=0.0,
        log_latency_ms=math.log(20.0),
        log_step_ms=None,
        log_limits={},
        is_feasible=True,
        peak_running=peak,
        is_power_capped=None,
        highest_clock_mhz=None,
    )


def evidence(**changes: Any) -> Evidence:
    return Evidence(**({"observations": (), "failures": {}, "refused": ()} | changes))


def stands_for(*observations: Observation, **changes: KnobValue) -> KnobValue:
    """The batch size that a point's counts as."""
    same = merged(GRID, observations)
    return same.points[GRID.index[point_of(**changes)]]["max_batch"]


class TestIdleRoom:
    """Batch sizes that were never reached."""

    def test_sizes_above_the_peak_are_the_same(self) -> None:
        """Where at most 60 ran at once, 64, 128 and 256 are one point, and 16 and 32 are their own."""
        assert [stands_for(observed(60), max_batch=batch) for batch in BATCHES] == [16, 32, 64, 64, 64]

    def test_a_peak_of_a_size_itself_leaves_it(self) -> None:
        """Where exactly 64 ran at once, 64 may have bound; 128 and 256 are one point."""
        assert [stands_for(observed(64), max_batch=batch) for batch in (64, 128, 256)] == [64, 128, 128]

    def test_at_a_higher_clock_too_and_not_at_a_lower_one(self) -> None:
        """A faster server runs no more at once; a slower one may."""
        assert [stands_for(observed(60), sm_clock_cap_mhz=clock) for clock in (1000, 1500, 2000)] == [256, 64, 64]

    def test_the_lowest_peak_that_holds_counts(self) -> None:
        """Of peaks at two clocks the lower one holds above its clock, the other between the two."""
        known = (observed(100, sm_clock_cap_mhz=1000), observed(20, sm_clock_cap_mhz=1500))
        assert [stands_for(*known, sm_clock_cap_mhz=clock) for clock in (1000, 1500, 2000)] == [128, 32, 32]

    @pytest.mark.parametrize("changes", [{"precision": "fp8"}, {"prefill_chunk": 2048}])
    def test_not_at_other_knobs(self, changes: dict[str, KnobValue]) -> None:
        """A peak at one precision and chunk says nothing of another."""
        assert stands_for(observed(60), **changes) == 256

    @pytest.mark.parametrize("peak", [None, 256])
    def test_a_full_batch_and_one_that_was_not_counted_say_nothing(self, peak: int | None) -> None:
        """Where as many ran as may, or nobody counted, all sizes are their own."""
        assert merged(GRID, [observed(peak)]) is GRID

    def test_a_space_without_batch_sizes_is_left_alone(self) -> None:
        """Where no batch size is searched there is nothing to fold."""
        grid = Grid.of(SearchSpace(knobs=(make_knob("precision", ("bf16", "fp8")),)), make_request().workload, seed="0")
        assert merged(grid, [observed(60)]) is grid

    def test_indices_stay(self) -> None:
        """Every point keeps its place in the grid; only what it counts as changes."""
        same = merged(GRID, [observed(60)])
        assert len(same.points) == len(GRID.points)
        assert all(
            {name: value for name, value in one.knobs if name != "max_batch"}
            == {name: value for name, value in other.knobs if name != "max_batch"}
            for one, other in zip(same.points, GRID.points, strict=True)
        )

    def test_where_two_clocks_are_searched_both_must_be_as_high(self) -> None:
        """A peak seen at some clock of GPU and of CPU says nothing of a lower one of either."""
        knobs = (
            make_knob("max_batch", (64, 256)),
            make_knob("cpu_clock_cap_mhz", (2000, 3000), needs_launch=False),
            make_knob("sm_clock_cap_mhz", (1000, 2000), needs_launch=False),
        )
        grid = Grid.of(SearchSpace(knobs=knobs), make_request().workload, seed="0")
        fast = OperatingPoint.of({"max_batch": 256, "cpu_clock_cap_mhz": 3000, "sm_clock_cap_mhz": 1000})
        same = merged(grid, [shown_at(fast, 60)])
        assert {point for point, now in zip(grid.points, same.points, strict=True) if point != now} == {
            fast,
            OperatingPoint.of(fast.as_dict() | {"sm_clock_cap_mhz": 2000}),
        }


#: Two launches with power and clock caps.
CAPS = SearchSpace(
    knobs=(
        make_knob("max_batch", (64, 256)),
        make_knob("power_cap_w", (300, 500, 700), needs_launch=False),
        make_knob("sm_clock_cap_mhz", (1000, 1500, 1800, 2000), needs_launch=False),
    )
)
CAPPED = Grid.of(CAPS, make_request().workload, seed="0")
#: Watts and MHz.
Caps = tuple[KnobValue, KnobValue]


def capped(power_w: int, clock_mhz: int, batch: int = 64) -> OperatingPoint:
    return OperatingPoint.of({"max_batch": batch, "power_cap_w": power_w, "sm_clock_cap_mhz": clock_mhz})


def folded(*observations: Observation, batch: int = 64) -> dict[Caps, Caps]:
    """Return the power and clock caps of a batch size that count as others, with those others."""
    same = merged(CAPPED, observations)
    pairs = zip(CAPPED.points, same.points, strict=True)
    return {caps_of(point): caps_of(now) for point, now in pairs if point != now and point["max_batch"] == batch}


def caps_of(point: OperatingPoint) -> Caps:
    return point["power_cap_w"], point["sm_clock_cap_mhz"]


class TestPowerCaps:
    """Power caps that held nothing down."""

    def test_higher_caps_are_the_same_at_this_clock_and_below(self) -> None:
        """Where 500 W do not bind at 1500 MHz, 700 W do not either, nor at 1000 MHz; of 1800 nothing is known."""
        free = replace(shown_at(capped(500, 1500)), is_power_capped=False)
        assert folded(free) == {(700, 1000): (500, 1000), (700, 1500): (500, 1500)}

    def test_the_lowest_cap_that_holds_counts(self) -> None:
        """Of two caps that did not bind the lower one counts, up to the clock at which it was seen."""
        seen = [replace(shown_at(capped(*caps)), is_power_capped=False) for caps in ((500, 2000), (300, 1000))]
        assert folded(*seen) == {
            (500, 1000): (300, 1000),
            (700, 1000): (300, 1000),
            (700, 1500): (500, 1500),
            (700, 1800): (500, 1800),
            (700, 2000): (500, 2000),
        }

    @pytest.mark.parametrize("is_power_capped", [True, None])
    def test_a_cap_that_bound_and_one_of_which_nothing_is_known_stay(self, is_power_capped: bool | None) -> None:
        """Where the cap held clocks down, or nobody can tell, all caps are their own."""
        assert merged(CAPPED, [replace(shown_at(capped(500, 1500)), is_power_capped=is_power_capped)]) is CAPPED

    def test_not_at_another_batch(self) -> None:
        """What does not bind with 64 at once may bind with 256."""
        assert folded(replace(shown_at(capped(500, 1500)), is_power_capped=False), batch=256) == {}

    def test_without_power_caps_there_is_nothing_to_fold(self) -> None:
        """Where no power cap is searched that none bound changes nothing."""
        assert merged(GRID, [replace(observed(None), is_power_capped=False)]) is GRID


class TestClockCaps:
    """Clock caps that were not reached."""

    def test_caps_above_the_clocks_seen_are_the_same(self) -> None:
        """Where 500 W leave 1400 MHz, 1500, 1800 and 2000 are one point, as under 300 W; of 700 W nothing is known."""
        held = replace(shown_at(capped(500, 1800)), highest_clock_mhz=1400.0)
        assert folded(held) == {
            (300, 1800): (300, 1500),
            (300, 2000): (300, 1500),
            (500, 1800): (500, 1500),
            (500, 2000): (500, 1500),
        }

    @pytest.mark.parametrize("clock_mhz", [1485.0, 1500.0, None])
    def test_a_cap_that_may_have_been_reached_stays(self, clock_mhz: float | None) -> None:
        """A clock at its cap or a step of 15 MHz below it may be held by it; so may one that was not seen."""
        assert merged(CAPPED, [replace(shown_at(capped(700, 1500)), highest_clock_mhz=clock_mhz)]) is CAPPED

    def test_a_cap_just_above_the_clocks_seen_is_its_own(self) -> None:
        """Where 1490 MHz were seen below 2000, a cap of 1500 is too near to count as not reached; 1800 is not."""
        near = replace(shown_at(capped(700, 2000)), highest_clock_mhz=1490.0)
        assert (1 + CLOCK_MARGIN) * 1490 > 1500
        assert folded(near) == {(power_w, 2000): (power_w, 1800) for power_w in (300, 500, 700)}

    def test_together_with_batch_sizes(self) -> None:
        """A point whose batch and clock cap both did not bind counts as the least of both."""
        roomy = replace(shown_at(capped(300, 2000, batch=256), peak=60), highest_clock_mhz=1400.0)
        same = merged(CAPPED, [roomy])
        assert same.points[CAPPED.index[capped(300, 2000, batch=256)]] == capped(300, 1500, batch=64)


class TestOneOfEach:
    """One point of those that count as one."""

    def test_the_least_of_them_in_each_launch(self) -> None:
        """Where 64 and 256 at once, and 500 and 700 W, are the same, each launch keeps 500 W: another launch costs."""
        free = replace(shown_at(capped(500, 1500, batch=256), peak=60), is_power_capped=False)
        same = merged(CAPPED, [free])
        left = {point for point, is_left in zip(CAPPED.points, one_of_each(CAPPED, same), strict=True) if is_left}
        assert set(CAPPED.points) - left == {capped(700, 1500, 256), capped(700, 1500, 64), capped(700, 1000, 64)}

    def test_all_where_all_differ(self) -> None:
        """Where nothing is the same every point is left."""
        assert np.all(one_of_each(CAPPED, merged(CAPPED, [])))


class TestOnASimulatedDevice:
    """What counts as one is one, as far as a simulation without noise shows."""

    def test_points_that_count_as_one_show_the_same(self) -> None:
        """Where some power and some clock caps do not bind, each point shows what the one that it counts as shows."""
        knobs = (
            make_knob("power_cap_w", (250, 350, 500, 700), needs_launch=False),
            make_knob("sm_clock_cap_mhz", (1080, 1530, 1980), needs_launch=False),
        )
        request = make_simulated(workload=WorkloadSpec(prompt_tokens=(100, 500), output_tokens=(50, 200)))
        request = replace(request, window=replace(request.window, window_s=12.0, max_window_s=12.0))
        grid = Grid.of(SearchSpace(knobs=knobs), request.workload, seed="0")
        found = Evidence.of(request, simulated(request, grid)).observations
        assert len(found) == len(grid.points)
        figures = {one.point: (one.log_tok_per_j, one.log_latency_ms) for one in found}
        same = merged(grid, found)
        others = [(point, now) for point, now in zip(grid.points, same.points, strict=True) if point != now]
        assert {name for point, now in others for name in figures_that_differ(point, now)} == {
            "power_cap_w",
            "sm_clock_cap_mhz",
        }
        for point, now in others:
            assert figures[point] == pytest.approx(figures[now], abs=1e-3)


def figures_that_differ(point: OperatingPoint, other: OperatingPoint) -> set[str]:
    return {name for name, value in point.knobs if other[name] != value}


def simulated(request: TuneRequest, grid: Grid) -> list[Trial]:
    device = open_simulated(request.device, seed=request.seed, noise=0.0)
    simulation = Simulation(device=device, shape=load_shape(request.model))
    bench = Bench(request, device, simulation.open_engine, rig=simulation.open_rig())
    trials = []
    for i, point in enumerate(grid.points):
        shown = bench.measure(OperatingPoint.of({"max_batch": 32, **point.as_dict()}))
        trials.append(
            make_trial(number=i, point=point, state=shown.state, reason=shown.reason, measurement=shown.measurement)
        )
    return trials


def ruled_out(found: Evidence, grid: Grid = GRID) -> set[OperatingPoint]:
    return {point for point, may in zip(grid.points, allowed(grid, found), strict=True) if not may}


class TestAllowed:
    """What failures rule out for certain."""

    def test_nothing_without_failures(self) -> None:
        """Evidence without failures leaves every point."""
        assert ruled_out(evidence(observations=(observed(60),))) == set()

    def test_running_out_of_memory_rules_out_all_that_asks_for_more(self) -> None:
        """All larger batches and chunks of the same precision are out, at every clock; nothing else is."""
        failed = point_of(max_batch=64, prefill_chunk=2048)
        assert ruled_out(evidence(failures={failed: OOM})) == {
            point_of(max_batch=batch, prefill_chunk=2048, sm_clock_cap_mhz=clock)
            for batch in (64, 128, 256)
            for clock in (1000, 1500, 2000)
        }

    @pytest.mark.parametrize("reason", ["engine_died", "no_steady_state", "clock_not_attained"])
    def test_other_failures_rule_out_nothing(self, reason: str) -> None:
        """What may have had other causes is no certainty; the surrogate learns from it."""
        assert ruled_out(evidence(failures={point_of(): reason})) == set()

    def test_a_precision_that_fails_the_gate_is_out_at_every_point(self) -> None:
        """After one point failed the quality gate all of its precision are out."""
        assert ruled_out(evidence(refused=(point_of(precision="fp8"),))) == {
            point for point in GRID.points if point["precision"] == "fp8"
        }

    def test_both_precisions_together_are_judged(self) -> None:
        """Where keys and values have a precision too, only the pair that failed is out."""
        space = SearchSpace(knobs=(make_knob("precision", ("bf16", "fp8")), make_knob("kv_precision", ("auto", "fp8"))))
        grid = Grid.of(space, make_request().workload, seed="0")
        failed = OperatingPoint.of({"precision": "bf16", "kv_precision": "fp8"})
        assert ruled_out(evidence(refused=(failed,)), grid) == {failed}

    def test_where_no_precision_is_searched_a_failed_gate_rules_out_all(self) -> None:
        """The only precision there is fails the gate everywhere."""
        grid = Grid.of(SearchSpace(knobs=(make_knob("max_batch", (4, 8)),)), make_request().workload, seed="0")
        failed = OperatingPoint.of({"max_batch": 4})
        assert ruled_out(evidence(refused=(failed,)), grid) == set(grid.points)

    def test_without_sizes_running_out_of_memory_rules_out_its_launch(self) -> None:
        """Where no size is searched a precision that does not fit is out at every clock."""
        space = SearchSpace(
            knobs=(
                make_knob("precision", ("bf16", "fp8")),
                make_knob("sm_clock_cap_mhz", (1000, 2000), needs_launch=False),
            )
        )
        grid = Grid.of(space, make_request().workload, seed="0")
        failed = OperatingPoint.of({"precision": "bf16", "sm_clock_cap_mhz": 1000})
        assert ruled_out(evidence(failures={failed: OOM}), grid) == {
            point for point in grid.points if point["precision"] == "bf16"
        }
