"""What stands beside imported figures: where they come from, and under what load. Knows neither terminal nor HTML."""

from __future__ import annotations

from tuner.foreign.result import ForeignResult, Tool


def origin_of(tool: Tool) -> str:
    """Return the label that stands wherever imported figures do."""
    return f"imported from {tool.full_name}, not metered: no energy"


def load_words(result: ForeignResult) -> str:
    """Say what load was asked for; empty where the file does not."""
    rate = None if result.asked_rate_per_s is None else f"{result.asked_rate_per_s:g}/s"
    concurrency = None if result.asked_concurrency is None else f"{result.asked_concurrency} at once"
    return ", ".join(word for word in (result.load, rate, concurrency) if word)
