"""The whole server: what it prints, how it ends by a signal, and what an engine's death makes of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from api.errors import UsageError
from api.model_server.running import Serving, bound_socket, serve_until_stopped
from api.model_server.vocabulary import Vocabulary
from engine.embedded.loop import EmbeddedEngine
from engine.errors import EngineDied
from engine.settings import EngineSettings
from tests.api.commands import command, environment
from tests.api.model_server.stage import InProcessEngine


@contextmanager
def serving_process(folder: Path, log: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start `wattfront serve-model` on a free port; yield the process and its URL once it answers."""
    options = ["--port", "0", "--max-context", "256", "--num-threads", "1", "--device", "cpu"]
    with log.open("w") as sink:
        process = subprocess.Popen(
            command("serve-model", folder, *options), env=environment(), stderr=subprocess.PIPE, stdout=sink, text=True
        )
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if (found := re.search(r"at (http://\S+);", line)) is not None:
                    yield process, found[1]
                    return
            raise AssertionError(f"it ended with {process.wait()}")
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stderr.close()


def test_a_signal_lets_what_runs_end(tiny_folder: Path, tmp_path: Path) -> None:
    """After SIGTERM in mid-stream the stream comes to its end, the process ends with 0 and its engine is gone."""
    asked = {"prompt": "hello", "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True}
    with serving_process(tiny_folder, tmp_path / "log") as (process, url):
        transport = httpx.HTTPTransport(retries=200)  # it says where it will listen before it does
        with (
            httpx.Client(base_url=url, timeout=60, transport=transport) as client,
            client.stream("POST", "/v1/completions", json=asked) as answer,
        ):
            lines = (line for line in answer.iter_lines() if line)
            first = next(lines)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            process.send_signal(signal.SIGTERM)
            rest = list(lines)
        code = process.wait(timeout=60)
        assert process.stderr is not None
        said = process.stderr.read()

    reasons = [json.loads(line.removeprefix("data: "))["choices"][0]["finish_reason"] for line in [first, *rest[:-1]]]
    assert reasons == [None] * 199 + ["length"]
    assert rest[-1] == "data: [DONE]"
    assert (code, said.strip()) == (0, "stopped")
    assert children
    assert not any(os.path.exists(f"/proc/{child}") for child in children)


def test_a_dead_engine_ends_the_server(tiny_folder: Path) -> None:
    """The server of an engine that dies answers once with the reason, stops by itself and raises EngineDied."""
    settings = EngineSettings(model="tiny", max_batch=2, num_threads=1, max_context=256)
    engine = InProcessEngine(EmbeddedEngine(settings, tiny_folder))
    vocabulary = Vocabulary(tiny_folder)
    serving = Serving(
        name="tiny", settings=settings, folder=tiny_folder, vocabulary=vocabulary, template=None, max_queue=1,
        drain_s=5, api_key=None,
    )  # fmt: skip
    before = signal.getsignal(signal.SIGTERM)
    answers: list[httpx.Response] = []

    def ask(url: str) -> None:
        with httpx.Client(base_url=url, timeout=30, transport=httpx.HTTPTransport(retries=200)) as client:
            client.get("/health")
            engine.has_to_die = True
            answers.append(client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 100}))

    with bound_socket("127.0.0.1", 0) as listener:
        asker = threading.Thread(target=ask, args=(f"http://127.0.0.1:{listener.getsockname()[1]}",))
        asker.start()
        with pytest.raises(EngineDied, match="engine_died: engine process 1 ended with SIGKILL"):
            serve_until_stopped(serving, engine, listener)
        asker.join()

    assert [answer.status_code for answer in answers] == [500]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_port_in_use_is_said_before_anything_is_loaded() -> None:
    """An address that cannot be had is refused by name."""
    with bound_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"--port is {port}: cannot listen at 127\.0\.0\.1"):
            bound_socket("127.0.0.1", port)
    with pytest.raises(UsageError, match=r"--host is 'no\.such\.name\.invalid'"):
        bound_socket("no.such.name.invalid", 1)
