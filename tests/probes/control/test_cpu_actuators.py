"""The CPU's clock cap over a fake cpufreq tree."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from probes.control.actuator import Actuator
from probes.control.cpu_actuators import CpuClockCap
from probes.cpu.paths import HostPaths
from probes.errors import DeviceLost, InvalidSetting, NotPermitted, NotSupported, ProbeError, RestoreFailed
from probes.settings import CPU_CLOCK_CAP
from tests.probes.fake_host import refuse, write_policy, write_pstate


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """The cap files of three policies, the second of slower cores."""
    return [
        write_policy(tmp_path, 0, cores="0 1", highest_khz=4_000_000),
        write_policy(tmp_path, 2, cores="2", highest_khz=3_000_000),
        write_policy(tmp_path, 10, cores="10", highest_khz=4_000_000, cap_khz=3_500_000),
    ]


@pytest.fixture
def cap(tmp_path: Path) -> CpuClockCap:
    return CpuClockCap(HostPaths(cpu=tmp_path), "CPU-1")


def caps_khz(files: list[Path]) -> list[int]:
    return [int(file.read_text()) for file in files]


def record_writes(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    written: list[Path] = []
    open_file = Path.open

    def recording(path: Path, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
        if mode != "r":
            written.append(path)
        return open_file(path, mode, *arguments, **keywords)

    monkeypatch.setattr(Path, "open", recording)
    return written


@pytest.mark.usefixtures("files")
def test_it_is_an_actuator_of_the_clock_cap(cap: CpuClockCap) -> None:
    """It names its device and its knob, and offers the tree's values."""
    actuator: Actuator = cap
    assert (actuator.device_uuid, actuator.knob) == ("CPU-1", CPU_CLOCK_CAP)
    assert actuator.settable().values == (800, 4000)


def test_without_a_tree_it_is_not_supported(cap: CpuClockCap) -> None:
    """In a virtual machine every method says that there is no cpufreq tree."""
    with pytest.raises(NotSupported, match="most virtual machines"):
        cap.settable()
    with pytest.raises(NotSupported):
        cap.look()
    with pytest.raises(NotSupported):
        cap.set(2000)


@pytest.mark.usefixtures("files")
def test_a_look_is_of_all_policies_and_intel_pstate(cap: CpuClockCap, tmp_path: Path) -> None:
    """What was found is every cap in kHz, and intel_pstate's two limits where it is the driver."""
    assert cap.look() == {"policy0": 4_000_000, "policy2": 3_000_000, "policy10": 3_500_000}
    write_pstate(tmp_path, max_perf_pct=90)
    assert {"max_perf_pct": 90, "no_turbo": 0}.items() <= cap.look().items()


def test_every_policy_is_capped(cap: CpuClockCap, files: list[Path]) -> None:
    """All policies get the cap, each at most its own highest clock, and it is then in force."""
    cap.set(3200)
    assert caps_khz(files) == [3_200_000, 3_000_000, 3_200_000]
    assert cap.deviation(3200) is None


def test_what_was_found_comes_back(cap: CpuClockCap, files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """POWER-36: a cap that an administrator had set is put back, not the highest clock; in reverse order."""
    found = cap.look()
    cap.set(2000)
    written = record_writes(monkeypatch)
    cap.put_back(found)
    assert caps_khz(files) == [4_000_000, 3_000_000, 3_500_000]
    assert files[::-1] == written


def test_putting_back_what_is_there_writes_nothing(
    cap: CpuClockCap, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second restore is harmless, and needs no permission."""
    found = cap.look()
    refuse(monkeypatch, *files, error=PermissionError(errno.EACCES, "denied"), writing=True)
    cap.put_back(found)
    assert cap.look() == found


@pytest.mark.usefixtures("files")
def test_intel_pstates_limits_come_back_first(
    cap: CpuClockCap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where somebody changed them they are put back, before the policies that depend on them."""
    folder = write_pstate(tmp_path)
    found = cap.look()
    cap.set(2000)
    write_pstate(tmp_path, max_perf_pct=50, no_turbo=1)
    written = record_writes(monkeypatch)
    cap.put_back(found)
    assert [folder / "no_turbo", folder / "max_perf_pct"] == written[:2]
    assert cap.look() == found


def test_a_failed_write_undoes_those_before_it(
    cap: CpuClockCap, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """POWER-32: when the third policy refuses, the first two are as they were, and the refusal is told."""
    refuse(monkeypatch, files[2], error=PermissionError(errno.EACCES, "denied"), writing=True)
    with pytest.raises(NotPermitted, match="policy10"):
        cap.set(2000)
    assert caps_khz(files) == [4_000_000, 3_000_000, 3_500_000]


def test_a_failed_undo_is_told_with_its_cause(
    cap: CpuClockCap, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a policy takes the cap but not its old value, restore_failed names that policy and the first refusal."""
    open_file = Path.open
    writes = dict.fromkeys(files, 0)

    def refuse_later(path: Path, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
        if path in writes and mode != "r":
            writes[path] += 1
            if path == files[1] or writes[path] > 1:
                raise PermissionError(errno.EACCES, "denied")
        return open_file(path, mode, *arguments, **keywords)

    monkeypatch.setattr(Path, "open", refuse_later)
    with pytest.raises(RestoreFailed, match=r"policy2/scaling_max_freq.*; then .*policy0/scaling_max_freq"):
        cap.set(2000)


def test_every_policy_is_put_back_even_if_one_refuses(
    cap: CpuClockCap, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """POWER-35: one refusal does not stop the others, and all that is not as found is in the error."""
    found = cap.look()
    cap.set(2000)
    refuse(monkeypatch, files[2], error=PermissionError(errno.EACCES, "denied"), writing=True)
    with pytest.raises(RestoreFailed, match="policy10"):
        cap.put_back(found)
    assert caps_khz(files) == [4_000_000, 3_000_000, 2_000_000]


@pytest.mark.usefixtures("files")
def test_a_value_that_does_not_stick_is_a_failed_restore(cap: CpuClockCap, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that the kernel accepts and ignores is found by reading back."""
    found = dict(cap.look())
    found["policy0"] = 3_900_000
    monkeypatch.setattr("probes.control.cpu_actuators.write_number", lambda _file, _value: None)
    with pytest.raises(RestoreFailed, match="policy0/scaling_max_freq is 4000000 instead of 3900000"):
        cap.put_back(found)


def test_only_files_of_the_tree_are_written(cap: CpuClockCap, files: list[Path], tmp_path: Path) -> None:
    """POWER-38: a name that is no policy's, as from a journal tampered with, is refused, and the rest is put back."""
    elsewhere = tmp_path / "scaling_max_freq"
    elsewhere.write_text("1\n")
    found = {**cap.look(), "..": 5}
    cap.set(2000)
    with pytest.raises(RestoreFailed, match=r"\.\.: no policy is called so"):
        cap.put_back(found)
    assert elsewhere.read_text() == "1\n"
    assert caps_khz(files) == [4_000_000, 3_000_000, 3_500_000]


def test_a_policy_that_is_gone_fails_the_restore(cap: CpuClockCap, files: list[Path]) -> None:
    """A core taken offline keeps its cap in the kernel, so its policy's absence is no success."""
    found = cap.look()
    cap.set(2000)
    files[0].unlink()
    with pytest.raises(RestoreFailed, match="policy0/scaling_max_freq is gone"):
        cap.put_back(found)
    assert caps_khz(files[1:]) == [3_000_000, 3_500_000]


def test_a_reset_lifts_every_cap(cap: CpuClockCap, files: list[Path]) -> None:
    """Without knowing what was found, each policy gets its highest clock."""
    cap.set(1000)
    cap.reset()
    assert caps_khz(files) == [4_000_000, 3_000_000, 4_000_000]


def test_another_actors_cap_is_seen(cap: CpuClockCap, files: list[Path]) -> None:
    """POWER-28: when somebody else changes one policy, the deviation names it."""
    cap.set(2000)
    files[1].write_text("3000000\n")
    found = cap.deviation(2000)
    assert found is not None
    assert "policy2" in found


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), NotPermitted, "only root may write .*wattfront guard"),
        (OSError(errno.EROFS, "Read-only file system"), NotPermitted, "read-only mount"),
        (OSError(errno.EINVAL, "Invalid argument"), InvalidSetting, "refuses 2000000 in"),
        (FileNotFoundError(errno.ENOENT, "No such file"), DeviceLost, "is gone"),
        (OSError(errno.EIO, "Input/output error"), ProbeError, "cannot be written"),
    ],
)
def test_refusals_have_names(
    cap: CpuClockCap,
    files: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    error: OSError,
    kind: type[ProbeError],
    words: str,
) -> None:
    """POWER-23, POWER-25: each way a write can be refused is an error of its own, with the file and the remedy."""
    refuse(monkeypatch, files[0], error=error, writing=True)
    with pytest.raises(ProbeError, match=words) as caught:
        cap.set(2000)
    assert kind is type(caught.value)
