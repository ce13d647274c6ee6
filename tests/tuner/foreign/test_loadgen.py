"""LoadGen's summary: nanoseconds, one rate line a scenario, and verdicts."""

from __future__ import annotations

import pytest

from tuner.foreign.errors import BadResultFile
from tuner.foreign.result import ForeignLatency, ForeignResult, Tool
from tuner.foreign_results import read_results

#: As mlcommons-loadgen 6 wrote it, shortened.
SERVER = """================================================
MLPerf Results Summary
================================================
SUT name : PySUT
Scenario : Server
Mode     : PerformanceOnly
Completed samples per second    : 50.30
Completed tokens per second: 256.23
Result is : INVALID
  Performance constraints satisfied : Yes
  Min duration satisfied : Yes
  Min queries satisfied : Yes
  Early stopping satisfied: NO
Recommendations:
TPOT Early Stopping Result:
 * Run unsuccessful.

================================================
Additional Stats
================================================
Scheduled samples per second : 50.75
Min latency (ns)                : 6600179
Mean latency (ns)               : 10230743
50.00 percentile latency (ns)   : 7110187
90.00 percentile latency (ns)   : 17972088
95.00 percentile latency (ns)   : 24368243
97.00 percentile latency (ns)   : 30464006
99.00 percentile latency (ns)   : 43033465
99.90 percentile latency (ns)   : 43033465

Completed tokens per second                 : 999.99
Mean First Token latency (ns)               : 5410564
50.00 percentile first token latency (ns)   : 2790898
99.00 percentile first token latency (ns)   : 29714061

Mean Time per Output Token (ns)                : 1205044
50.00 percentile time to output token (ns)   : 1043262
99.00 percentile time to output token (ns)   : 5327004

================================================
Test Parameters Used
================================================
samples_per_query : 1
target_qps : 50
ttft_latency (ns): 2000000000
tpot_latency (ns): 100000000

No warnings encountered during test.

No errors encountered during test.
"""
OFFLINE = """MLPerf Results Summary
SUT name : PySUT
Scenario : Offline
Mode     : PerformanceOnly
Samples per second: 150.494
Tokens per second: 752.471
Result is : VALID
  Min duration satisfied : Yes
Mean latency (ns)               : 188180018
Mean First Token latency (ns)   : 0
target_qps : 50

1 warning encountered. See detailed log.
"""
ACCURACY = "No warnings encountered during test.\n\nNo errors encountered during test.\n"


def results_of(text: str) -> tuple[ForeignResult, ...]:
    return read_results(text.encode(), name="mlperf_log_summary.txt")


def test_a_server_run_is_read() -> None:
    """BUG-55: latencies are in nanoseconds, `time to output token` is TPOT, and the first of two equal names counts."""
    (result,) = results_of(SERVER)
    assert (result.tool, result.label, result.load, result.asked_rate_per_s) == (Tool.LOADGEN, "PySUT", "Server", 50.0)
    assert result.output_tok_s == 256.23
    assert result.ttft_ms == ForeignLatency(mean=5.410564, p50=2.790898, p99=29.714061)
    assert result.tpot_ms == ForeignLatency(mean=1.205044, p50=1.043262, p99=5.327004)
    assert result.e2e_ms == ForeignLatency(mean=10.230743, p50=7.110187, p90=17.972088, p95=24.368243, p99=43.033465)
    assert (result.num_completed, result.num_failed, result.duration_s, result.model) == (None, None, None, None)
    assert result.notes == ("LoadGen says INVALID: early stopping not satisfied",)


def test_an_offline_run_is_read() -> None:
    """BUG-55: its rate has another name, its target is not what was asked, and a latency of 0 is none."""
    (result,) = results_of(OFFLINE)
    assert (result.output_tok_s, result.asked_rate_per_s, result.ttft_ms) == (752.471, None, None)
    assert result.notes == ("everything was sent at once: latencies contain the wait", "LoadGen noted 1 warning")


def test_the_mean_under_its_other_name() -> None:
    """Earlier versions write `Time to Output Token` for the mean too, and no headings are needed."""
    text = SERVER.replace("Time per Output Token", "Time to Output Token").replace("MLPerf Results Summary\n", "")
    (result,) = results_of(text)
    assert result.tpot_ms is not None
    assert result.tpot_ms.mean == 1.205044


def test_summaries_one_after_the_other_are_several_results() -> None:
    """Each heading begins a run of its own."""
    assert [result.load for result in results_of(SERVER + OFFLINE)] == ["Server", "Offline"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ACCURACY, "mlperf_log_summary.txt: Scenario is None: an accuracy run's summary has no figures; import the"),
        (SERVER.replace("PerformanceOnly", "AccuracyOnly"), "mlperf_log_summary.txt: Mode is 'AccuracyOnly': import"),
    ],
)
def test_an_accuracy_run_has_no_figures(text: str, words: str) -> None:
    """BUG-55: the file of an accuracy run holds two lines; it is refused with what to import instead."""
    with pytest.raises(BadResultFile) as raised:
        results_of(text)
    assert str(raised.value).startswith(words)
