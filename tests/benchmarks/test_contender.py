"""Contenders speak over pipes, whatever their libraries print, and one that dies costs itself only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.contender import Contender, ContenderDied, Run, RunningContender

FAKE = Path(__file__).with_name("fake_peer.py")


def fake(name: str = "fake-one", **settings: Any) -> Contender:
    return Contender(
        name=name, script=FAKE, python=sys.executable, settings={"label": "a fake", **settings},
        environment={"FAKE_SETTING": "as told"},
    )  # fmt: skip


@pytest.fixture(name="running")
def _running() -> Iterator[RunningContender]:
    """A contender that does what it should."""
    with RunningContender(fake()) as running:
        yield running


def test_a_contender_serves_what_it_is_told(running: RunningContender) -> None:
    """Settings, environment, prompts and figures cross the pipe; what the library prints does not get in between."""
    assert running.words == f"a fake of process {running.process.pid}, as told"
    assert running.run([[1, 2], [3]], 2) == Run(
        total_s=2.0, ttft_s=(0.1, 0.2), tpot_s=(0.01, 0.01), token_ids=((3, 4), (3, 4))
    )
    assert running.run([[5]], 1).token_ids == ((5,),)


def test_an_unknown_question_is_an_error_and_no_end(running: RunningContender) -> None:
    """A method that the peer has not is refused by name, and the next run is served."""
    with pytest.raises(ContenderDied, match=r"fake-one: AttributeError: .*mean_logprob"):
        running.ask("mean_logprob", pieces=[])
    assert running.run([[5]], 1).token_ids == ((5,),)


def test_a_library_that_refuses_to_load_is_named() -> None:
    """The error's class, its message and the log's last lines are told, and the process is gone."""
    with pytest.raises(ContenderDied, match=r"fake-one: RuntimeError: no such model; .*warns on standard error"):
        RunningContender(fake(fault="load"))


def test_a_death_in_a_run_is_named(running: RunningContender) -> None:
    """A process that ends in the midst of a run is told with its last words; closing it again does nothing."""
    with RunningContender(fake(fault="death")) as dying:
        process = dying.process
        with pytest.raises(ContenderDied, match=r"fake-one: its process ended; .*cannot go on"):
            dying.run([[1]], 2)
    dying.close()

    assert not process.is_running()
    assert running.run([[5]], 1).token_ids == ((5,),)


def test_too_few_tokens_are_no_run() -> None:
    """A contender that generates less than asked is not compared: it had less to do."""
    with (
        RunningContender(fake(fault="short")) as running,
        pytest.raises(ContenderDied, match="gave other numbers of tokens than 4 each"),
    ):
        running.run([[1], [2]], 4)


def test_closing_ends_the_process(running: RunningContender) -> None:
    """Nothing is left of a contender that was closed, and closing is idempotent."""
    pid = running.process.pid
    running.close()
    running.close()

    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(("name", "family"), [("hf", "hf"), ("vllm-eager", "vllm"), ("ours-fp32", "ours")])
def test_a_family_is_what_stands_before_the_hyphen(name: str, family: str) -> None:
    """Several forms of one peer are one family."""
    assert fake(name).family == family
