"""Watching a device: what is shown of it, on a terminal, as lines and as JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from api.errors import UsageError
from api.watch import JsonView, LineView, LiveView, Look, Watch, shown_power, sparkline
from probes.device import Device, DeviceKind, Method, PowerSource, Scope, Status
from probes.errors import DeviceLost
from probes.nvidia.gpu import GpuDevice
from probes.nvidia.nvml import Nvml
from tests.db.factories import START
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_nvml import FIRST_UUID, NOT_SUPPORTED, FakeGpu, FakeNvml, install
from tests.tuner.scripted import ScriptedDevice

ESTIMATE = PowerSource(scope=Scope.CPU_SHARE, method=Method.ESTIMATE, detail="2 cores")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def gpu(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu(clock=clock, temperature_c=61, event_bits=0x04).with_instant_power()
    install(monkeypatch, FakeNvml(gpu))
    return gpu


def device_of(clock: FakeClock) -> GpuDevice:
    nvml = Nvml()
    (card,) = nvml.cards()
    return GpuDevice(nvml, card, clock=clock)


class PowerlessDevice(ScriptedDevice):
    """A device that has no way to learn its power."""

    @property
    def power_source(self) -> PowerSource | None:
        return None


class Seen:
    """Keeps what it is shown, and does what a test wants at each look."""

    def __init__(self, on_look: Callable[[int], None] = lambda number: None) -> None:
        self.looks: list[Look] = []
        self._on_look = on_look

    def show(self, look: Look, watch: Watch) -> None:
        self.looks.append(look)
        self._on_look(len(self.looks))

    def close(self) -> None:
        pass


def watch_of(device: Device, clock: FakeClock, interval_s: float = 1.0) -> Watch:
    def now() -> datetime:
        return START + timedelta(seconds=clock.monotonic_s())

    return Watch(device, interval_s=interval_s, clock=clock, now=now)


def shows(*powers_w: float | None) -> ScriptedDevice:
    """Return a device that shows these powers, one a look, at whole seconds."""
    statuses = iter([Status(time_s=float(second), power_w=power_w) for second, power_w in enumerate(powers_w)])
    return ScriptedDevice(source=ESTIMATE, shows=lambda _: next(statuses))


def lines_of(device: Device, clock: FakeClock, num_looks: int) -> tuple[list[str], Watch]:
    """Watch a device with the plain view and return what it printed."""
    out = io.StringIO()
    watch = watch_of(device, clock)
    watch.run(LineView(Console(file=out)), num_looks)
    return out.getvalue().splitlines(), watch


@pytest.mark.parametrize("interval_s", [0.0, -1.0, 0.049, 60.1, float("nan"), float("inf")])
def test_a_nonsense_interval_is_refused(clock: FakeClock, interval_s: float) -> None:
    """An interval that no sensor follows, or that is no time, is refused by name with what may be given."""
    with pytest.raises(UsageError, match=r"interval is .*: give 0\.05 to 60 seconds"):
        watch_of(ScriptedDevice(), clock, interval_s)


def test_looks_keep_their_interval(clock: FakeClock) -> None:
    """Looks follow each other at the interval from the first on, however long one of them took to show."""
    seen = Seen(on_look=lambda number: clock.jump(0.7) if number == 1 else None)
    begun_s = clock.monotonic_s()
    device = ScriptedDevice(shows=lambda _: Status(time_s=clock.monotonic_s()))
    watch_of(device, clock, 1.0).run(seen, 4)
    assert [round(look.status.time_s - begun_s, 6) for look in seen.looks] == [0.0, 1.0, 2.0, 3.0]


def test_a_gpu_tells_everything(clock: FakeClock, gpu: FakeGpu) -> None:
    """Below what is watched, a line has power, clocks, temperature, the limit in force and why the clocks are low."""
    lines, watch = lines_of(device_of(clock), clock, 2)
    assert lines[0] == (
        f"NVIDIA H100 80GB HBM3 {FIRST_UUID}, power: scope gpu, method reading "
        "(NVML instant power of the gpu, field 186)"
    )
    assert len(lines) == 3
    assert lines[1].split("  ")[1:] == [
        "300.0 W",
        "clock 1980 MHz",
        "memory 2619 MHz",
        "61 °C",
        "limit 700 W",
        "events sw_power_cap",
    ]
    assert watch.summary == "2 looks; power min 300.0 W, mean 300.0 W, max 300.0 W"


def test_a_gpus_power_is_told_as_the_reading_that_it_is(clock: FakeClock, gpu: FakeGpu) -> None:
    """A momentary power comes from the driver's power reading, not from the counter that jobs are measured by."""
    power = shown_power(device_of(clock))
    assert power is not None
    assert (power.scope, power.method, power.is_estimate) == ("gpu", "reading", False)
    assert power.detail == "NVML instant power of the gpu, field 186"


def test_what_is_not_there_is_a_dash(clock: FakeClock, gpu: FakeGpu) -> None:
    """What the driver does not offer is `-`, and null in JSON, never 0."""
    gpu.fields.clear()
    for call in ("PowerUsage", "ClockInfo", "TemperatureV", "Temperature", "EnforcedPowerLimit",
                 "CurrentClocksEventReasons"):  # fmt: skip
        gpu.refusals[f"nvmlDeviceGet{call}"] = NOT_SUPPORTED
    lines, watch = lines_of(device_of(clock), clock, 1)
    assert lines[1].split("  ")[1:] == ["-", "clock - MHz", "memory - MHz", "- °C", "limit - W", "events -"]
    assert watch.summary == "1 look; power min -, mean -, max -"
    out = io.StringIO()
    watch_of(device_of(clock), clock).run(JsonView(out), 1)
    assert {name for name, value in json.loads(out.getvalue()).items() if value is None} == {
        "power_w", "clock_mhz", "memory_clock_mhz", "temperature_c", "power_limit_w"
    }  # fmt: skip


def test_json_is_one_object_a_look(clock: FakeClock, gpu: FakeGpu) -> None:
    """Each look is a line of JSON with an aware time, the device, and where its watts come from."""
    out = io.StringIO()
    watch_of(device_of(clock), clock).run(JsonView(out), 2)
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert datetime.fromisoformat(second["time"]) - datetime.fromisoformat(first["time"]) == timedelta(seconds=1)
    assert datetime.fromisoformat(first["time"]).tzinfo == UTC
    assert first | {"time": ""} == {
        "time": "",
        "device_uuid": FIRST_UUID,
        "power_w": 300.0,
        "scope": "gpu",
        "method": "reading",
        "is_estimate": False,
        "clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "temperature_c": 61,
        "power_limit_w": 700.0,
        "events": ["sw_power_cap"],
    }


def test_an_estimate_is_labelled_everywhere(clock: FakeClock) -> None:
    """Where nothing is measured, each line, the summary, the live block and JSON say so."""
    lines, watch = lines_of(shows(5.0, 6.0), clock, 2)
    assert "ESTIMATE, nothing is measured" in lines[0]
    assert all(line.endswith("(estimate)") for line in lines[1:])
    assert "power (ESTIMATE) min 5.0 W" in watch.summary
    out = io.StringIO()
    watch_of(shows(5.0), clock).run(JsonView(out), 1)
    assert json.loads(out.getvalue())["is_estimate"] is True
    terminal = io.StringIO()
    live = LiveView(Console(file=terminal, force_terminal=True, width=120))
    watch_of(shows(5.0), clock).run(live, 1)
    live.close()
    assert "ESTIMATE, nothing is measured; scope cpu_share, method estimate (2 cores)" in terminal.getvalue()


def test_the_live_block_shows_the_last_minute(clock: FakeClock, gpu: FakeGpu) -> None:
    """On a terminal the block has the power now, and lowest, mean and highest of the last minute alone."""
    gpu.power_mw = lambda now_s: 600_000 if now_s < 1030 else 200_000 if now_s < 1100 else 400_000
    terminal = io.StringIO()
    live = LiveView(Console(file=terminal, force_terminal=True, width=120))
    watch = watch_of(device_of(clock), clock)
    watch.run(live, 121)
    live.close()
    last = terminal.getvalue().rpartition("device")[2]
    assert "400.0 W" in last
    assert "min 200.0 W" in last
    assert "max 400.0 W" in last
    assert "scope gpu, method reading (NVML instant power of the gpu, field 186)" in last
    assert "max 600.0 W" in watch.summary
    assert len(watch.last_minute) == 61


def test_a_device_without_power_is_watched_all_the_same(clock: FakeClock) -> None:
    """Clocks and temperatures are worth a look where there is no power; its source is `-`."""
    device = PowerlessDevice(shows=lambda _: Status(time_s=0.0, clock_mhz=1500.0), kind=DeviceKind.GPU)
    lines, watch = lines_of(device, clock, 1)
    assert lines[0].endswith("power: -")
    assert "clock 1500 MHz" in lines[1]
    assert watch.power is None


def test_a_lost_device_ends_the_watch(clock: FakeClock, gpu: FakeGpu) -> None:
    """A GPU that falls off the bus ends the watch with its name; what was seen before stays in the summary."""
    watch = watch_of(device_of(clock), clock)
    gpu.lost_from_s = clock.monotonic_s() + 2.5
    with pytest.raises(DeviceLost, match=FIRST_UUID):
        watch.run(Seen(), 10)
    assert watch.summary.startswith("3 looks; power min 300.0 W")


@pytest.mark.parametrize(
    ("powers_w", "drawn"),
    [
        ([], ""),
        ([5.0, 5.0], "▅▅"),
        ([0.0, 7.0], "▁█"),
        ([1.0, None, 8.0], "▁ █"),
        ([None, None], "  "),
        ([float(i) for i in range(8)], "▁▂▃▄▅▆▇█"),
    ],
)
def test_a_sparkline_goes_from_lowest_to_highest(powers_w: list[float | None], drawn: str) -> None:
    """One character a second, the lowest bar for the lowest power; a second without power is blank."""
    looks = [Status(time_s=float(second), power_w=power_w) for second, power_w in enumerate(powers_w)]
    assert drawn == sparkline(looks, 1.0)


def test_a_sparkline_fits_a_line() -> None:
    """Many looks a second are averaged, and a look of many seconds is one character."""
    fast = [Status(time_s=i / 20, power_w=float(i)) for i in range(60 * 20)]
    slow = [Status(time_s=i * 5.0, power_w=float(i)) for i in range(13)]
    assert len(sparkline(fast, 0.05)) <= 61
    assert len(sparkline(slow, 5.0)) == 13
