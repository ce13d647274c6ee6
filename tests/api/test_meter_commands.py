"""`wattfront watch` and `wattfront measure` as commands: streams, exit codes, signals, and a (fake) GPU."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from probes.detect import find_device, list_devices
from probes.holder import hold
from tests.api.commands import ended_of, run, started
from tests.api.conftest import Main
from tests.probes.fake_nvml import install
from tests.probes.native.fake_library import FIRST_UUID, NativeNvml
from tests.probes.native.fixtures import native_library, native_nvml

__all__ = ["native_library", "native_nvml"]

#: Says when it can be signalled, and how it was.
PATIENT = 'trap "echo got INT; exit 5" INT; trap "echo got TERM; exit 7" TERM; echo ready; while :; do sleep 0.05; done'


@pytest.fixture
def fake_gpu(native_nvml: NativeNvml, monkeypatch: pytest.MonkeyPatch) -> NativeNvml:
    """Let every process that a test starts find one fake GPU."""
    for name, value in native_nvml.environ(is_privileged=False).items():
        monkeypatch.setenv(name, value)
    return native_nvml


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_the_commands_streams_and_code_are_left_alone() -> None:
    """What the command prints is all of standard output, its exit code is ours, and what we say is marked."""
    ended = run("measure", "--device", "cpu", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (ended.code, ended.out) == (3, "out\n")
    lines = ended.err.splitlines()
    assert [line for line in lines if not line.startswith("wattfront: ")] == ["err"]
    assert any("exit code 3" in line for line in lines)


def test_figures_for_programs_come_after_the_commands_output(main_with: Main) -> None:
    """With --json standard output is the command's, then one object with scope, method, validity and joules."""
    ended = main_with(
        "measure", "--device=cpu", "--idle=0.3", "--repeats=2", "--json", "sh", "-c", "sleep 0.3; echo out"
    )
    own, _, text = ended.out.partition("{")
    assert (ended.code, own) == (0, "out\nout\n")
    shown = json.loads("{" + text)
    assert (shown["command"], shown["num_repeats"]) == (["sh", "-c", "sleep 0.3; echo out"], 2)
    assert [one["exit_code"] for one in shown["runs"]] == [0, 0]
    assert shown["idle"]["duration_s"] >= 0.3
    for reading in (one["energy"] for one in shown["runs"]):
        assert reading["energy_j"] > 0
        assert reading["device_uuids"] == [shown["device_uuid"]]
        assert reading["is_estimate"] == (reading["method"] == "estimate")


def test_what_cannot_be_started_ends_with_127(main_with: Main) -> None:
    """A command that is not there ends with a shell's code and the reason, and nothing on standard output."""
    ended = main_with("measure", "--device", "cpu", "--json", "--", "no-such-command", "--help")
    assert (ended.code, ended.out) == (127, "")
    assert "wattfront: cannot start 'no-such-command': No such file or directory" in ended.err.splitlines()


@pytest.mark.parametrize(("number", "code", "got"), [(signal.SIGTERM, 7, "got TERM"), (signal.SIGINT, 5, "got INT")])
def test_signals_reach_the_command(number: signal.Signals, code: int, got: str) -> None:
    """A signal to us is the command's to answer; its code is ours, its energy is told, and it is not repeated."""
    with started("measure", "--device", "cpu", "--repeats", "9", "--", "sh", "-c", PATIENT) as process:
        assert first_line(process) == "ready"
        process.send_signal(number)
        ended = ended_of(process)
    assert (ended.code, ended.out.strip()) == (code, got)
    assert "mean of 0 of 9 runs" in ended.err or "mean of 1 of 9 runs" in ended.err


def test_a_gpu_is_measured_by_its_counter(fake_gpu: NativeNvml) -> None:
    """On a GPU the figure is the board's, by its counter, with clocks beside it; nothing is set for it."""
    ended = run("measure", "--json", "--", "sleep", "1.5")
    assert ended.code == 0, ended
    shown = json.loads(ended.out)
    (energy,) = (one["energy"] for one in shown["runs"])
    assert (shown["device_uuid"], energy["scope"], energy["method"]) == (FIRST_UUID, "gpu", "counter")
    assert energy["mean_power_w"] == pytest.approx(400, rel=0.1)
    assert fake_gpu.gpu().num_writes == 0


def test_a_device_that_is_measured_is_refused(main_with: Main) -> None:
    """While another process measures a device, its joules would be mixed with ours: who holds it is named."""
    uuid = find_device("cpu", list_devices()).info.uuid
    with hold(uuid):
        ended = main_with("measure", "--device", "cpu", "true")
    assert ended.code == 2
    assert "is being measured by process" in ended.err.splitlines()[-1]


@pytest.mark.parametrize("flag", ["--devise=cpu", "--repeats=0", "--idle=-1", "--repeats=many"])
def test_a_wrong_option_of_measure_is_refused(main_with: Main, flag: str) -> None:
    """An option before the command that is none, or out of range, is refused and nothing runs."""
    ended = main_with("measure", flag, "echo", "ran")
    assert (ended.code, ended.out) == (2, "")
    assert flag.partition("=")[0] in ended.err


def test_what_is_missing_and_used_instead_is_told(main_with: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without a driver, `auto` says that NVML is not there and what stands in for it, labelled."""
    install(monkeypatch, None)
    ended = main_with("watch", "--count", "1")
    lines = ended.out.splitlines()
    assert ended.code == 0
    assert lines[0].startswith("missing: NVML: ")
    assert "libnvidia-ml.so.1" in lines[0]
    (instead,) = [line for line in lines if line.startswith("used instead: ")]
    assert ("ESTIMATE" in instead) == ("method estimate" in instead)
    assert lines[-1].startswith("1 look; power")


@pytest.mark.parametrize("command", [("watch", "gpu"), ("measure", "--device", "gpu", "true")])
def test_a_gpu_that_is_not_there_says_why(
    main_with: Main, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """Asked for a GPU on a machine without a driver, the refusal lists what there is and why there is no more."""
    install(monkeypatch, None)
    ended = main_with(*command)
    assert (ended.code, ended.out) == (2, "")
    assert "there is no device 'gpu'" in ended.complaint
    assert "libnvidia-ml.so.1 not found" in ended.complaint


@pytest.mark.parametrize("interval", ["0", "-1", "0.01", "61", "nan"])
def test_a_nonsense_interval_is_refused(main_with: Main, interval: str) -> None:
    """An interval that no sensor follows is refused by name before anything is looked at."""
    ended = main_with("watch", "cpu", f"--interval={interval}")
    assert (ended.code, ended.out) == (2, "")
    assert ended.complaint.startswith("interval is ")


def test_json_lines_are_all_of_standard_output(main_with: Main) -> None:
    """With --json each line of standard output is a look; what is missing goes to standard error."""
    ended = main_with("watch", "cpu", "--json", "--interval", "0.2", "--count", "3")
    looks = [json.loads(line) for line in ended.out.splitlines()]
    assert (ended.code, len(looks)) == (0, 3)
    assert {look["device_uuid"] for look in looks} == {looks[0]["device_uuid"]}
    assert ended.err.splitlines()[-1].startswith("3 looks; power")


def test_ctrl_c_ends_a_watch_well() -> None:
    """Ctrl-C ends the watch with exit code 0 and a summary of what was seen."""
    with started("watch", "cpu", "--json", "--interval", "0.1") as process:
        assert "device_uuid" in first_line(process)
        process.send_signal(signal.SIGINT)
        ended = ended_of(process)
    assert ended.code == 0
    assert "; power" in ended.err.splitlines()[-1]


def test_a_gpu_is_watched(fake_gpu: NativeNvml) -> None:
    """A line for people has the GPU's power, clocks, temperature and limit."""
    ended = run("watch", "--count", "2", "--interval", "0.1")
    assert ended.code == 0, ended
    head, look, _, summary = ended.out.splitlines()
    assert FIRST_UUID in head
    assert look.split("  ")[1:] == [
        "400.0 W",
        "clock 1980 MHz",
        "memory 2619 MHz",
        "45 °C",
        "limit 700 W",
        "events -",
    ]
    assert summary.startswith("2 looks; power min 400.0 W")
