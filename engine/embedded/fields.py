"""A config.json's fields with a family's defaults behind them; what makes no sense is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import CheckpointError


class Fields:
    """The fields of one config; `source` says where it is."""

    def __init__(self, raw: Mapping[str, Any], defaults: Mapping[str, Any], source: str) -> None:
        self.raw = raw
        self.source = source
        self._defaults = defaults

    def get(self, name: str) -> Any:
        """Return a field as it stands, null included; the family's default only where it is left out."""
        return self.raw[name] if name in self.raw else self._defaults.get(name)

    def count(self, name: str) -> int:
        """Return a whole number of 1 or more."""
        value = self.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refusal(name, value, "it must be a whole number of 1 or more")
        return value

    def positive(self, name: str) -> float:
        """Return a number above 0."""
        value = self.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self.refusal(name, value, "it must be a number above 0")
        return float(value)

    def positive_or_none(self, name: str) -> float | None:
        """Return a number above 0, or None where the field is null."""
        return None if self.get(name) is None else self.positive(name)

    def flag(self, name: str) -> bool:
        """Return a truth value; null and a missing field without a default are false."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.refusal(name, value, "it must be true or false")
        return bool(value)

    def refusal(self, name: str, value: object, remedy: str) -> CheckpointError:
        """Return the error to raise for a field."""
        return CheckpointError(f"{self.source}: {name} is {value!r}: {remedy}")
