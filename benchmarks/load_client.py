"""How wrong the load client's times are, and how much it can take.

A server in another process (see `token_server.py`) writes tokens at given times and says in each when it really wrote
it; the client's times are held against those, so that the server's own lateness does not count as the client's. Closed
loads of 10, 100 and 1,000 streams with a token every 100 ms each (1,000 streams: 10,000 tokens/s), their lengths and
phases at random, then 1,000 in step, as an engine's batch gives them, where all end and begin in the same instant. The
planned tokens a second are what a client and a server that take no time would see. Then open loads at fixed rates.
Client and server share the machine's cores with whatever else runs; the table says how much that was.

    python -m benchmarks.load_client            # a minute and a half
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.machine import ForeignLoad, finish
from benchmarks.token_server import drawn_first_ms
from engine.load import ClosedLoad, LoadReport, OpenLoad, Progress, TimedRequest
from engine.request import FinishReason, Request, RequestRecord
from engine.servers.client import LoadClient
from engine.servers.dialect import Dialect

STREAMS = (10, 100, 1000)
#: Output lengths are drawn evenly from these.
NUM_TOKENS = (20, 60)
FIRST_MS = 100.0
GAP_MS = 100.0
RATES_PER_S = (20.0, 200.0)
#: Left out at both ends of a load: connections are made, and requests end that began together.
_EDGE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one load showed. Errors are the client's time less the server's."""

    name: str
    num_requests: int
    ttft_err_ms: float
    ttft_err_p99_ms: float
    tpot_err_pct: float
    tpot_err_p99_pct: float
    #: Tokens a second: planned, written and seen.
    planned_per_s: float
    written_per_s: float
    seen_per_s: float
    foreign_cores: float
    report: LoadReport

    @property
    def rate_err_pct(self) -> float:
        """Of the tokens a second that were seen, against the plan."""
        return 100.0 * abs(self.seen_per_s / self.planned_per_s - 1.0)


def main() -> None:
    """Run the loads and print their tables and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=14.0, help="length of each load")
    seconds = parser.parse_args().seconds
    figures: dict[str, float] = {}
    with token_server() as url:
        print(f"{'streams':>14} {'requests':>8} {'TTFT err ms':>16} {'TPOT err %':>16} {'tokens/s':>28} CPU  others")
        for number in STREAMS:
            row = closed(url, number, seconds=seconds, is_in_step=False)
            show(row)
            figures |= {
                f"ttft_err_ms_{number}": row.ttft_err_ms,
                f"tpot_err_pct_{number}": row.tpot_err_pct,
                f"rate_err_pct_{number}": row.rate_err_pct,
            }
        figures["client_cpu_share_1000"] = row.report.client_cpu_share
        row = closed(url, STREAMS[-1], seconds=seconds, is_in_step=True)
        show(row)
        figures |= {"ttft_err_ms_1000_in_step": row.ttft_err_ms, "tpot_err_pct_1000_in_step": row.tpot_err_pct}
        for rate in RATES_PER_S:
            error_pct, gap_err_pct = opened(url, rate, seconds=seconds)
            figures |= {f"arrival_err_pct_{rate:g}": error_pct, f"arrival_gap_err_pct_{rate:g}": gap_err_pct}
    finish("load_client", figures)


def closed(url: str, streams: int, *, seconds: float, is_in_step: bool) -> Row:
    """Keep so many streams going and hold what the client says against what the server wrote."""
    spread_ms = 0.0 if is_in_step else 2 * GAP_MS
    lengths = (40, 40) if is_in_step else NUM_TOKENS
    client = client_of(url, spread_ms=spread_ms)
    foreign = ForeignLoad()
    load = ClosedLoad(requests=requests_of(lengths), concurrency=streams)
    records = client.run(load, StopAfter(seconds))
    foreign_cores = foreign.cores()
    refuse_failed(records)
    written = {record.request_id: [float(word) for word in record.text.split()] for record in records}
    begin_s = min(record.arrival_s for record in records)
    window = (begin_s + _EDGE_S, begin_s + seconds - _EDGE_S)
    ended = [one for one in records if one.finish_reason is FinishReason.LENGTH and one.arrival_s >= window[0]]
    ttft_errs_ms = [1e3 * (record.token_times_s[0] - written[record.request_id][0]) for record in ended]
    tpot_errs_pct = [tpot_err_pct(record, written[record.request_id]) for record in ended]
    planned_s = planned(requests_of(lengths), streams, spread_ms=spread_ms, until_s=seconds)
    return Row(
        name=f"{streams} in step" if is_in_step else str(streams),
        num_requests=len(ended),
        ttft_err_ms=mean(ttft_errs_ms),
        ttft_err_p99_ms=p99(ttft_errs_ms),
        tpot_err_pct=mean(tpot_errs_pct),
        tpot_err_p99_pct=p99(tpot_errs_pct),
        planned_per_s=rate_in(window, [begin_s + time_s for time_s in planned_s]),
        written_per_s=rate_in(window, [time_s for times_s in written.values() for time_s in times_s]),
        seen_per_s=rate_in(window, [time_s for record in records for time_s in record.token_times_s]),
        foreign_cores=foreign_cores,
        report=client.report(),
    )


def planned(requests: Iterator[Request], streams: int, *, spread_ms: float, until_s: float) -> list[float]:
    """Return when tokens come, in seconds after the begin, where each request begins as the one before it ends."""
    free_s = [0.0] * streams
    times_s: list[float] = []
    while (begin_s := heapq.heappop(free_s)) < until_s:
        request = next(requests)
        assert request.seed is not None
        first_s = begin_s + drawn_first_ms(request.seed, first_ms=FIRST_MS, spread_ms=spread_ms) / 1e3
        times_s += [first_s + number * GAP_MS / 1e3 for number in range(request.max_tokens)]
        heapq.heappush(free_s, times_s[-1])
    return times_s


def opened(url: str, rate_per_s: float, *, seconds: float) -> tuple[float, float]:
    """Send at a fixed rate; return the error of the rate and the mean error of the gaps between requests, in %."""
    client = client_of(url, spread_ms=0.0)
    timed = (
        TimedRequest(offset_s=number / rate_per_s, request=request)
        for number, request in enumerate(itertools.islice(requests_of((5, 5)), int(seconds * rate_per_s)))
    )
    records = client.run(OpenLoad(requests=timed), lambda progress: True)
    refuse_failed(records)
    report = client.report()
    assert report.due_per_s is not None
    assert report.sent_per_s is not None
    error_pct = 100.0 * abs(report.sent_per_s / report.due_per_s - 1.0)
    sent_s = sorted(record.sent_s for record in records if record.sent_s is not None)
    gap_err_pct = mean([100.0 * abs((after - before) * rate_per_s - 1.0) for before, after in pairwise(sent_s)])
    print(
        f"open, {rate_per_s:g}/s: asked {report.due_per_s:.3f}, sent {report.sent_per_s:.3f} ({error_pct:.3f} % off); "
        f"gaps {gap_err_pct:.1f} % off on average; late by {report.mean_lag_ms:.2f} ms on average, "
        f"{report.max_lag_ms:.1f} ms at most"
    )
    return error_pct, gap_err_pct


@contextlib.contextmanager
def token_server() -> Iterator[str]:
    """Start the server and yield its URL."""
    command = [sys.executable, "-m", "benchmarks.token_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def client_of(url: str, *, spread_ms: float) -> LoadClient:
    """Return a client whose requests say when their tokens are due."""
    times = (("first_ms", FIRST_MS), ("gap_ms", GAP_MS), ("spread_ms", spread_ms))
    return LoadClient(url, model="m", dialect=Dialect(takes_token_ids=True, extra_body=times))


def requests_of(lengths: tuple[int, int]) -> Iterator[Request]:
    """Yield requests without end, always the same ones."""
    draw = random.Random(0)
    for number in itertools.count():
        length = draw.randint(*lengths)
        yield Request(request_id=f"r{number}", prompt_token_ids=(1,), max_tokens=length, seed=number, ignore_eos=True)


def refuse_failed(records: list[RequestRecord]) -> None:
    """End the benchmark where a request failed: its figures would say nothing."""
    if failed := [record.error for record in records if record.error is not None]:
        raise SystemExit(f"{len(failed)} requests failed, the first one: {failed[0]}")


class StopAfter:
    """Ends a load so many seconds after its first progress."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begin_s: float | None = None

    def __call__(self, progress: Progress) -> bool:
        """See one tick."""
        if self._begin_s is None:
            self._begin_s = progress.time_s
        return progress.time_s < self._begin_s + self._seconds


def tpot_err_pct(record: RequestRecord, written_s: list[float]) -> float:
    """Return by how much the client's TPOT differs from that of the writes."""
    assert record.tpot_s is not None
    true_s = (written_s[-1] - written_s[0]) / (len(written_s) - 1)
    return 100.0 * abs(record.tpot_s / true_s - 1.0)


def rate_in(window: tuple[float, float], times_s: list[float]) -> float:
    """Return how many times a second lie in a window."""
    return sum(window[0] <= time_s < window[1] for time_s in times_s) / (window[1] - window[0])


def mean(values: list[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


def p99(values: list[float]) -> float:
    """Return the value that 99 % do not exceed."""
    return sorted(values)[int(0.99 * (len(values) - 1))]


def show(row: Row) -> None:
    """Print a line of the table."""
    print(
        f"{row.name:>14} {row.num_requests:>8} {row.ttft_err_ms:>6.2f}, p99 {row.ttft_err_p99_ms:>5.2f} "
        f"{row.tpot_err_pct:>6.3f}, p99 {row.tpot_err_p99_pct:>5.3f} "
        f"{row.seen_per_s:>9.1f} of {row.planned_per_s:.1f} ({row.rate_err_pct:.2f} %, "
        f"written {row.written_per_s:.1f}) "
        f"{row.report.client_cpu_share:.2f} {row.foreign_cores:.2f}",
        *(f"\n    refused: {limit}" for limit in row.report.client_limits),
        flush=True,
    )


if __name__ == "__main__":
    main()
