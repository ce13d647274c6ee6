"""A server and two workers that are killed at random while jobs come in: nothing is lost, nothing counts twice.

By default a short run on SQLite. WATTFRONT_CHAOS=full makes it 30 jobs and 50 kills, on SQLite and on PostgreSQL, which
takes some minutes:

    WATTFRONT_CHAOS=full scripts/test tests/api/test_chaos.py

Which process is killed after how many events hangs on a seed; what it does at that moment does not, so no two runs are
alike. Jobs are on simulated devices, whose figures hang on seed and point alone: so each must end with the front that
it reaches undisturbed. The one exception is there on purpose: a point in which two workers die is suspected, and fails.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.job_run import run_job
from api.owners import is_dead
from api.settings import Settings, load_settings
from api.stores import Stores, open_stores
from db.claims import MAX_LOST
from db.device import ControlState
from db.job import Job, JobState
from db.leases import INTERRUPTED_TWICE
from tests.api.commands import free_port, wait_until
from tests.api.forking import Nursery, nursery
from tests.api.test_worker_kills import figures_of, said_of
from tests.postgres import PostgresServer
from tuner.trial import OUTCOMES, Trial, TrialState

pytestmark = pytest.mark.slow

ROLES = ("server", "worker 1", "worker 2")
#: A kill comes after so many further events at most, or after these seconds if nothing happens any more.
MAX_EVENTS = 12
LONGEST_QUIET_S = 3.0
#: Far more than the full run takes on a busy machine.
LONGEST_S = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is done, and where it is kept."""

    num_jobs: int
    num_kills: int
    backend: str
    seed: int = 6

    def __str__(self) -> str:
        return f"{self.num_jobs} jobs, {self.num_kills} kills, {self.backend}"


PLANS = (
    [Plan(num_jobs=30, num_kills=50, backend=backend) for backend in ("sqlite", "postgresql")]
    if os.environ.get("WATTFRONT_CHAOS") == "full"
    else [Plan(num_jobs=6, num_kills=10, backend="sqlite")]
)


def body(number: int) -> dict[str, Any]:
    """Return a job of seconds; every other one repeats its best points."""
    return {
        "name": f"job {number}",
        "model": "llama-3.1-8b",
        "device": "simulated:h100-sxm",
        "allow_device_control": True,
        "workload": {"prompt_tokens": "32-64", "output_tokens": "16-32"},
        "knobs": {"max_batch": [4, 8, 16], "sm_clock_cap_mhz": [1200, 1980]},
        "window": {"warmup_s": 1, "window_s": 2, "min_requests": 4, "max_window_s": 10, "idle_s": 0},
        "budget": {"trials": 4},
        "repeats": {"windows": 1 + number % 2, "finalists": 2},
        "seed": number,
    }


class Crew:
    """A server and two workers on one database; who is killed is started again."""

    def __init__(self, commands: Nursery, port: int) -> None:
        self._commands = commands
        self._lines = {"server": ("serve", "--port", port), "worker 1": ("worker",), "worker 2": ("worker",)}
        self._pids = {role: commands.start(*self._lines[role]) for role in ROLES}
        self.kills: Counter[str] = Counter()

    def kill(self, role: str) -> None:
        """Kill one of them, and start it again at once."""
        self._commands.kill(self._pids[role])
        self._pids[role] = self._commands.start(*self._lines[role])
        self.kills[role] += 1

    def stop(self) -> None:
        """End all in order."""
        for role in ROLES:
            self._commands.stop(self._pids[role])


class Poster(threading.Thread):
    """Posts jobs when it is told to, each under a key of its own, again and again until it gets an answer."""

    def __init__(self, port: int, num_jobs: int) -> None:
        super().__init__(name="poster", daemon=True)
        self._url = f"http://127.0.0.1:{port}/v1/jobs"
        self._num_jobs = num_jobs
        self._tickets = threading.Semaphore(0)
        self.accepted: list[str] = []
        self.num_broken = 0

    def tell(self, count: int) -> None:
        """Let it post so many more."""
        for _ in range(count):
            self._tickets.release()

    def run(self) -> None:
        for number in range(self._num_jobs):
            self._tickets.acquire()
            self.accepted.append(wait_until(partial(self._post, number), what="a job to be accepted"))

    def _post(self, number: int) -> str | None:
        try:
            answer = httpx.post(
                self._url,
                json=body(number),
                headers={"Idempotency-Key": f"chaos-{number}"},
                timeout=10.0,
                trust_env=False,
            )
        except httpx.TransportError:  # the server is gone, or went before it answered
            self.num_broken += 1
            return None
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["id"])


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Whoever forks the server and the workers."""
    with nursery(tmp_path_factory.mktemp("commands")) as opened:
        yield opened


@pytest.fixture(params=PLANS, ids=str)
def plan(request: pytest.FixtureRequest) -> Plan:
    chosen: Plan = request.param
    return chosen


@pytest.fixture
def database_url(
    plan: Plan, settings: Settings, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The database that all processes meet in."""
    if plan.backend == "sqlite":
        yield settings.database_url
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database() as url:
        monkeypatch.setenv("WATTFRONT_DATABASE_URL", url)
        yield url


@pytest.mark.timeout(LONGEST_S)
def test_nothing_is_lost_and_nothing_counts_twice(
    plan: Plan, database_url: str, commands: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """BUG-17, BUG-25: after every kill each job ends once, with each trial once, as if nothing had happened."""
    stores = open_stores(database_url)
    begun_s = time.monotonic()
    port = free_port()
    crew, poster = Crew(commands, port), Poster(port, plan.num_jobs)
    poster.start()
    disturb(plan, stores, crew, poster)
    disturbed_s = time.monotonic() - begun_s
    poster.join()
    jobs = wait_until(lambda: ended(stores, poster.accepted), what="every job to end")
    crew.stop()
    with capsys.disabled():
        sys.stdout.write(
            f"\nchaos: {plan}: {dict(crew.kills)} in {disturbed_s:.0f} s, all ended after "
            f"{time.monotonic() - begun_s:.0f} s; {poster.num_broken} posts without an answer, "
            f"{sum(job.resume_count for job in jobs)} claims taken over, "
            f"{sum(job.num_trials.get(TrialState.INTERRUPTED, 0) for job in jobs)} trials cut short\n"
        )
    assert "Traceback" not in commands.log.read_text()
    assert len(set(poster.accepted)) == plan.num_jobs == len(stores.jobs.list(limit=500))
    for job in jobs:
        require_whole(stores, job)
    require_nothing_left(stores, load_settings())
    require_undisturbed_fronts(stores, jobs, tmp_path)
    stores.database.dispose()


def disturb(plan: Plan, stores: Stores, crew: Crew, poster: Poster) -> None:
    """Kill one process after the other, and let jobs come in all the while."""
    chance = random.Random(plan.seed)
    told = 0
    for kill in range(plan.num_kills):
        due = 2 + (plan.num_jobs - 2) * (kill + 1) // plan.num_kills  # there is always something to do
        poster.tell(due - told)
        told = due
        wait_for_events(stores, chance.randint(0, MAX_EVENTS))
        time.sleep(chance.uniform(0, 0.05))  # so that kills fall between events as well as upon them
        crew.kill(chance.choice(ROLES))
        require_owners(stores)


def wait_for_events(stores: Stores, count: int) -> None:
    """Return when so much more has happened to the jobs, or nothing for a while."""
    before = num_events(stores)
    deadline_s = time.monotonic() + LONGEST_QUIET_S
    while num_events(stores) < before + count and time.monotonic() < deadline_s:
        time.sleep(0.01)


def num_events(stores: Stores) -> int:
    """Return the number of the newest event of all."""
    return max((stores.events.last_id(job.id) for job in stores.jobs.list(limit=500)), default=0)


def ended(stores: Stores, job_ids: list[str]) -> list[Job] | None:
    jobs = [stores.jobs.get(job_id) for job_id in job_ids]
    return jobs if all(job.has_ended for job in jobs) else None


def require_owners(stores: Stores) -> None:
    """Require that whatever runs has somebody who runs it, or did until a moment ago."""
    for job in stores.jobs.list(limit=500, state=JobState.RUNNING):
        assert job.owner is not None
        assert job.lease_expires_at is not None


def require_whole(stores: Stores, job: Job) -> None:
    """Require that a job ended as it may, that each of its trials did, once, and that its events say the same."""
    trials = stores.trials.list(job.id)
    if job.state is not JobState.FINISHED:
        assert (job.state, job.ended_because, job.num_lost) == (JobState.FAILED, "attempts", MAX_LOST)
    assert (job.lease_expires_at, TrialState.RUNNING in job.num_trials) == (None, False)
    for number in {trial.number for trial in trials}:
        attempts = [trial for trial in trials if trial.number == number]
        assert [trial.attempt for trial in attempts] == list(range(1, len(attempts) + 1))
        assert all(trial.state is TrialState.INTERRUPTED for trial in attempts[:-1])
        assert job.state is JobState.FAILED or attempts[-1].state in OUTCOMES
    told = stores.events.after(job.id, 0)
    assert [event.id for event in told] == sorted(event.id for event in told)
    happened = Counter((event.kind, event.data["number"], event.data["attempt"])
                       for event in told if event.kind != "job")  # fmt: skip
    assert happened == Counter(
        (kind, trial.number, trial.attempt) for trial in trials for kind in ("trial_started", "trial")
    )
    assert (told[-1].kind, told[-1].data["state"]) == ("job", job.state.value)


def require_nothing_left(stores: Stores, settings: Settings) -> None:
    """Require that no device is set or blocked, and that no worker is listed that is not there."""
    assert {device.control_state for device in stores.devices.list()} == {ControlState.OBSERVED}
    assert [path for path in settings.state_dir.rglob("*") if path.is_file()] == []
    stores.workers.forget_dead(is_dead)
    assert stores.workers.list() == []


def require_undisturbed_fronts(stores: Stores, jobs: list[Job], folder: Path) -> None:
    """Require that each job has the trials and the front that it has when nobody disturbs it."""
    calm = open_stores(f"sqlite:///{folder}/calm.db")
    suspected = [job for job in jobs if is_suspected(stores.trials.list(job.id)) or job.state is JobState.FAILED]
    assert len(suspected) <= len(jobs) // 3
    for job in jobs:
        if job in suspected:
            continue
        claim = calm.jobs.create_claimed(job.request, "host:1:1", 60.0)
        undisturbed = run_job(calm, claim, load_settings())
        assert job.ended_because == undisturbed.ended_because
        one, other = stores.trials.history(job.id), calm.trials.history(undisturbed.id)
        assert [said_of(trial) for trial in one] == [said_of(trial) for trial in other]
        assert [figures_of(trial) for trial in one] == [pytest.approx(figures_of(trial), rel=1e-9) for trial in other]
        front, calm_front = stores.front(job), calm.front(undisturbed)
        assert front.trials
        assert [trial.number for trial in front.trials] == [trial.number for trial in calm_front.trials]
        assert front.hypervolume == pytest.approx(calm_front.hypervolume, rel=1e-9)
    calm.database.dispose()


def is_suspected(trials: list[Trial]) -> bool:
    """Whether two workers died in one trial of a job: then that point has failed, and its front is another."""
    return any(trial.reason == INTERRUPTED_TWICE for trial in trials)


def test_an_accepted_job_outlives_its_client_and_its_server(commands: Nursery, stores: Stores) -> None:
    """BUG-25: a job is run though its client hangs up and its server is killed before it begins."""
    port = free_port()
    server = commands.start("serve", "--port", port)
    wait_until(lambda: answers(port), what="the server")
    content = json.dumps(body(0)).encode()
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(head.encode() + content)
        (job,) = wait_until(lambda: stores.jobs.list(limit=2), what="the job to be stored")
    commands.kill(server)
    assert (job.state, job.owner) == (JobState.QUEUED, None)
    worker = commands.start("worker")
    server = commands.start("serve", "--port", port)
    wait_until(lambda: stores.jobs.get(job.id).has_ended, what="the job to end")
    wait_until(lambda: answers(port), what="the server")
    for pid in (worker, server):
        commands.stop(pid)
    require_whole(stores, stores.jobs.get(job.id))
    assert [other.id for other in stores.jobs.list(limit=2)] == [job.id]


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
