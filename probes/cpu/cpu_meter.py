"""A CPU meter that also says at which clocks it measured, and whether the clock cap held throughout.

Wraps the meter that finds the energy; knows nothing of how that is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from probes.clock import Clock
from probes.cpu.cpufreq import CpufreqTree
from probes.device import Meter, Reading, Status
from probes.errors import ProbeError
from probes.metering.conditions import conditions_of
from probes.metering.findings import unique
from probes.metering.sampler import Sampler
from probes.validity import Reason

LOOK_INTERVAL_S = 0.5

log = structlog.get_logger()


class CapWatch:
    """Tells whether the clock cap changed over a stretch, or was never the one asked for."""

    def __init__(self, tree: CpufreqTree, cap_mhz: int | None) -> None:
        self._tree = tree
        self._cap_mhz = cap_mhz
        self._before: Mapping[str, int] = {}
        self._problem: str | None = None

    def start(self) -> None:
        """Remember the caps now; where they cannot be read, that is found out at stop."""
        self._before, self._problem = self._look()

    def stop(self) -> tuple[str, ...]:
        """Return external_change when the cap is, or at start was, another one than it should be."""
        after, problem = self._look()
        problem = self._problem or problem
        if problem is None and after != self._before:
            problem = f"cpufreq: caps were {dict(self._before)} kHz and are {dict(after)} kHz"
        if problem is None:
            return ()
        log.warning("cpu_clock_cap_changed", problem=problem)
        return (Reason.EXTERNAL_CHANGE,)

    def _look(self) -> tuple[Mapping[str, int], str | None]:
        try:
            caps_khz = {**self._tree.caps_khz(), **self._tree.pstate()}
            return caps_khz, None if self._cap_mhz is None else self._tree.deviation(self._cap_mhz)
        except ProbeError as error:
            return {}, str(error)


class ConditionsMeter:
    """Adds conditions, and reasons of a changed cap, to the readings of another meter."""

    def __init__(
        self, meter: Meter, look: Callable[[], Status], *, caps: CapWatch | None, device_uuid: str, clock: Clock
    ) -> None:
        self._meter = meter
        self._look = look
        self._caps = caps
        self._device_uuid = device_uuid
        self._clock = clock
        self._looks: Sampler[Status] | None = None

    def start(self) -> float:
        """Begin a stretch where the inner meter does; looks begin a little earlier."""
        self.close()
        if self._caps:
            self._caps.start()
        self._looks = Sampler(self._look, interval_s=LOOK_INTERVAL_S, clock=self._clock)
        self._looks.start()
        return self._meter.start()

    def stop(self) -> Reading:
        """End the stretch where the inner meter does; looks end a little later."""
        looks, self._looks = self._looks, None
        reading = self._meter.stop()
        if looks is None:
            return reading
        reasons = self._caps.stop() if self._caps else ()
        seen = [sample.value for sample in looks.stop().samples]
        return replace(
            reading,
            reasons=unique((*reading.reasons, *reasons)),
            conditions=(*reading.conditions, conditions_of(seen, self._device_uuid)),
        )

    def close(self) -> None:
        """Stop sampling and forget the stretch. Idempotent."""
        if self._looks:
            self._looks.cancel()
        self._looks = None
        self._meter.close()
