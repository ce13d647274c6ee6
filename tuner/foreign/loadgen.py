"""MLPerf LoadGen's `mlperf_log_summary.txt`: lines of a name, a colon and a value. All latencies are in nanoseconds.

`Time to output token` is our TPOT. The rate's line differs by scenario, and a name can stand twice: the first counts.
Read after files that mlcommons-loadgen 5 and 6 wrote. Knows nothing of files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tuner.foreign.fields import Fields, Source, printable
from tuner.foreign.result import ForeignLatency, ForeignResult, Tool

_HEADING = "MLPerf Results Summary"
_ACCURACY_RUN = "No warnings encountered during test."
_NS_TO_MS = 1e-6
#: By scenario: of Server, of Offline, of the streams.
_RATES = ("completed tokens per second", "tokens per second", "tps w/ loadgen overhead")
_SERVER = "Server"
_SHARES = {"p50": "50.00", "p90": "90.00", "p95": "95.00", "p99": "99.00"}
_COMPLAINTS = re.compile(r"^(\d+) (warning|error)s? encountered", re.IGNORECASE | re.MULTILINE)


def is_summary(text: str) -> bool:
    """Whether a text is such a file, of a performance or of an accuracy run."""
    return _HEADING in text or _ACCURACY_RUN in text or ("SUT name" in text and "Result is" in text)


def read(source: Source, text: str) -> Iterator[ForeignResult]:
    """Yield each run of a file. Raises BadResultFile for an accuracy run, which has no figures."""
    runs = [part for part in text.split(_HEADING) if "Scenario" in part]
    if not runs:
        whole = Fields(source, {})
        remedy = "an accuracy run's summary has no figures; import the one of the performance run"
        raise whole.fault("Scenario", None, remedy)
    for part in runs:
        yield _result(source, part)


def _result(source: Source, text: str) -> ForeignResult:
    words = _lines_of(text)
    mode = words.get("mode", "")
    figures = Fields(source, {name: number for name, word in words.items() if (number := _number(word)) is not None})
    scenario = words.get("scenario")
    if mode and mode != "PerformanceOnly":
        raise figures.fault("Mode", mode, "import the summary of a run in the mode PerformanceOnly")
    rates = (figures.positive(name) for name in _RATES)
    return ForeignResult(
        tool=Tool.LOADGEN,
        label=printable(words.get("sut name", "")) or None,
        load=printable(scenario or "") or None,
        asked_rate_per_s=figures.positive("target_qps") if scenario == _SERVER else None,
        output_tok_s=next((rate for rate in rates if rate is not None), None),
        ttft_ms=_latency(figures, "first token latency"),
        tpot_ms=_latency(figures, "time to output token", "time per output token"),
        e2e_ms=_latency(figures, "latency"),
        notes=tuple(_notes(words, text)),
        sha256=source.sha256,
    )


def _lines_of(text: str) -> dict[str, str]:
    """Return the value of each name, spaces and case evened out; of a name that stands twice the first."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(" ".join(name.lower().split()), value.strip())
    return found


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _latency(figures: Fields, name: str, mean_name: str = "") -> ForeignLatency | None:
    means = tuple(f"mean {one} (ns)" for one in (name, mean_name) if one)
    percentiles = {ours: (f"{share} percentile {name} (ns)",) for ours, share in _SHARES.items()}
    told = figures.latency({"mean": means, **percentiles}, _NS_TO_MS)
    return None if told.is_empty else told


def _notes(words: dict[str, str], text: str) -> Iterator[str]:
    verdict = words.get("result is", "")
    if verdict and verdict != "VALID":
        suffix = " satisfied"
        missed = [name[: -len(suffix)] for name, value in words.items() if name.endswith(suffix) and value == "NO"]
        yield printable(f"LoadGen says {verdict}" + (f": {', '.join(missed)} not satisfied" if missed else ""))
    if words.get("scenario") == "Offline":
        yield "everything was sent at once: latencies contain the wait"
    for count, kind in _COMPLAINTS.findall(text):
        yield f"LoadGen noted {count} {kind.lower()}{'s' if int(count) > 1 else ''}"
