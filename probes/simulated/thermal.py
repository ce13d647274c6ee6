"""Temperature of a simulated GPU: first order, with leakage that grows with it.

Power models are fitted to GPUs that are warm, so a power comes with the temperature it settles at, and only a GPU that
is not there yet draws another. Every figure is an assumption. Knows nothing of fans, neighbours or hot spots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Thermal:
    """How warm a GPU gets and how fast.

    Without `tau_s` it is at once as warm as it will be: what a tuning job simulates is the settled state.
    """

    #: Time constant; 30 to 60 s is likely for a board under air.
    tau_s: float = 0.0
    ambient_c: float = 30.0
    #: Above ambient, in the end, at the accelerator's default power limit.
    rise_at_tdp_c: float = 40.0
    #: Share of power that each degree adds.
    leakage_per_c: float = 0.002

    def __post_init__(self) -> None:
        """Refuse times and shares below zero."""
        for name in ("tau_s", "rise_at_tdp_c", "leakage_per_c"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; give 0 or more")

    def settled_c(self, load: float) -> float:
        """Return the temperature that a power settles at; `load` is its share of the default power limit."""
        return self.ambient_c + self.rise_at_tdp_c * load

    def after(self, start_c: float, load: float, seconds: float) -> float:
        """Return the temperature after `seconds` at this load."""
        settled_c = self.settled_c(load)
        if self.tau_s == 0:
            return settled_c
        return settled_c + (start_c - settled_c) * math.exp(-seconds / self.tau_s)

    def power_gain(self, temperature_c: float, load: float) -> float:
        """Return by what the settled power of this load must be multiplied at another temperature."""
        return 1 + self.leakage_per_c * (temperature_c - self.settled_c(load))
