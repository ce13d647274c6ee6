"""The power and energy sensors of a simulated device, with the artefacts of real ones (arXiv 2312.02741).

A counter that moves in steps; power as a mean of the last 25 ms of each 100 ms, blind to the other 75; power as a mean
of the last second. All of them off by the same gain and offset. Knows nothing of who reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from probes.errors import ProbeError
from probes.simulated.faults import FaultKind
from probes.simulated.ledger import EnergyMark

#: The sensors look at the true energy so often; their own periods are multiples of it.
LOOK_S = 0.025
#: New power readings come so often.
UPDATE_S = 0.1
#: Length of the trailing mean.
AVERAGE_S = 1.0

_LOOKS_PER_UPDATE = round(UPDATE_S / LOOK_S)
_LOOKS_PER_AVERAGE = round(AVERAGE_S / LOOK_S)
MILLIJOULES_PER_JOULE = 1000


class Sensors:
    """One device's sensors: a visitor of its clock."""

    def __init__(
        self,
        energy: Callable[[], EnergyMark],
        *,
        faults: Callable[[], Collection[FaultKind]],
        lost: Callable[[], ProbeError],
        tick_s: float,
        gain: float = 1.0,
        offset_w: float = 0.0,
    ) -> None:
        """Begin at the clock's 0 s; `tick_s` is the counter's step, `energy` what is true at the clock's instant."""
        self._energy = energy
        self._faults = faults
        self._lost = lost
        self._gain = gain
        self._offset_w = offset_w
        self._looks_per_tick = max(1, round(tick_s / LOOK_S))
        self._num_looks = 0
        self._marks: deque[EnergyMark] = deque([energy()], maxlen=_LOOKS_PER_AVERAGE + 1)
        self._counted = self._marks[-1]
        self._counter_j = 0.0
        self._was_reset = False
        self._instant_w = 0.0
        self._average_w = 0.0

    @property
    def due_s(self) -> float:
        """The next look."""
        return (self._num_looks + 1) * LOOK_S

    def visit(self, now_s: float) -> None:
        """Look at the true energy; renew the readings whose time has come."""
        self._num_looks += 1
        mark = self._energy()
        self._marks.append(mark)
        if self._num_looks % self._looks_per_tick == 0:
            self._count(mark)
        if self._num_looks % _LOOKS_PER_UPDATE == 0:
            self._instant_w = self._mean_w(1)
            self._average_w = self._mean_w(min(_LOOKS_PER_AVERAGE, self._num_looks))

    def counter_mj(self) -> int:
        """Read the energy counter, in whole mJ since the device's start. Raises DeviceLost by script."""
        self._ask()
        return round(self._counter_j * MILLIJOULES_PER_JOULE)

    def instant_w(self) -> float:
        """Read the mean power of the last 25 ms of the last 100 ms. Raises DeviceLost by script."""
        self._ask()
        return self._instant_w

    def average_w(self) -> float:
        """Read the mean power of the second before the last update. Raises DeviceLost by script."""
        self._ask()
        return self._average_w

    def _count(self, mark: EnergyMark) -> None:
        faults = self._faults()
        true_j, self._counted = mark.since(self._counted), mark
        if FaultKind.COUNTER_RESET in faults and not self._was_reset:
            self._was_reset, self._counter_j = True, 0.0
        if FaultKind.COUNTER_STUCK not in faults:
            self._counter_j += self._gain * true_j + self._offset_w * self._looks_per_tick * LOOK_S

    def _mean_w(self, num_looks: int) -> float:
        true_w = self._marks[-1].since(self._marks[-1 - num_looks]) / (num_looks * LOOK_S)
        return self._gain * true_w + self._offset_w

    def _ask(self) -> None:
        if FaultKind.DEVICE_LOST in self._faults():
            raise self._lost()
