"""What MLPerf's LoadGen wrote of a run: its summary, and the schedule in its trace. Knows nothing of engines."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from api.errors import UsageError

SUMMARY = "mlperf_log_summary.txt"
TRACE = "mlperf_log_trace.json"

#: A figure's line by the latency that we call so; `{}` is the percentile with two decimals.
_LINES = {
    "ttft": "{} percentile first token latency (ns)",
    "tpot": "{} percentile time to output token (ns)",
    "e2e": "{} percentile latency (ns)",
}
_RATES = ("Completed samples per second", "Completed tokens per second", "Samples per second", "Tokens per second")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """LoadGen's own account of a run."""

    #: VALID or INVALID under the settings it was given, which may be shorter than the rules'.
    verdict: str
    lines: Mapping[str, str]

    def percentile_ms(self, latency: str, percent: int) -> float | None:
        """Return its percentile of ttft, tpot or e2e; None where the scenario has none."""
        text = self.lines.get(_LINES[latency].format(f"{percent:.2f}"))
        return None if text is None else int(text) / 1e6

    @property
    def rates(self) -> dict[str, float]:
        """Its throughput by its own words."""
        return {name: float(self.lines[name]) for name in _RATES if name in self.lines}


def read_summary(folder: Path) -> Summary:
    """Read a run's summary; raise UsageError where there is none."""
    lines: dict[str, str] = {}
    for line in _read(folder / SUMMARY).splitlines():
        name, separator, value = line.partition(" : " if " : " in line else ":")
        if separator:
            lines.setdefault(re.sub(r"\s+", " ", name).strip(), value.strip())
    if "Result is" not in lines:
        raise UsageError(f"{folder / SUMMARY}: has no line `Result is`; the run did not end")
    return Summary(verdict=lines["Result is"], lines=lines)


def read_schedule(folder: Path) -> list[float]:
    """Return when each sample was due, in seconds on LoadGen's clock, in the order in which they were issued.

    The trace has a line for each sample, which begins when it was due; other lines of it are not all valid JSON.
    """
    due_s: dict[int, float] = {}
    for line in _read(folder / TRACE).splitlines():
        if line.startswith('{"name":"Sample",') and '"ph":"b"' in line:
            event = json.loads(line.rstrip(","))
            due_s[event["args"]["sample_seq"]] = event["ts"] / 1e6
    return [due_s[number] for number in sorted(due_s)]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; LoadGen left no such file") from error
