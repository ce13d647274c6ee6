"""Reading the cpufreq tree."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.cpu.cpufreq import Policy, find_tree, read_number
from probes.errors import DeviceLost, NotPermitted, NotSupported, ProbeError
from probes.settings import CPU_CLOCK_CAP, Settable
from tests.probes.fake_host import refuse, write_policy, write_pstate


def make_policy(*listed_khz: int, lowest_khz: int = 800_000, highest_khz: int = 3_600_000) -> Policy:
    return Policy(
        name="policy0",
        folder=Path("policy0"),
        cores=frozenset({0}),
        lowest_khz=lowest_khz,
        highest_khz=highest_khz,
        listed_khz=listed_khz,
    )


def test_policies_come_in_order_of_their_numbers(tmp_path: Path) -> None:
    """policy10 is after policy9, and one whose cores are all offline is left out."""
    for number in (10, 9, 0):
        write_policy(tmp_path, number, cores=str(number))
    write_policy(tmp_path, 11, cores="")
    assert [policy.name for policy in find_tree(tmp_path).policies] == ["policy0", "policy9", "policy10"]


@pytest.mark.parametrize("has_folder", [True, False])
def test_no_tree_is_not_supported(tmp_path: Path, has_folder: bool) -> None:
    """Without policies, as in most virtual machines, the error names the folder."""
    if has_folder:
        (tmp_path / "cpufreq").mkdir()
    with pytest.raises(NotSupported, match="cpufreq has no policies"):
        find_tree(tmp_path)


def test_a_driver_without_a_list_takes_a_range(tmp_path: Path) -> None:
    """intel_pstate lists no clocks: every whole MHz between lowest and highest is a cap."""
    write_policy(tmp_path, lowest_khz=800_500, highest_khz=3_600_900)
    expected = Settable(name=CPU_CLOCK_CAP, values=(801, 3600), is_range=True)
    assert expected == find_tree(tmp_path).settable()


def test_only_clocks_common_to_all_policies_are_offered(tmp_path: Path) -> None:
    """With lists, a cap must be a clock of every policy; the highest is there as a boost clock of its own."""
    write_policy(tmp_path, 0, cores="0", listed_khz="3000000 2000000 1000000 800000")
    write_policy(tmp_path, 1, cores="1", listed_khz="3000000 2000000 800000")
    assert find_tree(tmp_path).settable().values == (800, 2000, 3000, 3600)


def test_policies_of_different_kinds_share_a_range(tmp_path: Path) -> None:
    """The range goes from the higher of the lowest clocks to the highest of all."""
    write_policy(tmp_path, 0, cores="0", lowest_khz=800_000, highest_khz=5_000_000)
    write_policy(tmp_path, 1, cores="1", lowest_khz=700_000, highest_khz=3_800_000)
    tree = find_tree(tmp_path)
    assert tree.settable().values == (800, 5000)
    assert [policy.target_khz(4500) for policy in tree.policies] == [4_500_000, 3_800_000]


def test_what_intel_pstate_forbids_is_not_offered(tmp_path: Path) -> None:
    """Above max_perf_pct no cap can be reached, so the range ends there."""
    write_policy(tmp_path, highest_khz=4_000_000)
    write_pstate(tmp_path, max_perf_pct=80)
    assert find_tree(tmp_path).settable().values == (800, 3200)


def test_a_range_with_nothing_in_it_is_not_supported(tmp_path: Path) -> None:
    """When intel_pstate allows less than the lowest clock, there is no knob."""
    write_policy(tmp_path, lowest_khz=1_000_000, highest_khz=4_000_000)
    write_pstate(tmp_path, max_perf_pct=20)
    with pytest.raises(NotSupported, match="800 MHz is below the lowest, 1000 MHz"):
        find_tree(tmp_path).settable()


def test_with_turbo_off_the_percentage_is_not_applied(tmp_path: Path) -> None:
    """max_perf_pct is of the turbo clock, which the kernel does not show while no_turbo is set."""
    write_policy(tmp_path, highest_khz=2_500_000)
    write_pstate(tmp_path, max_perf_pct=80, no_turbo=1)
    assert find_tree(tmp_path).settable().highest == 2500


@pytest.mark.parametrize(("value_mhz", "expected_khz"), [(799, 800_000), (2000, 2_000_000), (3600, 3_600_900)])
def test_a_range_is_written_as_it_is_asked(value_mhz: int, expected_khz: int) -> None:
    """MHz become kHz, never below the lowest; the highest is written in full."""
    assert expected_khz == make_policy(highest_khz=3_600_900).target_khz(value_mhz)


@pytest.mark.parametrize(("value_mhz", "expected_khz"), [(700, 800_000), (2666, 2_666_666), (2999, 2_666_666)])
def test_a_listed_clock_is_never_exceeded(value_mhz: int, expected_khz: int) -> None:
    """A value between two listed clocks means the lower one; one that is no whole MHz is found by its whole part."""
    assert expected_khz == make_policy(800_000, 2_666_666, 3_600_000).target_khz(value_mhz)


@given(
    st.lists(st.integers(min_value=400_000, max_value=6_000_000), min_size=1, max_size=12, unique=True),
    st.integers(min_value=400, max_value=6_000),
)
def test_targets_are_listed_and_not_above_what_was_asked(clocks_khz: list[int], value_mhz: int) -> None:
    """Whatever the list, the target is one of its clocks and is at most the cap, or the lowest there is."""
    listed = tuple(sorted(clocks_khz))
    target_khz = make_policy(*listed, lowest_khz=listed[0], highest_khz=listed[-1]).target_khz(value_mhz)
    assert target_khz in listed
    assert target_khz // 1000 <= value_mhz or target_khz == listed[0]


def test_the_clock_is_the_mean_over_the_cores_asked_for(tmp_path: Path) -> None:
    """Cores weigh alike whatever their policy, and other cores do not count."""
    write_policy(tmp_path, 0, cores="0 1 2", current_khz=3_000_000)
    write_policy(tmp_path, 3, cores="3", current_khz=1_000_000)
    write_policy(tmp_path, 4, cores="4", current_khz=800_000)
    tree = find_tree(tmp_path)
    assert tree.clock_mhz([0, 1, 2, 3]) == 2500.0
    assert tree.clock_mhz([7]) is None


def test_an_unreadable_clock_is_left_out(tmp_path: Path) -> None:
    """`<unknown>` from one policy leaves the mean of the others; from all, None."""
    write_policy(tmp_path, 0, cores="0", current_khz=3_000_000)
    unknown = write_policy(tmp_path, 1, cores="1").with_name("scaling_cur_freq")
    unknown.write_text("<unknown>\n")
    tree = find_tree(tmp_path)
    assert tree.clock_mhz([0, 1]) == 3000.0
    assert tree.clock_mhz([1]) is None


def test_a_cap_in_force_has_no_deviation(tmp_path: Path) -> None:
    """When every policy has what would be written for the cap, nothing is said."""
    write_policy(tmp_path, cap_khz=2_000_000)
    write_pstate(tmp_path)
    assert find_tree(tmp_path).deviation(2000) is None


def test_the_policy_with_another_cap_is_named(tmp_path: Path) -> None:
    """One of two policies with another cap is a deviation that names its file and both values."""
    write_policy(tmp_path, 0, cores="0", cap_khz=2_000_000)
    write_policy(tmp_path, 1, cores="1", cap_khz=3_000_000)
    found = find_tree(tmp_path).deviation(2000)
    assert found is not None
    assert "policy1/scaling_max_freq is 3000000 kHz instead of 2000000 kHz" in found


def test_a_stricter_max_perf_pct_is_a_deviation(tmp_path: Path) -> None:
    """The most restrictive limit holds, so 50 % of 4 GHz is less than a cap of 3 GHz."""
    write_policy(tmp_path, highest_khz=4_000_000, cap_khz=3_000_000)
    write_pstate(tmp_path, max_perf_pct=50)
    found = find_tree(tmp_path).deviation(3000)
    assert found is not None
    assert "limit_overridden: intel_pstate's max_perf_pct of 50 % allows 2000 MHz, less than 3000 MHz" in found


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), NotPermitted, "run as root"),
        (FileNotFoundError(errno.ENOENT, "No such file"), DeviceLost, "is gone"),
        (OSError(errno.EBUSY, "Device or resource busy"), ProbeError, "busy"),
    ],
)
def test_reads_fail_with_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, kind: type[ProbeError], words: str
) -> None:
    """A refusal, an absence and anything else are different errors, each with the file's name."""
    file = write_policy(tmp_path)
    refuse(monkeypatch, file, error=error)
    with pytest.raises(ProbeError, match=f"scaling_max_freq.*{words}") as caught:
        read_number(file)
    assert kind is type(caught.value)
