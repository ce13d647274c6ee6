"""How the knobs of two jobs differ, in words."""

from __future__ import annotations

import pytest

from tuner.request import KnobRange, KnobValue
from tuner.versions import changes

Lists = dict[str, tuple[KnobValue, ...]]


def ranges(lists: Lists) -> tuple[KnobRange, ...]:
    return tuple(KnobRange(name=name, values=values) for name, values in lists.items())


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"max_batch": (8, 16)}, {"max_batch": (8, 16)}, []),
        ({"max_batch": (8, 16, 32)}, {"max_batch": (8, 16, 32, 64)}, ["max_batch: 64 added"]),
        ({"max_batch": (8, 16, 32)}, {"max_batch": (16, 32)}, ["max_batch: 8 removed"]),
        ({"max_batch": (8, 16)}, {"max_batch": (16, 8)}, ["max_batch: another order"]),
        ({"max_batch": (8, 16)}, {"max_batch": (64, 16, 32)}, ["max_batch: 64, 32 added, 8 removed"]),
        ({"sm_clock_cap_mhz": (1395,)}, {"sm_clock_cap_mhz": (1410,)}, ["sm_clock_cap_mhz: 1410 added, 1395 removed"]),
        ({"precision": ("fp32",)}, {"max_batch": (8,)}, ["precision: no longer searched", "max_batch: searched now"]),
    ],
)
def test_each_knob_that_changed_is_named(before: Lists, after: Lists, words: list[str]) -> None:
    """BUG-14: values that came, went or changed places are told by knob, as are knobs that came or went."""
    assert words == changes(ranges(before), ranges(after))
