"""The command line: what it refuses and how it says so, what it prints, what it leaves behind."""

from __future__ import annotations

import csv
import io
import json
import os
import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from safetensors.torch import save_file
from sqlalchemy import event
from sqlalchemy.engine import Engine

from api.cli import cli
from api.heartbeat import LEASE_S
from api.owners import owner_name
from api.settings import Settings
from api.stores import Stores
from db.job import JobState
from probes.detect import find_device, list_devices
from probes.device import Method, Scope
from probes.holder import hold
from tests.api.commands import FinishedJob, free_port, run, started, tiny_flags
from tests.api.conftest import Main
from tests.api.scripted import claimed, complete, tiny_request, too_slow, use_script
from tests.db.factories import make_measurement, make_point, make_reading, make_request, make_trial
from tests.tiny_model import tiny_config, tiny_tensors, write_tiny_model

#: Options after --model TINY, and what the sentence holds beside the word error.
REFUSED: dict[str, tuple[list[str], str]] = {
    "unknown model": (["--model=no-such-model"], "model is 'no-such-model'"),
    "empty model": (["--model="], "model is ''"),
    "a model that is a file": (["--model=/etc/hostname"], "model is '/etc/hostname': a file must be a .gguf"),
    "unknown engine": (["--engine=warp"], "engine is 'warp'"),
    "unknown device": (["--device=cuda:77"], "there is no device 'cuda:77'"),
    "a knob the device lacks": (["--knob=sm_clock_cap_mhz=1200,1500"], "knobs.sm_clock_cap_mhz is [1200, 1500]"),
    "unknown knob": (["--knob=turbo=1"], "turbo"),
    "a knob without values": (["--knob=max_batch="], "knobs.max_batch is []"),
    "a knob value twice": (["--knob=max_batch=2,2"], "knobs.max_batch is [2, 2]"),
    "a knob value of zero": (["--knob=max_batch=0"], "max_batch is 0"),
    "a fraction of a sequence": (["--knob=max_batch=1.5"], "1.5"),
    "unknown precision": (["--knob=precision=fp4"], "fp4"),
    "an empty range": (["--workload=closed:prompt=9-3"], "workload.prompt_tokens is '9..3'"),
    "unknown scenario": (["--workload=bursts"], "workload.scenario is 'bursts'"),
    "unknown part of a workload": (["--workload=closed:users=3"], "users=3"),
    "a prompt longer than the context": (["--workload=closed:prompt=500,output=13"], "500 prompt + 13 output tokens"),
    "unknown metric": (["--sla=speed_p99_ms<=3"], "speed_p99_ms"),
    "a limit that is no number": (["--sla=ttft_p99_ms<=soon"], "soon"),
    "a limit of NaN": (["--sla=ttft_p99_ms<=nan"], "sla.ttft_p99_ms is nan"),
    "a limit twice": (["--sla=ttft_p99_ms<=500", "--sla=ttft_p99_ms<=300"], "as 500.0 and as 300.0"),
    "unknown axis": (["--latency=speed"], "latency_metric is 'speed'"),
    "no trials": (["--trials=0"], "budget.trials is 0"),
    "endless minutes": (["--minutes=inf"], "budget.minutes is inf"),
    "a window of nothing": (["--window=0"], "window.window_s is 0"),
    "a negative seed": (["--seed=-1"], "seed is -1"),
    "a long name": ([f"--name={'x' * 300}"], "at most 200 characters"),
    "a resume with other options": (
        ["--resume=0000"],
        "as it was; model, device cannot be changed",
    ),
}


def assert_refused(ended: Any, words: str, stores: Stores) -> None:
    """Check that a command said in one sentence what was wrong, and left no job."""
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.complaint
    assert stores.jobs.list(limit=5) == []


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_before_anything_is_stored(
    main_with: Main, tiny_folder: Path, stores: Stores, name: str
) -> None:
    """Bad input ends with exit code 2, one sentence that holds the value, and no job in the database."""
    options, words = REFUSED[name]
    assert_refused(main_with("tune", f"--model={tiny_folder}", "--device=cpu", *options), words, stores)


def test_the_process_ends_with_two(stores: Stores) -> None:
    """As a process too, bad input gives exit code 2, one sentence on standard error, and no traceback."""
    assert_refused(run("tune", "--model=no-such-model"), "model is 'no-such-model'", stores)


def test_a_broken_job_file_is_refused_with_its_line(main_with: Main, stores: Stores, tmp_path: Path) -> None:
    """The command line passes on where in the job file the fault is."""
    (tmp_path / "job.yaml").write_text("model: smollm2-135m\nbudget:\n  trials: many\n")
    assert_refused(main_with("tune", tmp_path / "job.yaml"), "job.yaml:3: budget.trials is 'many'", stores)
    assert_refused(main_with("up", "--job", tmp_path / "job.yaml", "--port", free_port()), "job.yaml:3:", stores)


def test_nothing_to_tune_is_refused(main_with: Main, stores: Stores) -> None:
    """Without a job file and a model it says what to give."""
    assert_refused(main_with("tune"), "give a job file or --model", stores)


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def garbled(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 4096)


def empty(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def sharded_without_one(folder: Path) -> None:
    tensors = tiny_tensors(tiny_config())
    names = sorted(tensors)
    save_file({name: tensors[name] for name in names[:5]}, folder / "model-1-of-2.safetensors")
    shards = {name: f"model-{1 if name in names[:5] else 2}-of-2.safetensors" for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (folder / "model.safetensors").unlink()


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def of_another_family(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(tiny_config() | {"architectures": ["MambaForCausalLM"]}))


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (truncated, "model.safetensors: truncated: the header promises"),
    "garbled": (garbled, "model.safetensors: truncated or not safetensors"),
    "empty": (empty, "model.safetensors: truncated or not safetensors"),
    "missing shard": (sharded_without_one, "files that are not there: model-2-of-2.safetensors"),
    "only a pickle": (pickled, "has no *.safetensors file"),
    "without config": (without_config, "config.json"),
    "of another family": (of_another_family, "architecture MambaForCausalLM is not supported"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_refused_before_anything_is_stored(
    main_with: Main, stores: Stores, tmp_path: Path, name: str
) -> None:
    """Files that are missing, cut short or of the wrong kind are named, and no job is made for them (BUG-41)."""
    damage, words = DAMAGES[name]
    damage(write_tiny_model(tmp_path / "model"))
    assert_refused(main_with("tune", *tiny_flags(tmp_path / "model")), words, stores)


def test_a_wrong_shape_fails_the_job(main_with: Main, stores: Stores, tmp_path: Path) -> None:
    """A tensor of another shape than the config's, which only loading shows, fails the job with that sentence."""
    tensors = tiny_tensors(tiny_config())
    tensors["model.norm.weight"] = torch.ones(32)
    folder = write_tiny_model(tmp_path / "model", tensors=tensors)
    ended = main_with("tune", *tiny_flags(folder))
    words = "model.norm.weight has shape (32,), the config asks for (64,)"
    assert ended.code == 2
    assert words in ended.complaint
    (job,) = stores.jobs.list(limit=5)
    assert (job.state, job.ended_because) == (JobState.FAILED, "error")
    assert words in str(job.message)


def test_a_cache_that_cannot_be_written_is_named(
    main_with: Main, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a model cannot be kept, the sentence names the place and the setting that moves it."""
    monkeypatch.setenv("WATTFRONT_CACHE_DIR", "/dev/null/cache")
    ended = main_with("tune", "--model=smollm2-135m", "--device=cpu")
    assert_refused(ended, "WATTFRONT_CACHE_DIR, which is /dev/null/cache", stores)


# A resumed job


def test_an_unknown_job_cannot_be_resumed(main_with: Main, stores: Stores) -> None:
    """Resuming what is not there is refused with the id that was given."""
    assert_refused(main_with("tune", "--resume=0123abcd"), "there is no job '0123abcd'", stores)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (["--knob=max_batch=2,4,8,16,32"], "knobs.max_batch"),
        (["--knob=max_batch=2,4,8"], "knobs.max_batch"),
        (["--knob=max_batch=16,8,4,2"], "knobs.max_batch"),
        (["--model=other"], "model"),
        (["--trials=99", "--seed=3"], "budget.trials, seed"),
        (["--sla=ttft_p99_ms<=5"], "sla.ttft_p99_ms"),
        (["--workload=closed:prompt=3"], "workload.scenario, workload.prompt_tokens"),
        (["job.yaml"], "job.yaml"),
    ],
)
def test_a_resume_cannot_change_the_job(
    main_with: Main, stores: Stores, tiny_folder: Path, change: list[str], name: str
) -> None:
    """Another choice on a resume is refused by its name before any trial, and the job is as it was (BUG-14)."""
    job = stores.jobs.create(tiny_request(tiny_folder))
    ended = main_with("tune", f"--resume={job.id}", *change)
    assert ended.code == 2
    assert f"as it was; {name} cannot be changed now: start a new job" in ended.complaint
    assert [job] == stores.jobs.list(limit=5)


def test_a_job_that_ended_cannot_be_resumed(main_with: Main, stores: Stores) -> None:
    """A finished job stays as it is, and the sentence says that it is finished."""
    claim = claimed(stores, make_request())
    stores.jobs.finish(claim, JobState.FINISHED, "trials")
    ended = main_with("tune", f"--resume={claim.job_id[:6]}")
    assert ended.code == 2
    assert f"job {claim.job_id} is already finished" in ended.complaint


def test_a_held_job_cannot_be_taken(main_with: Main, stores: Stores) -> None:
    """A job that a living worker holds is refused with that worker's name."""
    claim = stores.jobs.claim(stores.jobs.create(make_request()).id, owner_name(), LEASE_S)
    ended = main_with("tune", f"--resume={claim.job_id}")
    assert ended.code == 2
    assert f"is held by {owner_name()} until" in ended.complaint


def test_a_device_in_use_is_told(main_with: Main, tiny_folder: Path, stores: Stores) -> None:
    """While another process measures the device, its process id is told, and the job waits to be resumed."""
    device = find_device("cpu", list_devices())
    with hold(device.info.uuid):
        ended = main_with("tune", *tiny_flags(tiny_folder))
    assert ended.code == 2
    assert f"is being measured by process {os.getpid()}; wait until that is done" in ended.complaint
    (job,) = stores.jobs.list(limit=5)
    assert (job.state, job.num_trials) == (JobState.CANCELLED, {})
    stores.jobs.claim(job.id, "host:1:1", LEASE_S, reopen=True)


# Cancelling


def test_a_waiting_job_is_cancelled(main_with: Main, stores: Stores) -> None:
    """A job that nobody runs ends at once, and cancelling it again changes nothing."""
    job = stores.jobs.create(make_request())
    for _ in range(2):
        ended = main_with("cancel", job.id[:6])
        assert (ended.code, ended.out, ended.err) == (0, f"job {job.id[:8]} is cancelled\n", "")
    assert stores.jobs.get(job.id).state is JobState.CANCELLED


def test_a_running_job_is_told_to_end(main_with: Main, stores: Stores) -> None:
    """A job that a worker holds ends with its worker's next heartbeat, and the command says so."""
    claim = claimed(stores, make_request())
    ended = main_with("cancel", claim.job_id)
    assert ended.out == f"job {claim.job_id[:8]} is running; it ends within seconds\n"
    assert stores.jobs.get(claim.job_id).cancel_requested


def test_no_job_is_cancelled_by_a_wrong_id(main_with: Main) -> None:
    """Cancelling what is not there is refused with the id."""
    ended = main_with("cancel", "0000")
    assert ended.code == 2
    assert "there is no job '0000'" in ended.complaint


# The database


def test_a_locked_database_is_told(
    main_with: Main, tiny_folder: Path, stores: Stores, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When another process holds the lock for longer than was set, the sentence names the file and the time."""
    monkeypatch.setenv("WATTFRONT_DATABASE_TIMEOUT_S", "0.1")
    other = sqlite3.connect(settings.database_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    ended = main_with("tune", *tiny_flags(tiny_folder))
    other.execute("ROLLBACK")
    other.close()
    assert_refused(ended, "database is locked for 0.1 s; another process holds the lock", stores)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:////dev/null/folder/wattfront.db", "cannot create the folder of sqlite:////dev/null/folder"),
        ("sqlite:////dev", "unable to open database file"),
        ("mysql://host/wattfront", "'mysql' is not supported"),
        ("wattfront.db", "'wattfront.db' is not a database URL"),
    ],
)
def test_a_database_that_cannot_be_opened_is_named(main_with: Main, url: str, words: str) -> None:
    """A folder that cannot be made, a file that cannot be opened and a URL of another kind are told by name."""
    ended = main_with("jobs", "--database", url)
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.complaint


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Give every new SQLite file room for two pages."""

    def limit(connection: Any, _: object) -> None:
        connection.execute("PRAGMA max_page_count = 2")

    event.listen(Engine, "connect", limit)
    yield
    event.remove(Engine, "connect", limit)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_told(main_with: Main, tiny_folder: Path, tmp_path: Path) -> None:
    """When there is no room for the store, the sentence says so and that nothing was stored."""
    ended = main_with("tune", *tiny_flags(tiny_folder), "--database", f"sqlite:///{tmp_path}/new.db")
    assert (ended.code, ended.out) == (2, "")
    assert "database or disk is full; free some space; nothing of this transaction was stored" in ended.complaint


def test_what_is_no_database_is_told(main_with: Main, tmp_path: Path) -> None:
    """Another file in the database's place is refused and left alone."""
    (tmp_path / "notes.txt").write_text("buy milk\n" * 500)
    ended = main_with("jobs", "--database", f"sqlite:///{tmp_path}/notes.txt")
    assert ended.code == 2
    assert "file is not a database; restore a backup, or give another file" in ended.complaint
    assert (tmp_path / "notes.txt").read_text() == "buy milk\n" * 500


# The service's address


@pytest.mark.parametrize("command", ["serve", "up"])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_an_address_of_others_needs_keys(main_with: Main, command: str, host: str) -> None:
    """An address that others can reach is refused without keys: nothing would keep them out."""
    ended = main_with(command, "--host", host)
    assert ended.code == 2
    assert f"host is {host!r}" in ended.complaint
    assert "wattfront keys create" in ended.complaint


@pytest.mark.parametrize("command", ["serve", "up"])
def test_a_port_in_use_is_refused(main_with: Main, command: str) -> None:
    """When something listens on the port already, the sentence names it, and nobody else's answer is taken for ours."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = main_with(command, "--port", port)
    assert ended.code == 2
    assert f"port is {port}: cannot listen on 127.0.0.1 (Address already in use)" in ended.complaint


@pytest.mark.parametrize("command", ["serve", "up", "jobs", "doctor", "tune"])
def test_a_bad_variable_stops_every_command(main_with: Main, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """A setting that cannot be read is told by its name, whatever is asked for."""
    monkeypatch.setenv("WATTFRONT_PORT", "http")
    ended = main_with(command)
    assert ended.code == 2
    assert "WATTFRONT_PORT is 'http': " in ended.complaint


# What is printed


def test_jobs_as_json(main_with: Main, stores: Stores) -> None:
    """Jobs are listed newest first with their states, as the REST interface names them."""
    ids = [stores.jobs.create(make_request(name=str(i))).id for i in range(3)]
    stores.jobs.request_cancel(ids[0])
    ended = main_with("jobs", "--format=json")
    assert (ended.code, ended.err) == (0, "")
    items = json.loads(ended.out)["items"]
    assert [(item["id"], item["state"]) for item in items] == [
        (ids[2], "queued"),
        (ids[1], "queued"),
        (ids[0], "cancelled"),
    ]
    assert len(json.loads(main_with("jobs", "--format=json", "--limit=2").out)["items"]) == 2


def test_jobs_as_a_table(main_with: Main, stores: Stores) -> None:
    """The table shows the beginning of each id, which is enough to ask for a job; without jobs, how to start one."""
    assert "no jobs yet; start one with: wattfront tune" in main_with("jobs").out
    job = stores.jobs.create(make_request())
    ended = main_with("jobs")
    assert job.id[:8] in ended.out
    assert "nightly" in ended.out


@pytest.fixture
def stored_front(stores: Stores) -> str:
    """A job with one point of estimated energy."""
    claim = claimed(stores, make_request())
    reading = make_reading(scope=Scope.CPU_SHARE, method=Method.ESTIMATE)
    trial = make_trial(measurement=make_measurement(reading=reading))
    stores.trials.finish(stores.trials.start(claim, 0, make_point()), trial)
    return claim.job_id


def test_a_front_in_three_formats(main_with: Main, stored_front: str) -> None:
    """JSON, CSV and table show the same point, and each says that its energy is an estimate."""
    shown = json.loads(main_with("front", stored_front[:8], "--format=json").out)
    assert (shown["job"], len(shown["points"]), shown["points"][0]["is_estimate"]) == (stored_front, 1, True)
    (row,) = csv.DictReader(io.StringIO(main_with("front", stored_front, "--format=csv").out))
    assert (row["trial"], row["tok_per_j"], row["energy_scope"], row["is_estimate"]) == (
        "0",
        "2.0",
        "cpu_share",
        "true",
    )
    table = main_with("front", stored_front).out
    assert "1.9..2.1" in table
    assert "ESTIMATE, nothing was measured; scope cpu_share, method estimate" in table


def test_a_front_of_no_job(main_with: Main) -> None:
    """Asking for the front of a job that is not there is refused with the id."""
    ended = main_with("front", "0000")
    assert ended.code == 2
    assert "there is no job '0000'" in ended.complaint


def test_a_real_job_shows_each_trial(finished_job: FinishedJob) -> None:
    """Without a terminal, a job prints what it tunes, where its energy comes from, a line a trial, and how it ended."""
    lines = finished_job.out.splitlines()
    assert lines[0].startswith(f"job {finished_job.id[:8]}: ")
    assert lines[0].endswith("4 points, up to 2 trials")
    assert lines[1].startswith("energy: scope ")
    assert [line.split()[:2] for line in lines if line.startswith("trial ")] == [["trial", "0"], ["trial", "1"]]
    assert lines[-1].startswith(f"job {finished_job.id[:8]} {finished_job.stores.jobs.get(finished_job.id).state}: ")


def test_a_job_without_a_feasible_point_is_no_failure(
    main_with: Main, tiny_folder: Path, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When nothing meets the limits the job is finished, not failed, and the nearest misses are printed (BUG-15b)."""
    use_script(monkeypatch, too_slow)
    knobs = ["--knob=precision=fp32", "--knob=max_batch=2,4,8,16"]
    ended = main_with("tune", f"--model={tiny_folder}", "--device=cpu", "--sla=ttft_p99_ms<=1", *knobs, "--trials=5")
    assert (ended.code, ended.err) == (0, "")
    assert "No point meets the limits. Nearest:" in ended.out
    assert "(max_batch=2, precision=fp32): ttft_p99_ms is 2, the limit is 1" in ended.out
    (job,) = stores.jobs.list(limit=5)
    assert (job.state, job.ended_because) == (JobState.FINISHED, "no_feasible_point")
    assert ended.out.splitlines()[-1].startswith(f"job {job.id[:8]} finished: no_feasible_point; No configuration")


def test_an_error_of_ours_is_told_and_fails_the_job(
    main_with: Main, tiny_folder: Path, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody expected is not taken for bad input: it is raised, and the job is kept as failed with its words."""
    use_script(monkeypatch, lambda point: 1 / 0)  # type: ignore[return-value, arg-type] # it raises
    with pytest.raises(ZeroDivisionError):
        main_with("tune", *tiny_flags(tiny_folder))
    (job,) = stores.jobs.list(limit=5)
    assert (job.state, job.message) == (JobState.FAILED, "ZeroDivisionError: division by zero")


def test_a_relative_model_is_found_from_anywhere(
    main_with: Main, tiny_folder: Path, stores: Stores, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A job of a model given by a relative path can be resumed from another folder."""
    use_script(monkeypatch, complete)
    monkeypatch.chdir(tiny_folder.parent)
    assert main_with("tune", *tiny_flags(Path(tiny_folder.name)), "--trials=1").code == 0
    (job,) = stores.jobs.list(limit=5)
    assert job.request.model == str(tiny_folder)


# Help


def commands() -> dict[str, click.Command]:
    return dict(cli.commands)


@pytest.mark.parametrize("name", commands())
def test_help_tells_every_option(main_with: Main, name: str) -> None:
    """`--help` of a command says in a sentence what it does, and tells each option with what it means."""
    ended = main_with(name, "--help")
    assert (ended.code, ended.err) == (0, "")
    for option in commands()[name].params:
        if isinstance(option, click.Option):
            assert max(option.opts, key=len) in ended.out
            assert option.help, option.name
    assert commands()[name].help


def test_help_tells_every_command(main_with: Main) -> None:
    """`wattfront --help` lists each command."""
    ended = main_with("--help")
    assert all(f"  {name} " in ended.out for name in commands())


def test_a_reader_that_leaves_is_no_error(finished_job: FinishedJob) -> None:
    """Output into a pipe that nobody reads ends without a complaint."""
    with started("jobs", "--format=json", "--database", finished_job.url) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
