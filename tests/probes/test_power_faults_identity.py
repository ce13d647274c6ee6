"""Which GPU is measured, and whether all of those that work are: the faults of identity, one test each.

Everything goes the way a job goes: the driver, CUDA_VISIBLE_DEVICES, a name, a device, a figure.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pynvml
import pytest

from probes.detect import Host, diagnose, find_device, list_devices
from probes.device import Device, DeviceKind, Reading, Scope
from probes.errors import DeviceLost, NotSupported, UnknownDevice
from probes.metering.group import DeviceGroup, members_of
from probes.nvidia.nvml import Nvml
from probes.validity import Note, Reason
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_nvml import FakeGpu, FakeNvml, install

UUIDS = (
    "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
    "GPU-89aa0000-1111-2222-3333-444455556666",
    "GPU-c0ffee00-1111-2222-3333-444455556666",
    "GPU-f00d0000-1111-2222-3333-444455556666",
)
SLICES = ("MIG-11111111-2222-3333-4444-555555555555", "MIG-11111111-2222-3333-4444-666666666666")
BUS_NUMBERS = (0x18, 0x3A, 0x5D, 0xAF)
WATTS = (100, 200, 300, 400)
#: Above any pid of Linux.
ENGINE_PID = 2**22 + 1


@pytest.fixture
def server(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Four GPUs of one model at 100, 200, 300 and 400 W in PCI order; NVML counts them otherwise."""
    gpus = [
        FakeGpu(
            clock=clock,
            uuid=uuid,
            pci_id=f"00000000:{bus:02X}:00.0",
            power_mw=watts * 1000,
            limits_mw=(50_000, 700_000),
        ).with_instant_power()
        for uuid, bus, watts in zip(UUIDS, BUS_NUMBERS, WATTS, strict=True)
    ]
    library = FakeNvml(*(gpus[number] for number in (3, 1, 0, 2)))
    install(monkeypatch, library)
    return library


def gpu_of(library: FakeNvml, uuid: str) -> FakeGpu:
    return next(gpu for gpu in library.gpus if gpu.uuid == uuid)


def devices_of(clock: FakeClock, **environ: str) -> tuple[Device, ...]:
    return list_devices(Host(nvml=Nvml(), clock=clock, environ=environ))


def find(name: str, clock: FakeClock, **environ: str) -> Device:
    return find_device(name, devices_of(clock, **environ), clock=clock)


def power_w(device: Device) -> float | None:
    return device.status().power_w


def measure(
    device: Device, clock: FakeClock, *, pids: tuple[int, ...] = (), between: Callable[[], object] = lambda: None
) -> Reading:
    """Thirty seconds, in the middle of which something may befall."""
    meter = device.meter(pids)
    try:
        meter.start()
        clock.advance(15.0)
        between()
        clock.advance(15.0)
        return meter.stop()
    finally:
        meter.close()


class TestTheWrongGpu:
    """NVML ignores CUDA_VISIBLE_DEVICES; whoever measures its device 0 measures somebody else's."""

    @pytest.mark.parametrize(
        ("visible", "expected_w"),
        [
            ("2,3", [300, 400]),
            ("3,2", [400, 300]),
            ("GPU-c0ff", [300]),
            ("GPU-f00d,GPU-8932", [400, 100]),
            ("0,7", [100]),
            (None, [100, 200, 300, 400]),
        ],
    )
    @pytest.mark.usefixtures("server")
    def test_the_engines_device_is_the_measured_one(
        self, clock: FakeClock, visible: str | None, expected_w: list[float]
    ) -> None:
        """BUG-46: the engine's device 0, 1, ... are the cards that CUDA shows it, whatever NVML's order."""
        environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        seen = [power_w(find(f"cuda:{ordinal}", clock, **environ)) for ordinal in range(len(expected_w))]
        assert expected_w == seen
        with pytest.raises(UnknownDevice, match=f"no device 'cuda:{len(expected_w)}'"):
            find(f"cuda:{len(expected_w)}", clock, **environ)

    @pytest.mark.parametrize("visible", ["", "-1", "GPU-89", "GPU-dead", "7", "1,1"])
    @pytest.mark.usefixtures("server")
    def test_a_list_without_a_gpu_is_told(self, clock: FakeClock, visible: str) -> None:
        """BUG-46: an empty or bad list leaves no GPU, not the first one, and the diagnosis says why."""
        with pytest.raises(UnknownDevice, match="no device 'cuda:0'"):
            find("cuda:0", clock, CUDA_VISIBLE_DEVICES=visible)
        nvml = diagnose(Host(nvml=Nvml(), clock=clock, environ={"CUDA_VISIBLE_DEVICES": visible}))[0]
        assert not nvml.is_available
        assert "0 of 4 GPUs visible; CUDA_VISIBLE_DEVICES" in nvml.reason

    def test_a_record_keeps_the_uuid(self, clock: FakeClock, server: FakeNvml) -> None:
        """BUG-46: the reading names the card whose joules it holds, and holds that card's joules."""
        reading = measure(find("cuda:0", clock, CUDA_VISIBLE_DEVICES="3"), clock)
        assert reading.device_uuids == (UUIDS[3],)
        assert reading.mean_power_w == pytest.approx(400, rel=0.01)
        assert server.gpus[0].uuid == UUIDS[3]


class TestMultiGpu:
    """A tensor-parallel engine's energy is that of all its GPUs, and of no other."""

    @pytest.mark.parametrize(
        ("name", "visible", "expected_w"),
        [
            ("cuda:0,cuda:1", "2,3", 700),
            ("cuda:1, cuda:0", None, 300),
            ("GPU-8932,GPU-f00d", None, 500),
            (f"{UUIDS[1]},{UUIDS[2]}", None, 500),
            ("gpu:all", "1,2,3", 900),
            ("GPU:ALL", None, 1000),
        ],
    )
    @pytest.mark.usefixtures("server")
    def test_the_engines_gpus_are_summed(
        self, clock: FakeClock, name: str, visible: str | None, expected_w: float
    ) -> None:
        """POWER-20: energy is summed over the named GPUs: neither all of the host nor the first alone."""
        environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        group = find(name, clock, **environ)
        reading = measure(group, clock)
        assert reading.is_valid
        assert reading.mean_power_w == pytest.approx(expected_w, rel=0.01)
        assert power_w(group) == expected_w
        assert reading.device_uuids == tuple(member.info.uuid for member in members_of(group))

    @pytest.mark.usefixtures("server")
    def test_the_order_of_ranks_is_the_one_named(self, clock: FakeClock) -> None:
        """POWER-20: members stay in the order given, and the group's id is the same in any order."""
        group, swapped = find("cuda:3,cuda:0", clock), find("cuda:0,cuda:3", clock)
        assert [member.info.uuid for member in members_of(group)] == [UUIDS[3], UUIDS[0]]
        assert group.info.uuid == swapped.info.uuid == f"{UUIDS[0]}+{UUIDS[3]}"

    def test_an_engine_on_more_gpus_than_named_is_told(self, clock: FakeClock, server: FakeNvml) -> None:
        """POWER-20: measured on two cards, the engine's figure is valid; measured on two of its three, it is none."""
        for uuid in UUIDS[:2]:
            gpu_of(server, uuid).compute_pids = (ENGINE_PID,)
        group = find("cuda:0,cuda:1", clock)
        assert measure(group, clock, pids=(ENGINE_PID,)).is_valid
        gpu_of(server, UUIDS[2]).compute_pids = (ENGINE_PID,)
        reading = measure(group, clock, pids=(ENGINE_PID,))
        assert (reading.energy_j, reading.reasons) == (None, (Reason.GPU_COUNT_MISMATCH,))

    def test_one_lost_gpu_leaves_no_figure(self, clock: FakeClock, server: FakeNvml) -> None:
        """POWER-19: one of two falling off the bus in the middle makes the whole figure None, not the other's."""
        gpu = gpu_of(server, UUIDS[1])

        def lose() -> None:
            gpu.lost_from_s = clock.monotonic_s()

        reading = measure(find("cuda:0,cuda:1", clock), clock, between=lose)
        assert (reading.energy_j, reading.is_valid) == (None, False)
        assert {DeviceLost.kind, Reason.GPU_COUNT_MISMATCH} <= set(reading.reasons)
        assert reading.device_uuids == UUIDS[:2]
        assert UUIDS[1] in reading.detail

    def test_a_lost_gpu_hides_no_other(self, clock: FakeClock, server: FakeNvml) -> None:
        """POWER-19: beside a GPU that does not answer the others are still there by UUID, and it is named.

        Which number CUDA then gives to whom is not known, so numbers are refused.
        """
        gpu_of(server, UUIDS[0]).lost_from_s = clock.monotonic_s()
        assert [device.info.uuid for device in devices_of(clock)[:-1]] == list(UUIDS[1:])
        assert power_w(find("GPU-f00d", clock)) == 400
        assert power_w(find("cuda:0", clock, CUDA_VISIBLE_DEVICES=UUIDS[2])) == 300
        for environ in ({}, {"CUDA_VISIBLE_DEVICES": "1"}):
            with pytest.raises(UnknownDevice, match="no device 'cuda:0'"):
                find("cuda:0", clock, **environ)
        nvml, lost, *_ = diagnose(Host(nvml=Nvml(), clock=clock, environ={"CUDA_VISIBLE_DEVICES": "1"}))
        assert "while a GPU does not answer" in nvml.reason
        assert "0 of 4 GPUs" in nvml.reason
        assert not lost.is_available
        assert "fallen off the bus" in lost.reason

    @pytest.mark.usefixtures("server")
    def test_a_gpu_named_twice_is_refused(self, clock: FakeClock) -> None:
        """POWER-20: a number and a UUID that mean the same card would count its joules twice."""
        with pytest.raises(UnknownDevice, match="named twice"):
            find("cuda:0,GPU-8932", clock)

    @pytest.mark.parametrize("name", ["cuda:0,cuda:9", "cuda:0,", ",", "GPU-89,cuda:2"])
    @pytest.mark.usefixtures("server")
    def test_one_unknown_name_refuses_the_group(self, clock: FakeClock, name: str) -> None:
        """POWER-19: a group of which one member is not there is no smaller group."""
        with pytest.raises(UnknownDevice):
            find(name, clock)

    @pytest.mark.usefixtures("server")
    def test_a_cpu_is_no_member(self, clock: FakeClock) -> None:
        """POWER-21: a CPU's scope is another one than a board's, so both are no group."""
        with pytest.raises(NotSupported, match="only GPUs"):
            find("cuda:0,cpu", clock)

    @pytest.mark.usefixtures("server")
    def test_a_group_of_one_is_the_device(self, clock: FakeClock) -> None:
        """POWER-20: with one GPU visible, all of them are that one, under its own UUID."""
        device = find("gpu:all", clock, CUDA_VISIBLE_DEVICES="2")
        assert not isinstance(device, DeviceGroup)
        assert device.info.uuid == UUIDS[2]

    def test_all_of_no_gpus_is_none(self, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
        """POWER-47: without a driver, all GPUs are an error that lists the CPU."""
        install(monkeypatch, None)
        with pytest.raises(UnknownDevice, match="there is no GPU; there is CPU-"):
            find("gpu:all", clock)


class TestScopes:
    """What is inside a joule figure."""

    def test_boards_and_modules_are_not_added(self, clock: FakeClock, server: FakeNvml) -> None:
        """POWER-21: a superchip's counter holds its CPU too, so it makes no sum with a board's."""
        gpu_of(server, UUIDS[1]).name = "NVIDIA GH200 480GB"
        group = find(f"{UUIDS[0]},{UUIDS[1]}", clock)
        with pytest.raises(NotSupported, match="scopes gpu, module cannot be added"):
            group.meter([])

    def test_the_scope_is_recorded(self, clock: FakeClock, server: FakeNvml) -> None:
        """POWER-21: two superchips are of one scope, and the reading says which."""
        for uuid in UUIDS[:2]:
            gpu_of(server, uuid).name = "NVIDIA GH200 480GB"
        reading = measure(find(f"{UUIDS[0]},{UUIDS[1]}", clock), clock)
        assert reading.scope is Scope.MODULE
        assert reading.mean_power_w == pytest.approx(300, rel=0.01)

    def test_two_slices_of_a_card_are_one_card(self, clock: FakeClock, server: FakeNvml) -> None:
        """POWER-22: both slices visible, the card's watts are counted once, and marked as everybody's."""
        card = gpu_of(server, UUIDS[1])
        card.is_mig, card.slices = True, SLICES
        device = find("gpu:all", clock, CUDA_VISIBLE_DEVICES=",".join(SLICES))
        assert not isinstance(device, DeviceGroup)
        reading = measure(device, clock)
        assert reading.device_uuids == (UUIDS[1],)
        assert Note.WHOLE_GPU_SHARED in reading.notes
        assert reading.mean_power_w == pytest.approx(200, rel=0.01)

    def test_slices_of_two_cards_are_two_cards(self, clock: FakeClock, server: FakeNvml) -> None:
        """POWER-22: slices of two cards sum both cards, once each."""
        for uuid, name in zip(UUIDS[:2], SLICES, strict=True):
            card = gpu_of(server, uuid)
            card.is_mig, card.slices = True, (name,)
        group = find("gpu:all", clock, CUDA_VISIBLE_DEVICES=",".join(SLICES))
        assert [member.info.uuid for member in members_of(group)] == list(UUIDS[:2])


class TestNames:
    """What CUDA_VISIBLE_DEVICES and users write, and what drivers answer."""

    @pytest.mark.parametrize(
        ("visible", "expected"),
        [
            ("1,0", (1, 0)),
            (" 0 , 2 ", (0, 2)),
            (UUIDS[2], (2,)),
            ("GPU-c0f,GPU-f", (2, 3)),
            (SLICES[0], (1,)),
            ("", ()),
            ("-1", ()),
            ("0,-1,1", (0,)),
            ("0,4", (0,)),
            ("0,1,0", ()),
            (f"{UUIDS[0]},1", (0,)),
            (f"1,{UUIDS[0]}", (1,)),
            ("GPU-89", ()),
        ],
    )
    def test_every_form_means_what_cuda_makes_of_it(
        self, clock: FakeClock, server: FakeNvml, visible: str, expected: tuple[int, ...]
    ) -> None:
        """POWER-42: numbers, UUIDs, short and slice UUIDs, nothing, -1, out of range, repeated and mixed."""
        gpu_of(server, UUIDS[1]).slices = (SLICES[0],)
        found = [
            device.info.uuid
            for device in devices_of(clock, CUDA_VISIBLE_DEVICES=visible)
            if device.info.kind is DeviceKind.GPU
        ]
        assert [UUIDS[number] for number in expected] == found

    def test_numbers_of_mixed_models_need_an_order(self, clock: FakeClock, server: FakeNvml) -> None:
        """POWER-42: fastest first cannot be known between models: refused, unless CUDA counts by PCI id."""
        gpu_of(server, UUIDS[0]).name = "NVIDIA L4"
        with pytest.raises(UnknownDevice):
            find("cuda:0", clock, CUDA_VISIBLE_DEVICES="1")
        ordered = find("cuda:0", clock, CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID")
        assert power_w(ordered) == 200
        assert power_w(find("cuda:0", clock, CUDA_VISIBLE_DEVICES=UUIDS[2])) == 300

    @pytest.mark.parametrize("name", [UUIDS[2], UUIDS[2].removeprefix("GPU-"), UUIDS[2].upper(), "gpu-C0FFEE"])
    @pytest.mark.usefixtures("server")
    def test_a_uuid_is_found_however_it_is_written(self, clock: FakeClock, name: str) -> None:
        """POWER-43: with and without GPU-, in any case; and it comes as text."""
        uuid = find(name, clock).info.uuid
        assert uuid == UUIDS[2]
        assert type(uuid) is str

    def test_pci_ids_order_by_value(self, clock: FakeClock, server: FakeNvml) -> None:
        """POWER-43: domains of four and of eight digits are the same domain."""
        gpu_of(server, UUIDS[3]).pci_id = "0000:AF:00.0"
        details = [dict(device.info.details).get("pci_id") for device in devices_of(clock)[:-1]]
        assert details == [f"0000:{bus:02x}:00.0" for bus in BUS_NUMBERS]

    def test_a_swap_after_a_reboot_keeps_results_apart(self, clock: FakeClock, server: FakeNvml) -> None:
        """POWER-44: two GPUs of one model change places in NVML and on the bus; by UUID each is still itself."""
        before = {uuid: measure(find(uuid, clock), clock).mean_power_w for uuid in UUIDS[:2]}
        first, second = gpu_of(server, UUIDS[0]), gpu_of(server, UUIDS[1])
        first.pci_id, second.pci_id = second.pci_id, first.pci_id
        server.gpus.reverse()
        after = {uuid: measure(find(uuid, clock), clock).mean_power_w for uuid in UUIDS[:2]}
        assert before == pytest.approx(after, rel=1e-3)
        assert find("cuda:0", clock).info.uuid == UUIDS[1]


class TestConnections:
    """The library, its processes and its packages."""

    def test_a_forked_child_reads(self, clock: FakeClock, server: FakeNvml) -> None:
        """POWER-45: a device opened before a fork still reads after it, in the child by a connection of its own."""
        device = find("cuda:2", clock)
        assert power_w(device) == 300
        child = os.fork()
        if child == 0:
            os._exit(0 if power_w(device) == 300 and server.num_inits == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert server.num_inits == 1

    def test_threads_share_one_connection(self, clock: FakeClock, server: FakeNvml) -> None:
        """POWER-45: workers of a pool of threads all read, by one connection between them."""
        nvml = Nvml()
        with ThreadPoolExecutor(8) as pool:
            read = list(pool.map(lambda uuid: nvml.power_w(uuid, ceiling_w=1050), UUIDS * 8))
        assert read == [float(watts) for watts in WATTS] * 8
        assert server.num_inits == 1
        nvml.close()

    def test_connections_balance(self, clock: FakeClock, server: FakeNvml) -> None:
        """POWER-46: two users of the library, closed twice each: as many shutdowns as inits, and it can begin anew."""
        one, other = Nvml(), Nvml()
        for nvml in (one, other):
            nvml.cards()
        for nvml in (one, other, one, other):
            nvml.close()
        assert (server.num_inits, server.num_shutdowns) == (2, 2)
        assert len(one.cards()) == 4
        one.close()
        assert (server.num_inits, server.num_shutdowns) == (3, 3)

    @pytest.mark.parametrize(
        ("code", "words"),
        [(None, "libnvidia-ml.so.1 not found"), (18, "differ in version"), (9, "not loaded"), (999, "went wrong")],
    )
    def test_without_a_driver_the_service_starts(
        self, clock: FakeClock, server: FakeNvml, monkeypatch: pytest.MonkeyPatch, code: int | None, words: str
    ) -> None:
        """POWER-47: no library, another version, no module: the CPU is left, and the reason can be read."""
        if code is None:
            install(monkeypatch, None)
        else:
            server.init_code = code
        assert [device.info.kind for device in devices_of(clock)] == [DeviceKind.CPU]
        nvml = diagnose(Host(nvml=Nvml(), clock=clock, environ={}))[0]
        assert not nvml.is_available
        assert words in nvml.reason

    def test_an_old_driver_lacks_calls_not_gpus(self, clock: FakeClock, server: FakeNvml) -> None:
        """POWER-47: calls that a driver does not have are missing one by one; power is read by what it has."""
        server.missing |= {"nvmlDeviceGetFieldValues", "nvmlDeviceGetTotalEnergyConsumption"}
        device = find("cuda:3", clock)
        assert power_w(device) == 400
        too_old = [found for found in device.capabilities() if "too old" in found.reason]
        assert "NVML total energy counter" in [found.name for found in too_old]

    def test_another_package_is_named(
        self, clock: FakeClock, server: FakeNvml, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """POWER-48: a third-party `pynvml` is told before it is used, with what to do about it."""
        monkeypatch.delattr(pynvml, "_nvmlGetFunctionPointer")
        assert [device.info.kind for device in devices_of(clock)] == [DeviceKind.CPU]
        nvml = diagnose(Host(nvml=Nvml(), clock=clock, environ={}))[0]
        assert "pip uninstall pynvml" in nvml.reason
        assert server.num_inits == 0
