"""Mean power between looks."""

from __future__ import annotations

import pytest

from probes.cpu.recent_power import RecentPower
from probes.errors import NotPermitted
from tests.probes.fake_clock import FakeClock


def test_power_is_the_mean_since_the_look_before(clock: FakeClock) -> None:
    """The first look has nothing to compare with; each later one is of the time in between."""
    energies_j = iter([1000.0, 1200.0, 1200.0])
    power = RecentPower(lambda: next(energies_j), clock=clock)
    assert power.look_w() is None
    clock.advance(2.0)
    assert power.look_w() == 100.0
    clock.advance(1.0)
    assert power.look_w() == 0.0


def test_looks_in_quick_succession_share_an_answer(clock: FakeClock) -> None:
    """Within a tenth of a second the last figure stands: a counter's steps would be noise."""
    energies_j = iter([0.0, 100.0])
    power = RecentPower(lambda: next(energies_j), clock=clock)
    power.look_w()
    clock.advance(1.0)
    assert power.look_w() == 100.0
    clock.advance(0.05)
    assert power.look_w() == 100.0


@pytest.mark.parametrize(("later_j", "elapsed_s"), [(500.0, 11.0), (-1.0, 1.0)])
def test_what_cannot_be_compared_is_none(clock: FakeClock, later_j: float, elapsed_s: float) -> None:
    """After too long a silence, or when the energy fell, there is no figure, and the next look has one again."""
    energies_j = iter([0.0, later_j, later_j + 50.0])
    power = RecentPower(lambda: next(energies_j), clock=clock, longest_s=10.0)
    power.look_w()
    clock.advance(elapsed_s)
    assert power.look_w() is None
    clock.advance(1.0)
    assert power.look_w() == 50.0


def test_an_unreadable_energy_starts_anew(clock: FakeClock) -> None:
    """An error reaches the caller, and the look after it has nothing to compare with."""
    answers: list[float | None] = [0.0, None, 300.0]

    def read_j() -> float:
        answer = answers.pop(0)
        if answer is None:
            raise NotPermitted("no")
        return answer

    power = RecentPower(read_j, clock=clock)
    power.look_w()
    clock.advance(1.0)
    with pytest.raises(NotPermitted):
        power.look_w()
    clock.advance(1.0)
    assert power.look_w() is None
