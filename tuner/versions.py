"""How a job's knobs differ from those of the job before it: which values came, went, or changed places. Pure.

Optuna cannot go on with a study whose lists changed (optuna/optuna #2328); a new study can begin with the old
results. Knows nothing of where either job is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuner.request import KnobRange, KnobValue
from tuner.space import SearchSpace


def ranges_of(space: SearchSpace) -> tuple[KnobRange, ...]:
    """Return the knobs of a space with their values."""
    return tuple(KnobRange(name=knob.name, values=knob.values) for knob in space.knobs)


def changes(before: Sequence[KnobRange], after: Sequence[KnobRange]) -> list[str]:
    """Return a phrase for each knob whose values differ, as in `max_batch: 64 added, 8 removed`."""
    old = {knob.name: knob.values for knob in before}
    new = {knob.name: knob.values for knob in after}
    phrases = [f"{name}: no longer searched" for name in old if name not in new]
    for name, values in new.items():
        if name not in old:
            phrases.append(f"{name}: searched now")
        elif values != old[name]:
            phrases.append(f"{name}: {_difference(old[name], values)}")
    return phrases


def _difference(old: tuple[KnobValue, ...], new: tuple[KnobValue, ...]) -> str:
    added = [str(value) for value in new if value not in old]
    removed = [str(value) for value in old if value not in new]
    words = [f"{', '.join(values)} {what}" for values, what in ((added, "added"), (removed, "removed")) if values]
    return ", ".join(words) or "another order"
