"""Several GPUs as one device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from probes.device import Device, DeviceKind, Method, PowerSource, Scope, Status
from probes.errors import DeviceLost, NotSupported, UnknownDevice
from probes.metering.group import DeviceGroup, member_uuids, members_of
from probes.settings import POWER_CAP, SM_CLOCK_CAP, DeviceSettings, Settable
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_member import COUNTER, FakeMember

MODULE = replace(COUNTER, scope=Scope.MODULE)
INSTANT = PowerSource(scope=Scope.GPU, method=Method.INTEGRATED, detail="field 186", resolution_s=0.2)


def make_group(*changes: dict[str, Any]) -> DeviceGroup:
    """GPUs called GPU-2, GPU-1 and so on downwards, each with its own changes."""
    return DeviceGroup(
        [FakeMember(**{"uuid": f"GPU-{len(changes) - i}", **change}) for i, change in enumerate(changes)],
        clock=FakeClock(),
    )


def test_a_group_is_known_by_its_members_in_any_order() -> None:
    """The UUID is the same whatever the order of ranks, which the members keep; the name counts them."""
    group = make_group({"details": (("vbios", "96"),)}, {})
    swapped = DeviceGroup(tuple(reversed(group.members)), clock=FakeClock())
    assert group.info.uuid == swapped.info.uuid == "GPU-1+GPU-2"
    assert group.member_uuids == ("GPU-2", "GPU-1")
    assert (group.info.name, group.info.driver) == ("2 x NVIDIA H100 80GB HBM3", "570.86.10")
    assert group.info.kind is DeviceKind.GPU
    assert group.info.details == (("GPU-2 vbios", "96"),)


def test_models_are_counted_apart() -> None:
    """A mixed group names each model with its number."""
    assert make_group({}, {"name": "L4"}, {}).info.name == "2 x NVIDIA H100 80GB HBM3 + 1 x L4"


def test_a_groups_uuid_tells_its_members() -> None:
    """From the UUID alone one knows which devices to hold; a single device is its own only member."""
    group = make_group({}, {})
    one: Device = FakeMember()
    assert member_uuids(group.info.uuid) == ("GPU-1", "GPU-2")
    assert member_uuids("GPU-1") == ("GPU-1",)
    assert members_of(group) == group.members
    assert members_of(one) == (one,)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ([{}], UnknownDevice, "at least two"),
        ([{"uuid": "GPU-1"}, {"uuid": "GPU-1"}], UnknownDevice, "named twice in GPU-1, GPU-1"),
        ([{}, {"kind": DeviceKind.CPU, "name": "Xeon"}], NotSupported, "only GPUs can be grouped, not Xeon"),
    ],
)
def test_what_is_no_group_is_refused(changes: list[dict[str, Any]], error: type[Exception], words: str) -> None:
    """One GPU alone, a GPU named twice, and a CPU among GPUs."""
    with pytest.raises(error, match=words):
        make_group(*changes)


def test_the_source_is_as_good_as_the_worst_members() -> None:
    """One member that integrates makes the sum an integral, at the coarsest resolution."""
    source = make_group({}, {"power_source": INSTANT}).power_source
    assert source is not None
    assert (source.scope, source.method, source.resolution_s) == (Scope.GPU, Method.INTEGRATED, 0.2)
    assert source.detail == "sum over 2 GPUs of: counter, field 186"
    unknown = make_group({}, {"power_source": replace(COUNTER, resolution_s=None)}).power_source
    assert unknown is not None
    assert (unknown.method, unknown.resolution_s) == (Method.COUNTER, None)


def test_without_a_source_in_one_there_is_none() -> None:
    """A member whose power cannot be learned leaves the group without a figure, and no meter opens."""
    group = make_group({}, {"power_source": None})
    assert group.power_source is None
    with pytest.raises(NotSupported, match="not every GPU"):
        group.meter([1])


def test_scopes_are_not_added() -> None:
    """A board's joules and a module's are no sum, so neither source nor meter is given."""
    group = make_group({}, {"power_source": MODULE})
    with pytest.raises(NotSupported, match="scopes gpu, module cannot be added"):
        _ = group.power_source
    with pytest.raises(NotSupported, match="scopes gpu, module"):
        group.meter([1])


def test_capabilities_are_each_members() -> None:
    """Each capability stands under its member's UUID."""
    found = make_group({}, {}).capabilities()
    assert [capability.name for capability in found] == ["GPU-2: counter", "GPU-1: counter"]


CLOCKS = Settable(name=SM_CLOCK_CAP, values=(900, 1200, 1500))
LIMITS = Settable(name=POWER_CAP, values=(200, 700), is_range=True)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((CLOCKS, LIMITS), (CLOCKS, LIMITS), (CLOCKS, LIMITS)),
        ((CLOCKS,), (replace(CLOCKS, values=(1200, 1500, 1800)),), (replace(CLOCKS, values=(1200, 1500)),)),
        ((CLOCKS,), (replace(CLOCKS, values=(910, 1210)),), ()),
        ((LIMITS,), (replace(LIMITS, values=(300, 900)),), (replace(LIMITS, values=(300, 700)),)),
        ((LIMITS,), (replace(LIMITS, values=(701, 900)),), ()),
        ((LIMITS,), (Settable(name=POWER_CAP, values=(100, 350)),), (Settable(name=POWER_CAP, values=(350,)),)),
        ((CLOCKS, LIMITS), (LIMITS,), (LIMITS,)),
        ((CLOCKS,), (), ()),
    ],
)
def test_knobs_are_those_that_all_have(
    one: tuple[Settable, ...], other: tuple[Settable, ...], expected: tuple[Settable, ...]
) -> None:
    """A knob stays where every member has it, with the values that every member takes; with none it is gone."""
    for knobs in ((one, other), (other, one)):
        assert expected == tuple(make_group(*({"knobs": own} for own in knobs)).settables())


def test_no_common_value_stays_none_with_a_third() -> None:
    """Three members of which two share nothing share nothing, whatever the third takes."""
    far = replace(LIMITS, values=(800, 900))
    assert make_group({"knobs": (LIMITS,)}, {"knobs": (far,)}, {"knobs": (LIMITS,)}).settables() == []


FIRST_LOOK = Status(
    time_s=1000.0,
    power_w=300.0,
    clock_mhz=1500.0,
    memory_clock_mhz=2619.0,
    temperature_c=60.0,
    power_limit_w=700.0,
    events=("idle", "sw_power_cap"),
)
SECOND_LOOK = Status(
    time_s=1000.1,
    power_w=310.0,
    clock_mhz=1980.0,
    memory_clock_mhz=1593.0,
    temperature_c=71.0,
    power_limit_w=500.0,
    events=("hw_thermal", "idle"),
)


def test_a_look_is_at_all_members() -> None:
    """Powers and limits add up; the slowest clock, the hottest die and every event count."""
    expected = Status(
        time_s=1000.1,
        power_w=610.0,
        clock_mhz=1500.0,
        memory_clock_mhz=1593.0,
        temperature_c=71.0,
        power_limit_w=1200.0,
        events=("idle", "sw_power_cap", "hw_thermal"),
    )
    assert expected == make_group({"seen": FIRST_LOOK}, {"seen": SECOND_LOOK}).status()


def test_what_one_member_does_not_tell_is_none() -> None:
    """The power of a group in which one does not tell its own is unknown, not that of the rest."""
    seen = make_group({"seen": FIRST_LOOK}, {"seen": Status(time_s=1000.0, clock_mhz=900.0)}).status()
    assert (seen.power_w, seen.temperature_c, seen.power_limit_w, seen.clock_mhz) == (None, None, None, 900.0)


def test_a_lost_member_is_a_lost_group() -> None:
    """A look at a group of which one has fallen off the bus is an error."""
    with pytest.raises(DeviceLost):
        make_group({}, {"status_error": DeviceLost("gone")}).status()


def test_every_member_is_metered_with_the_same_settings() -> None:
    """Processes and settings reach each member, and its reading holds all of them."""
    members = [FakeMember(uuid="GPU-a"), FakeMember(uuid="GPU-b")]
    settings = DeviceSettings(sm_clock_cap_mhz=1200)
    meter = DeviceGroup(members, clock=FakeClock()).meter([7], settings=settings)
    meter.start()
    assert meter.stop().device_uuids == ("GPU-a", "GPU-b")
    assert [member.settings for member in members] == [[settings], [settings]]
    assert [member.metered_pids for member in members] == [[(7,)], [(7,)]]
