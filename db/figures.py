"""The figures of a measurement that tables and charts show, as one compact JSON array beside its record.

A record has 8 kB with its trace, these figures half a kilobyte in the order of NAMES: thousands of trials are read in a
fraction of a second. They are rounded to SIGNIFICANT_DIGITS; whoever decides something reads the record. A change of
NAMES needs a migration that makes the arrays anew. Knows nothing of rows.
"""

from __future__ import annotations

import hashlib
import json
import statistics

from db.codec import JsonValue
from tuner.fingerprint import origin_of
from tuner.measurement import Estimate, Measurement
from tuner.request import LATENCIES, LATENCY_METRICS, STATISTICS

#: One part in a million: intervals are far wider.
SIGNIFICANT_DIGITS = 6
_BOUNDS = ("", "_low", "_high")
#: Of the places in the array: latencies in milliseconds as `ttft_p99_ms`, and the bounds of each as `ttft_p99_ms_low`.
NAMES = (
    *(f"{name}{bound}" for name in ("tok_per_j", "output_tok_s", *LATENCY_METRICS) for bound in _BOUNDS),
    "clock_mhz",  # mean over the window and the devices
    "num_finished",
    "host_w",  # of the host's CPU beside a GPU
    "perplexity_ratio",
    "kl",
    "cut_by",
    "origin",  # a short hash of what measurements share that may be compared
)
_ORIGIN_LENGTH = 8


def stored_figures(measurement: Measurement) -> list[JsonValue]:
    """Return a measurement's figures in the order of NAMES. Migration 0007 makes the same from a record."""
    quality, host = measurement.quality, measurement.host
    latencies = [getattr(getattr(measurement, latency), statistic) for latency in LATENCIES for statistic in STATISTICS]
    return [
        *_bounds(measurement.tok_per_j),
        *_bounds(measurement.output_tok_s),
        *(bound for latency in latencies for bound in _bounds(latency)),
        _clock_mhz(measurement),
        measurement.num_finished,
        rounded(host.mean_power_w) if host is not None and host.is_valid else None,
        None if quality is None else rounded(quality.perplexity_ratio),
        None if quality is None else rounded(quality.kl),
        measurement.cut_by,
        _origin(measurement),
    ]


def rounded(value: float | None) -> float | None:
    """Round to SIGNIFICANT_DIGITS."""
    return None if value is None else float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def _bounds(estimate: Estimate | None) -> list[float | None]:
    """Return value, low and high."""
    return [None, None, None] if estimate is None else [*map(rounded, (estimate.value, estimate.low, estimate.high))]


def _clock_mhz(measurement: Measurement) -> float | None:
    clocks_mhz = [one.mean_clock_mhz for one in measurement.reading.conditions if one.mean_clock_mhz is not None]
    return rounded(statistics.fmean(clocks_mhz)) if clocks_mhz else None


def _origin(measurement: Measurement) -> str:
    text = json.dumps(origin_of(measurement).family)
    return hashlib.sha256(text.encode()).hexdigest()[:_ORIGIN_LENGTH]
