"""Look at a device again and again and show what it says: live on a terminal, else as lines or JSON.

Reads only, so that it may run beside a job. A value that is not there is shown as `-`, never as 0. Knows devices by
their seam, nothing of drivers.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from statistics import fmean
from threading import Event
from typing import Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from api.errors import UsageError
from api.meter_words import watts_words
from probes.clock import Clock
from probes.device import Device, DeviceKind, Method, Status
from probes.settings import DEVICE_KNOBS

SHORTEST_INTERVAL_S = 0.05
LONGEST_INTERVAL_S = 60.0
#: What the live view looks back at.
MINUTE_S = 60.0
#: How a momentary power is obtained where the driver tells one; `Method` is about energies.
READING = "reading"

_NUM_COLUMNS = 60
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPower:
    """What is inside the watts that are shown, and how they are obtained."""

    scope: str
    #: A Method's name, or `reading`.
    method: str
    detail: str

    @property
    def is_estimate(self) -> bool:
        """Whether nothing is measured."""
        return self.method in (Method.ESTIMATE, Method.SIMULATED)

    @property
    def words(self) -> str:
        """The same for people."""
        kind = "ESTIMATE, nothing is measured; " if self.is_estimate else ""
        return f"{kind}scope {self.scope}, method {self.method} ({self.detail})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look, with its time for people."""

    at: datetime
    status: Status


def require_interval(interval_s: float) -> None:
    """Raise UsageError unless a device can be watched at this interval."""
    if not SHORTEST_INTERVAL_S <= interval_s <= LONGEST_INTERVAL_S:
        raise UsageError(
            f"interval is {interval_s:g}: give {SHORTEST_INTERVAL_S:g} to {LONGEST_INTERVAL_S:g} seconds; sensors are "
            "no faster"
        )


def shown_power(device: Device) -> ShownPower | None:
    """Return what `device.status()` says of power; None where the device has no source of it.

    A GPU's energy comes from its counter, but its momentary power from the first power reading that it offers.
    """
    source = device.power_source
    if source is None:
        return None
    if device.info.kind is not DeviceKind.GPU:
        return ShownPower(scope=source.scope, method=source.method, detail=source.detail)
    offered = [one.name for one in device.capabilities() if one.is_available and one.name not in DEVICE_KNOBS]
    readings = [name for name in offered if name != source.detail] if source.method is Method.COUNTER else []
    return ShownPower(scope=source.scope, method=READING, detail=readings[0] if readings else source.detail)


class Watch:
    """Looks at one device and remembers the last minute, and power since the beginning."""

    def __init__(self, device: Device, *, interval_s: float, clock: Clock, now: Callable[[], datetime]) -> None:
        require_interval(interval_s)
        self.device = device
        self.power = shown_power(device)
        self.interval_s = interval_s
        self._clock = clock
        self._now = now
        self._minute: deque[Status] = deque()
        self._powers = Powers()

    def run(self, view: View, num_looks: int | None = None) -> None:
        """Look every interval, `num_looks` times or until interrupted, and show each look.

        Raises DeviceLost when the device no longer answers.
        """
        begun_s = self._clock.monotonic_s()
        for number in count():
            view.show(Look(at=self._now(), status=self._look()), self)
            if num_looks is not None and number + 1 >= num_looks:
                return
            next_s = begun_s + (number + 1) * self.interval_s
            self._clock.wait(Event(), max(0.0, next_s - self._clock.monotonic_s()))

    @property
    def last_minute(self) -> Sequence[Status]:
        """The looks of the last minute, oldest first."""
        return self._minute

    @property
    def summary(self) -> str:
        """Power over everything that was seen, in words."""
        estimate = " (ESTIMATE)" if self.power is not None and self.power.is_estimate else ""
        looks = "1 look" if self._powers.num_looks == 1 else f"{self._powers.num_looks} looks"
        return f"{looks}; power{estimate} {self._powers.words}"

    def _look(self) -> Status:
        status = self.device.status()
        self._minute.append(status)
        while self._minute[0].time_s < status.time_s - MINUTE_S:
            self._minute.popleft()
        self._powers.add(status.power_w)
        return status


class Powers:
    """Lowest, mean and highest of a stream of watts."""

    def __init__(self) -> None:
        self.num_looks = 0
        self._num_powers = 0
        self._sum_w = 0.0
        self._lowest_w = float("inf")
        self._highest_w = float("-inf")

    def add(self, power_w: float | None) -> None:
        """Take one look in; one without power counts as a look only."""
        self.num_looks += 1
        if power_w is None:
            return
        self._num_powers += 1
        self._sum_w += power_w
        self._lowest_w = min(self._lowest_w, power_w)
        self._highest_w = max(self._highest_w, power_w)

    @property
    def words(self) -> str:
        """As in `min 61.2 W, mean 68.0 W, max 71.3 W`."""
        if not self._num_powers:
            return "min -, mean -, max -"
        mean_w = self._sum_w / self._num_powers
        return f"min {watts_words(self._lowest_w)}, mean {watts_words(mean_w)}, max {watts_words(self._highest_w)}"


class View(Protocol):
    """Shows looks to somebody."""

    def show(self, look: Look, watch: Watch) -> None:
        """Show a look; `watch` has what came before it."""

    def close(self) -> None:
        """Leave the place of showing as the next one needs it."""


class LineView:
    """One line a look, after one that says what is watched."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._has_begun = False

    def show(self, look: Look, watch: Watch) -> None:
        """Print a look."""
        if not self._has_begun:
            info = watch.device.info
            self._print(f"{info.name} {info.uuid}, power: {watch.power.words if watch.power is not None else '-'}")
            self._has_begun = True
        is_estimate = watch.power is not None and watch.power.is_estimate
        parts = [f"{look.at:%H:%M:%S}", *status_words(look.status), *(["(estimate)"] if is_estimate else [])]
        self._print("  ".join(parts))

    def close(self) -> None:
        """Nothing to take back."""

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


class JsonView:
    """One JSON object a look, for programs."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def show(self, look: Look, watch: Watch) -> None:
        """Write a look, at once: a reader at the other end of a pipe waits for it."""
        self._out.write(json.dumps(look_json(look, watch), allow_nan=False) + "\n")
        self._out.flush()

    def close(self) -> None:
        """Nothing to take back."""


class LiveView:
    """A block on a terminal that is drawn anew with each look."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def show(self, look: Look, watch: Watch) -> None:
        """Draw a look with the last minute before it."""
        self._live.update(live_table(look, watch), refresh=True)

    def close(self) -> None:
        """Leave the last look on the terminal."""
        self._live.stop()


def status_words(status: Status) -> list[str]:
    """Return what a device says, in a fixed order; `-` where it does not say."""
    return [
        watts_words(status.power_w),
        f"clock {_whole(status.clock_mhz)} MHz",
        f"memory {_whole(status.memory_clock_mhz)} MHz",
        f"{_whole(status.temperature_c)} °C",
        f"limit {_whole(status.power_limit_w)} W",
        f"events {' '.join(status.events) or '-'}",
    ]


def look_json(look: Look, watch: Watch) -> dict[str, object]:
    """Return a look as plain data; null where the device does not say."""
    status, power = look.status, watch.power
    return {
        "time": look.at.isoformat(),
        "device_uuid": watch.device.info.uuid,
        "power_w": status.power_w,
        "scope": None if power is None else power.scope,
        "method": None if power is None else power.method,
        "is_estimate": None if power is None else power.is_estimate,
        "clock_mhz": status.clock_mhz,
        "memory_clock_mhz": status.memory_clock_mhz,
        "temperature_c": status.temperature_c,
        "power_limit_w": status.power_limit_w,
        "events": list(status.events),
    }


def live_table(look: Look, watch: Watch) -> Table:
    """Return a look and the last minute as a block."""
    status, info = look.status, watch.device.info
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    minute = Powers()
    for seen in watch.last_minute:
        minute.add(seen.power_w)
    label = "estimate" if watch.power is not None and watch.power.is_estimate else "power"
    table.add_row("device", Text(f"{info.name}  {info.uuid}"))
    table.add_row(label, Text(watts_words(status.power_w), style="bold"))
    table.add_row("last minute", Text(sparkline(watch.last_minute, watch.interval_s)))
    table.add_row("", Text(minute.words))
    table.add_row("clock", f"{_whole(status.clock_mhz)} MHz, memory {_whole(status.memory_clock_mhz)} MHz")
    table.add_row("temperature", f"{_whole(status.temperature_c)} °C")
    table.add_row("power limit", f"{_whole(status.power_limit_w)} W")
    table.add_row("clock events", Text(" ".join(status.events) or "-"))
    table.add_row("source", Text(watch.power.words if watch.power is not None else "-"))
    return table


def sparkline(looks: Sequence[Status], interval_s: float) -> str:
    """Draw power over the last minute, one character a second or a look, whichever is longer.

    From the lowest to the highest bar is from the lowest to the highest power; a blank is a time without power.
    """
    if not looks:
        return ""
    width_s = max(MINUTE_S / _NUM_COLUMNS, interval_s)
    columns: dict[int, list[float]] = {}
    for look in looks:
        place = columns.setdefault(round((looks[-1].time_s - look.time_s) / width_s), [])
        place += [] if look.power_w is None else [look.power_w]
    means_w = [fmean(columns[i]) if columns.get(i) else None for i in range(max(columns), -1, -1)]
    known_w = [mean_w for mean_w in means_w if mean_w is not None]
    lowest_w, span_w = min(known_w, default=0.0), max(known_w, default=0.0) - min(known_w, default=0.0)
    return "".join(" " if mean_w is None else _bar(mean_w - lowest_w, span_w) for mean_w in means_w)


def _bar(above_w: float, span_w: float) -> str:
    return _BARS[round((len(_BARS) - 1) * (above_w / span_w if span_w > 0 else 0.5))]


def _whole(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.0f}"
