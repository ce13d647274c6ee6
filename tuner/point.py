"""One value for every knob: what a trial tries. Knows nothing of what the knobs do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.request import KnobValue


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Knob values by name, in the order of the names."""

    knobs: tuple[tuple[str, KnobValue], ...]

    @classmethod
    def of(cls, knobs: Mapping[str, KnobValue]) -> OperatingPoint:
        """Build a point; two points with the same values are equal whatever the order given."""
        return cls(tuple(sorted(knobs.items())))

    def __getitem__(self, name: str) -> KnobValue:
        """Return a knob's value; KeyError when the point has no such knob."""
        return dict(self.knobs)[name]

    def as_dict(self) -> dict[str, KnobValue]:
        """Return the knobs as a mapping."""
        return dict(self.knobs)

    @property
    def key(self) -> str:
        """Canonical text of the point, the same on every machine."""
        return json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.knobs)
