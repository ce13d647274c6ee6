"""Schemathesis against a running server: whatever follows from the OpenAPI document is answered as it says.

All checks are on and links are followed. By default each operation gets a few cases, the same ones every time. With
WATTFRONT_FUZZ_S=180 every bound of every field is tried too, and for that many seconds new cases are looked for, on
each database.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

from api.app import create_app
from api.job_run import run_job
from api.settings import Settings
from api.stores import Stores, open_stores
from api.submit import read_request
from db.service import Scope
from tests.db.factories import REPOSITORY
from tests.postgres import PostgresServer

CONFIG = Path(__file__).with_name("schemathesis.toml")
FUZZ_S = os.environ.get("WATTFRONT_FUZZ_S")
JOB = {
    "model": "llama-3.1-8b",
    "device": "simulated:h100-sxm",
    "workload": {"prompt_tokens": "32-64", "output_tokens": "16-32"},
    "knobs": {"max_batch": [4, 16], "sm_clock_cap_mhz": [1980]},
    "window": {"warmup_s": 1, "window_s": 2, "min_requests": 4, "max_window_s": 10, "idle_s": 0},
    "budget": {"trials": 2},
}
START_S = 30.0


@pytest.fixture(params=("sqlite", "postgresql"))
def url(request: pytest.FixtureRequest, own_database: None, settings: Settings) -> Iterator[str]:
    """A database with tables: SQLite, then PostgreSQL where there is one."""
    if request.param == "sqlite":
        yield settings.database_url
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database() as postgres_url:
        yield postgres_url


@contextmanager
def running(stores: Stores, settings: Settings) -> Iterator[str]:
    """Yield the address of a server that runs in a thread of this process."""
    config = uvicorn.Config(create_app(stores, settings), host="127.0.0.1", port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline_s = time.monotonic() + START_S
        while not server.started and time.monotonic() < deadline_s:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def fuzz(address: str, key: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run every phase with every check; found examples are kept nowhere."""
    steady = [
        "--phases",
        "examples,fuzzing,stateful",
        "--max-examples",
        "1",
        "--no-shrink",
        "--seed",
        "1",
        "--generation-deterministic",
    ]
    long = ["--max-examples", "100", "--max-time", str(FUZZ_S), "--generation-database", "none"]
    return subprocess.run(
        [
            *(
                sys.executable,
                "-P",
                "-m",
                "schemathesis.cli",
                "--config-file",
                CONFIG,
                "run",
                f"{address}/openapi.json",
            ),
            *("--header", f"Authorization: Bearer {key}", "--checks", "all", "--no-color", "--continue-on-failure"),
            *("--warnings", "off", *(long if FUZZ_S else steady)),
        ],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(900)
def test_answers_are_what_the_document_says(url: str, settings: Settings, tmp_path: Path) -> None:
    """No operation answers 5xx, or with another status, body or header than documented, or lets in without a key."""
    pytest.importorskip("schemathesis", reason="schemathesis, of the extra `dev`, is not installed")
    stores = open_stores(url)
    stores.jobs.create(read_request(JOB))
    claim = stores.jobs.claim_next("host:1:1", 60.0)
    assert claim is not None
    run_job(stores, claim, settings)
    _, key = stores.keys.create("fuzz", Scope.ADMIN)
    unlimited = settings.model_copy(update={"rate_limit_reads_per_s": 0, "rate_limit_writes_per_s": 0})
    with running(stores, unlimited) as address:
        ended = fuzz(address, key, tmp_path)
    stores.database.dispose()
    (tmp_path / "schemathesis.txt").write_text(ended.stdout)  # figures of a run that passes
    assert ended.returncode == 0, ended.stdout[-9_000:] + ended.stderr[-2_000:]
