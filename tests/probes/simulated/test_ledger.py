"""The books of a whole device."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from probes.simulated.lane import Lane
from probes.simulated.ledger import Ledger

NUM_GPUS = 8
IDLE_W = 60.0

#: Whole 64ths of seconds and whole watts, so that sums are exact in any order.
SIXTY_FOURTHS = st.integers(0, 200).map(lambda count: count / 64)
STEPS = st.lists(st.tuples(SIXTY_FOURTHS, SIXTY_FOURTHS, st.integers(0, 700).map(float)), max_size=12)


def make_ledger() -> Ledger:
    return Ledger(num_gpus=NUM_GPUS, idle_w=IDLE_W, idle_clock_mhz=300)


def fill(
    ledger: Ledger, index: int, num_gpus: int, steps: list[tuple[float, float, float]]
) -> list[tuple[float, float, float]]:
    """Give a new lane steps of (pause before, length, watts of each GPU), all ahead; return (start, end, watts)."""
    state = ledger.times.of(1800, ())
    lane = ledger.lanes[index] = Lane(num_gpus, 0.0, state, ledger.times)
    segments: list[tuple[float, float, float]] = []
    end_s = 0.0
    for pause_s, length_s, power_w in steps:
        start_s = end_s + pause_s
        end_s = start_s + length_s
        lane.give(0.0, start_s, end_s, power_w * num_gpus, num_gpus, state, 0.0)
        segments.append((start_s, end_s, power_w))
    return segments


@given(STEPS, STEPS, st.lists(SIXTY_FOURTHS, max_size=5))
def test_no_joule_is_lost(
    three: list[tuple[float, float, float]], four: list[tuple[float, float, float]], asked_s: list[float]
) -> None:
    """At every instant energy is power integrated over every GPU: those in steps, those in pauses, those in no lane."""
    ledger = make_ledger()
    lanes = ((3, fill(ledger, 0, 3, three)), (4, fill(ledger, 1, 4, four)))
    for now_s in sorted([*asked_s, 50.0]):
        expected_j = NUM_GPUS * IDLE_W * now_s
        for num_gpus, segments in lanes:
            for start_s, end_s, power_w in segments:
                expected_j += num_gpus * (power_w - IDLE_W) * max(0.0, min(now_s, end_s) - start_s)
        mark = ledger.energy(now_s)
        assert mark.past_j + mark.run_j == expected_j


@given(STEPS, STEPS, st.lists(SIXTY_FOURTHS, min_size=2, max_size=8))
def test_energy_is_the_power_that_is_shown(
    three: list[tuple[float, float, float]], four: list[tuple[float, float, float]], asked_s: list[float]
) -> None:
    """Between instants at which nothing begins or ends, energy grows by the shown power times the time."""
    ledger = make_ledger()
    segments = [*fill(ledger, 0, 3, three), *fill(ledger, 1, 4, four)]
    edges_s = sorted({0.0, *asked_s, *(edge_s for start_s, end_s, _ in segments for edge_s in (start_s, end_s))})
    for earlier_s, later_s in pairwise(edges_s):
        before = ledger.energy(earlier_s)
        shown_w = ledger.power_w((earlier_s + later_s) / 2)
        assert ledger.energy(later_s).since(before) == shown_w * (later_s - earlier_s)


@given(STEPS, SIXTY_FOURTHS, SIXTY_FOURTHS)
def test_clocks_cover_the_time_of_every_lane(
    steps: list[tuple[float, float, float]], first_s: float, more_s: float
) -> None:
    """Between two instants the GPU-seconds at all clocks are the lanes' GPUs times the time."""
    ledger = make_ledger()
    fill(ledger, 0, 3, steps)
    fill(ledger, 1, 4, [])
    before = ledger.clocks(first_s)
    spent = ledger.clocks(first_s + more_s).since(before)
    assert sum(spent.values()) == 7 * more_s


def test_a_new_run_begins_at_zero_and_forgets_nothing() -> None:
    """A run's own energy and clock times begin anew, the sums go on, and work left over is dropped."""
    ledger = make_ledger()
    fill(ledger, 0, 4, [(0.0, 10.0, 260.0)])
    before, clocks = ledger.energy(1.0), ledger.clocks(1.0)
    ledger.begin(2.0, idle_w=100.0)
    assert ledger.energy(2.0).since(before) == 4 * 260 + 4 * 60
    assert ledger.energy(2.0).run_j == 0.0
    assert ledger.energy(3.0).since(before) == 4 * 260 + 4 * 60 + 8 * 100
    assert ledger.clocks(3.0).since(clocks) == {(1800, ()): 4.0}
