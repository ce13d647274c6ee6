"""CPU quotas of control groups, versions 1 and 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.cpu.cgroups import quota_cores, usable_cores
from probes.cpu.paths import HostPaths
from tests.probes.fake_host import write_own_group, write_quota_v1, write_quota_v2


@pytest.fixture
def paths(tmp_path: Path) -> HostPaths:
    return HostPaths(proc=tmp_path / "proc", cgroup=tmp_path / "cgroup")


def test_no_control_groups_mean_no_quota(paths: HostPaths) -> None:
    """Without the tree all cores of the affinity are usable."""
    assert quota_cores(paths) is None
    assert usable_cores(paths, 4) == 4


@pytest.mark.parametrize(("text", "expected"), [("150000 100000", 1.5), ("max 100000", None), ("", None)])
def test_version_2_quota(paths: HostPaths, text: str, expected: float | None) -> None:
    """cpu.max is quota over period; max is none."""
    write_own_group(paths.proc, "0::/app")
    write_quota_v2(paths.cgroup / "app", text)
    assert expected == quota_cores(paths)


def test_the_tightest_quota_on_the_way_up_holds(paths: HostPaths) -> None:
    """A group above with less is what the process gets, whatever its own says."""
    write_own_group(paths.proc, "0::/slice/app")
    write_quota_v2(paths.cgroup / "slice" / "app", "400000 100000")
    write_quota_v2(paths.cgroup / "slice", "50000 100000")
    assert quota_cores(paths) == 0.5


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("quota_us", "expected"), [(250_000, 2.5), (-1, None)])
def test_version_1_quota(paths: HostPaths, folder: str, quota_us: int, expected: float | None) -> None:
    """The quota of version 1 is found under either name of its controller; -1 is none."""
    write_own_group(paths.proc, "4:cpu,cpuacct:/app", "3:cpuset:/other", "0::/")
    write_quota_v1(paths.cgroup / folder / "app", quota_us)
    assert expected == quota_cores(paths)


@pytest.mark.parametrize("group", ["/docker/0123/app", "/../../elsewhere"])
def test_inside_a_container_the_mounts_root_counts(paths: HostPaths, group: str) -> None:
    """When /proc names a path of the host that is not mounted here, the container's own group is the root."""
    write_own_group(paths.proc, f"0::{group}")
    write_quota_v2(paths.cgroup, "200000 100000")
    assert quota_cores(paths) == 2.0


def test_version_2_beside_version_1(paths: HostPaths) -> None:
    """On a host with both, the smaller of the two quotas holds."""
    write_own_group(paths.proc, "1:cpu:/app", "0::/app")
    write_quota_v1(paths.cgroup / "cpu" / "app", 300_000)
    write_quota_v2(paths.cgroup / "unified" / "app", "100000 100000")
    assert quota_cores(paths) == 1.0


def test_a_quota_above_the_affinity_gives_nothing(paths: HostPaths) -> None:
    """Eight cores' worth of time on two cores is two cores' worth."""
    write_quota_v2(paths.cgroup, "800000 100000")
    assert usable_cores(paths, 2) == 2
