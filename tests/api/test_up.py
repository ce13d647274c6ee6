"""Service and worker on one machine."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

from api.settings import Settings, load_settings
from api.stores import Stores
from api.up import Supervisor, open_page, require_free_port, url_of
from db.job import JobState
from tests.api.commands import ended_of, free_port, is_gone, started, wait_until

ADDRESSES = [
    ("127.0.0.1", "http://127.0.0.1:9000"),
    ("::1", "http://[::1]:9000"),
    ("localhost", "http://localhost:9000"),
]


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """A job of two trials on a simulated GPU: who watches over whom is the same as with a real engine."""
    job = {
        "model": "llama-3.1-8b",
        "device": "simulated:h100-sxm",
        "workload": {"prompt_tokens": "32-64", "output_tokens": "16-32"},
        "knobs": {"max_batch": [4, 16]},
        "budget": {"trials": 2},
        "window": {"warmup_s": 1, "window_s": 2},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    return tmp_path / "job.yaml"


@pytest.mark.slow
def test_up_runs_a_job_and_stops(job_file: Path, stores: Stores) -> None:
    """`up --job FILE --exit` runs the job, prints what it found, and leaves no process."""
    port = free_port()
    with started("up", "--job", job_file, "--exit", "--port", port) as up:
        children = wait_until(lambda: children_of(up.pid, 2), what="service and worker")
        ended = ended_of(up)
    (job,) = stores.jobs.list(limit=5)
    assert (ended.code, job.state) == (0, JobState.FINISHED), ended
    assert sum(job.num_trials.values()) == 2
    assert f"page: http://127.0.0.1:{port}\n" in ended.out
    assert f"page of this job: http://127.0.0.1:{port}/jobs/{job.id}\n" in ended.out
    assert f"job {job.id[:8]} {job.state}: " in ended.out
    assert [line.split()[1] for line in ended.out.splitlines() if line.startswith("trial ")] == ["0", "1"]
    assert all(is_gone(child) for child in children)


@pytest.mark.slow
def test_up_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """Without a job the page is served until SIGTERM, also where a folder is named like one of our packages."""
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "__init__.py").write_text("raise SystemExit('the wrong api')")
    port = free_port()
    with started("up", "--port", port, cwd=tmp_path) as up:
        wait_until(answers(f"http://127.0.0.1:{port}/readyz"), what="the service")
        children = wait_until(lambda: children_of(up.pid, 2), what="service and worker")
        up.send_signal(signal.SIGTERM)
        ended = ended_of(up)
    assert (ended.code, ended.err) == (0, "")
    assert all(is_gone(child) for child in children)


def test_children_get_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What service and worker read from their environment is what `up` was told, tables included."""
    monkeypatch.setenv("WATTFRONT_PRIOR_SM_CLOCK_CAPS_MHZ", '{"GPU-1": 1500}')
    monkeypatch.setenv("WATTFRONT_ALLOW_DEVICE_CONTROL", "true")
    settings = load_settings()
    for name, value in Supervisor(settings)._environment.items():
        monkeypatch.setenv(name, value)
    assert settings == load_settings()


@pytest.mark.slow
def test_what_dies_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that is killed is there again after a look at it."""
    monkeypatch.setenv("WATTFRONT_PORT", str(free_port()))
    monkeypatch.setattr("api.up._SHORT_LIFE_S", 0.0)
    with Supervisor(load_settings()) as supervisor:
        supervisor.wait_until_healthy()
        (service,) = services()
        service.kill()

        def is_another_there() -> bool:
            supervisor.watch()
            return any(process.pid != service.pid for process in services())

        wait_until(is_another_there, what="the service to be started again")
        supervisor.wait_until_healthy()


def services() -> list[psutil.Process]:
    """Return the web services that this process has started and that live."""
    children = psutil.Process().children()
    return [child for child in children if not is_gone(child) and "serve" in child.cmdline()]


def children_of(pid: int, count: int) -> list[psutil.Process] | None:
    children = psutil.Process(pid).children(recursive=True)
    return children if len(children) >= count else None


def answers(url: str) -> Callable[[], bool]:
    def look() -> bool:
        try:
            return httpx.get(url, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    return look


@pytest.mark.parametrize(("host", "url"), ADDRESSES)
def test_the_url_of_an_address(settings: Settings, host: str, url: str) -> None:
    """An address of either kind becomes a URL that a browser takes."""
    assert url_of(settings.model_copy(update={"host": host, "port": 9000})) == url


def test_a_free_port_is_left_free(settings: Settings) -> None:
    """Asking whether a port is free does not take it."""
    at = settings.model_copy(update={"port": free_port()})
    require_free_port(at)
    require_free_port(at)
    with socket.socket() as taker:
        taker.bind((at.host, at.port))


@pytest.mark.parametrize(("has_desktop", "opened"), [(True, ["http://x"]), (False, [])])
def test_a_page_is_opened_on_a_desktop_only(
    monkeypatch: pytest.MonkeyPatch, has_desktop: bool, opened: list[str]
) -> None:
    """Without a display no browser is started, which in a terminal would take the terminal."""
    seen: list[str] = []
    monkeypatch.setattr("webbrowser.open", seen.append)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    if has_desktop:
        monkeypatch.setenv("DISPLAY", ":0")
    open_page("http://x")
    assert opened == seen
