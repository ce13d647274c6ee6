"""How a server looks for garbage: what is there is left out, what comes is looked through seldom."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from api.garbage import YOUNG, leave_out_loaded, look_seldom


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave the process as it was: other tests share it."""
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)
    gc.enable()


class Knot:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_what_is_there_is_not_looked_at_again() -> None:
    """After the start only new objects are looked through, when there are YOUNG of them; new garbage is found."""
    gc.disable()
    there = len(gc.get_objects())
    look_seldom()
    assert (gc.isenabled(), gc.get_threshold()[0]) == (True, YOUNG)
    assert len(gc.get_objects()) < there / 10
    knot = weakref.ref(Knot())
    gc.collect()
    assert knot() is None


def test_what_was_loaded_is_cleared_once_and_left_out() -> None:
    """Garbage among what was loaded is found before the rest is left out."""
    gc.disable()
    knot = weakref.ref(Knot())
    leave_out_loaded()
    assert knot() is None
    assert gc.get_freeze_count() > 1_000
