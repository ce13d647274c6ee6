"""The chance in a simulated run: drawn from a seed and the run's label alone, so that no run depends on another.

The sizes are assumptions, of the order of what repeats of one serving benchmark on one GPU differ by. Knows nothing of
what is scattered.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from itertools import repeat

import numpy as np

#: Standard deviation of what a whole run is faster or slower by, as a share.
RUN_TIME_SD = 0.005
#: The same of the power it draws.
RUN_POWER_SD = 0.005
#: Of one step's time.
STEP_TIME_SD = 0.02
#: No factor is below it, however large the scale.
LEAST_FACTOR = 0.5
_BLOCK = 4096


class Chance:
    """One run's chance: factors with a mean of 1, normally distributed."""

    def __init__(self, seed: int, label: str, *, scale: float = 1.0) -> None:
        """Draw for the run of this label; `scale` multiplies all three standard deviations, 0 switches chance off."""
        digest = hashlib.sha256(f"{seed}/{label}".encode()).digest()
        self._generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
        self._scale = scale
        self.time_gain, self.power_gain = (self._factors(scale * sd, 1)[0] for sd in (RUN_TIME_SD, RUN_POWER_SD))
        #: Factors of the steps' times, without end.
        self.step_gains: Iterator[float] = self._step_gains() if scale else repeat(1.0)

    def _step_gains(self) -> Iterator[float]:
        while True:
            yield from self._factors(self._scale * STEP_TIME_SD, _BLOCK)

    def _factors(self, sd: float, number: int) -> list[float]:
        # Plain arithmetic: an exponential would differ in its last bit from one processor to another.
        factors: list[float] = np.maximum(LEAST_FACTOR, 1 + sd * self._generator.standard_normal(number)).tolist()
        return factors


def of_many(gain: float, num_steps: int) -> float:
    """Return the factor of the time of `num_steps` steps together: theirs even out as independent ones do."""
    return 1 + (gain - 1) / math.sqrt(num_steps)
