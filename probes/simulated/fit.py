"""Finds an accelerator's coefficients from steps whose time and power were measured.

Robust least squares of relative errors, kept near the coefficients one starts from as far as the measurements do not
speak against them: few measurements move little. Deterministic. Knows nothing of models, engines or files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from probes.simulated.accelerators import Accelerator
from probes.simulated.coefficients import COEFFICIENT_NAMES, Coefficients
from probes.simulated.response import Response
from probes.simulated.work import Work

_Floats = npt.NDArray[np.float64]

#: Relative errors that count as one: what a model of this form reaches at best.
SECONDS_SCALE = 0.10
POWER_SCALE = 0.07
#: Standard deviations, in logarithms, of how far a coefficient may lie from where one starts. Anything not named: half.
_SPREADS = {
    "step_s": 0.6,
    "sequence_s": 0.7,
    "eager_layer_s": 0.7,
    "expert_layer_s": 0.7,
    "prompt_layer_s": 0.7,
    "expert_prompt_layer_s": 0.7,
    "weight_factor": 0.2,
    "kv_factor": 0.2,
    "gemm_16_factor": 0.2,
    "gemm_8_factor": 0.2,
    "expert_gemm_factor": 0.4,
    "expert_16_s": 0.8,
    "expert_8_s": 0.8,
    "scale_up_s": 0.4,
    "scale_up_factor": 0.3,
    "static_w": 0.15,
    "compute_w": 0.6,
    "compute_exponent": 0.3,
    "ridge_share": 0.15,
    "memory_knee_share": 0.3,
}
_SPREAD = 0.5
#: No part can be faster than the data sheet has it.
_NO_LESS_THAN_ONE = frozenset(name for name in COEFFICIENT_NAMES if name.endswith("_factor"))
#: What only measurements at several clocks can tell.
CLOCK_COEFFICIENTS = frozenset(
    {"ridge_share", "voltage_per_ghz", "memory_knee_share", "memory_clock_share", "launch_clock_share"}
)
#: What no fit changes: measurements of a running engine do not bear on it.
_HELD = frozenset({"regulated_share"})
#: How far inside a bound the search starts at least.
_EDGE = 1e-3
#: Clocks between the highest and the lowest at which capped steps are computed; between them, straight lines.
_LADDER = 24
_FIELDS = (
    "gemm_flops",
    "attention_flops",
    "weight_bytes",
    "kv_bytes",
    "num_layers",
    "num_tokens",
    "num_sampled",
    "num_experts",
    "scale_up_bytes",
    "num_scale_up",
    "scale_out_bytes",
    "num_scale_out",
    "num_stages",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One measured operating point: the mean step of it, and how long and at how many watts it ran."""

    work: Work
    #: Mean seconds of a step.
    seconds: float
    #: Mean watts of one GPU; None where only the time was measured.
    power_w: float | None = None
    weight: float = 1.0
    #: Where the clock was pinned; None: the highest that the default power limit allows.
    clock_mhz: float | None = None
    #: Seconds of every step that the host was kept busy by others.
    host_s: float = 0.0
    #: Where steps are of several kinds: their shares, which add up to 1, and work; `work` is then not used.
    mix: tuple[tuple[float, Work], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """Coefficients, and how far off they are."""

    coefficients: Coefficients
    #: Of each observation: predicted over measured, less 1. None where no power was measured.
    seconds_errors: tuple[float, ...]
    power_errors: tuple[float | None, ...]
    #: Standard error of each free coefficient, as a share of it, from the curvature at the optimum.
    uncertainty: dict[str, float]
    #: False when the search was given up.
    has_converged: bool


def fit(
    observations: Sequence[Observation],
    accelerator: Accelerator,
    *,
    start: Coefficients | None = None,
    free: Collection[str] | None = None,
    spreads: Mapping[str, float] | None = None,
) -> FitResult:
    """Fit coefficients to observations, starting from, and held towards, those of the accelerator or `start`.

    `free` names the coefficients that may change; None takes all but those of the clock, and these too when the
    observations have at least three clocks. A coefficient that starts at 0 stays there. `spreads` says how far single
    coefficients may lie from where they start, as standard deviations of their logarithms, where that is known better
    than usual. Raises ValueError without observations, or for an unknown name.
    """
    if not observations:
        raise ValueError("there is nothing to fit: give at least one observation")
    start = start or accelerator.coefficients
    names = _free_names(observations, start, free)
    table = _Table(observations, accelerator)
    origin = np.log([getattr(start, name) for name in names])
    known = {**_SPREADS, **(spreads or {})}
    spread = np.array([known.get(name, _SPREAD) for name in names])

    def residuals(logs: _Floats) -> _Floats:
        return np.concatenate([table.residuals(_moved(start, names, logs)), _unrobust((logs - origin) / spread)])

    lowest = np.array([0.0 if name in _NO_LESS_THAN_ONE else -np.inf for name in names])
    found = least_squares(
        residuals,
        np.maximum(origin, lowest + _EDGE),
        bounds=(lowest, np.inf),
        loss="soft_l1",
        xtol=1e-6,
        ftol=1e-6,
        max_nfev=100,
    )
    coefficients = _moved(start, names, found.x)
    seconds, power = table.predict(coefficients)
    curvature = np.linalg.pinv(found.jac.T @ found.jac)
    return FitResult(
        coefficients=coefficients,
        seconds_errors=tuple((seconds / table.seconds - 1).tolist()),
        power_errors=tuple(
            None if seen.power_w is None else float(watts / seen.power_w - 1)
            for seen, watts in zip(observations, power, strict=True)
        ),
        uncertainty={name: float(np.sqrt(curvature[index, index])) for index, name in enumerate(names)},
        has_converged=bool(found.status > 0),
    )


def predict(
    observations: Sequence[Observation], accelerator: Accelerator, coefficients: Coefficients
) -> list[tuple[float, float]]:
    """Return mean seconds and watts that coefficients predict for each observation."""
    seconds, power = _Table(observations, accelerator).predict(coefficients)
    return list(zip(seconds.tolist(), power.tolist(), strict=True))


def _free_names(
    observations: Sequence[Observation], start: Coefficients, free: Collection[str] | None
) -> tuple[str, ...]:
    if free is not None and (unknown := set(free) - set(COEFFICIENT_NAMES)):
        raise ValueError(f"free has {', '.join(sorted(unknown))}; coefficients are {', '.join(COEFFICIENT_NAMES)}")
    num_clocks = len({seen.clock_mhz for seen in observations})
    held = _HELD if num_clocks >= 3 else _HELD | CLOCK_COEFFICIENTS
    wanted = set(COEFFICIENT_NAMES) - held if free is None else set(free)
    return tuple(name for name in COEFFICIENT_NAMES if name in wanted and getattr(start, name) > 0)


def _moved(start: Coefficients, names: Sequence[str], logs: _Floats) -> Coefficients:
    return replace(start, **dict(zip(names, np.exp(logs).tolist(), strict=True)))


def _unrobust(deviations: _Floats) -> _Floats:
    """Return what counts as the square of a deviation under the robust loss, which is for measurements alone."""
    return np.sign(deviations) * np.sqrt((1 + deviations**2 / 2) ** 2 - 1)


class _Table:
    """All steps of all observations as arrays, in groups of one arithmetic and one clock."""

    def __init__(self, observations: Sequence[Observation], accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._num_observations = len(observations)
        self.seconds = np.array([seen.seconds for seen in observations])
        weight = np.sqrt([seen.weight for seen in observations])
        self._has_power = np.array([seen.power_w is not None for seen in observations])
        self._power = np.array([seen.power_w or 1.0 for seen in observations])
        self._seconds_weight = weight / SECONDS_SCALE
        self._power_weight = (weight / POWER_SCALE)[self._has_power]
        grouped: dict[tuple[str, float | None], list[tuple[int, float, float, Work]]] = {}
        for index, seen in enumerate(observations):
            for share, work in seen.mix or ((1.0, seen.work),):
                key = work.arithmetic, seen.clock_mhz
                grouped.setdefault(key, []).append((index, share, seen.host_s, work))
        self._groups = [_Group(arithmetic, clock, steps) for (arithmetic, clock), steps in grouped.items()]

    def predict(self, coefficients: Coefficients) -> tuple[_Floats, _Floats]:
        """Return mean seconds and mean watts of every observation."""
        response = Response(self._accelerator, coefficients)
        seconds, joules = np.zeros(self._num_observations), np.zeros(self._num_observations)
        for group in self._groups:
            step_s, step_w = group.settled(response)
            np.add.at(seconds, group.owners, group.shares * step_s)
            np.add.at(joules, group.owners, group.shares * step_s * step_w)
        return seconds, joules / seconds

    def residuals(self, coefficients: Coefficients) -> _Floats:
        """Return logarithms of predicted over measured, in units of the scales above."""
        seconds, power = self.predict(coefficients)
        of_power = np.log(power / self._power)[self._has_power] * self._power_weight
        return np.concatenate([np.log(seconds / self.seconds) * self._seconds_weight, of_power])


class _Group:
    """Steps that share arithmetic and clock."""

    def __init__(
        self, arithmetic: str, clock_mhz: float | None, steps: Sequence[tuple[int, float, float, Work]]
    ) -> None:
        self._clock_mhz = clock_mhz
        self.owners = np.array([owner for owner, _, _, _ in steps])
        self.shares = np.array([share for _, share, _, _ in steps])
        self._host_s = np.array([host_s for _, _, host_s, _ in steps])
        self._arithmetic = arithmetic
        self._columns = {name: np.array([getattr(work, name) for *_, work in steps], dtype=float) for name in _FIELDS}

    def settled(self, response: Response) -> tuple[_Floats, _Floats]:
        """Return seconds and watts of each step at its clock, or at the highest that the power limit allows."""
        accelerator = response.accelerator
        clocks = np.linspace(accelerator.clocks_mhz[-1], accelerator.clocks_mhz[0], _LADDER)
        limit_w = accelerator.tdp_w * response.coefficients.regulated_share
        everything = np.arange(len(self.owners))
        seconds, watts = self._at(response, self._clock_mhz or float(clocks[0]), everything)
        if self._clock_mhz is not None:
            return seconds, watts
        over = np.flatnonzero(watts > limit_w)
        above_s, above_w = seconds[over], watts[over]
        for clock in clocks[1:]:
            if not over.size:
                break
            below_s, below_w = self._at(response, float(clock), over)
            share = np.clip((above_w - limit_w) / np.maximum(above_w - below_w, 1e-9), 0.0, 1.0)
            seconds[over] = above_s + share * (below_s - above_s)
            watts[over] = np.maximum(limit_w, below_w)
            still = below_w > limit_w
            over, above_s, above_w = over[still], below_s[still], below_w[still]
        return seconds, watts

    def _at(self, response: Response, clock_mhz: float, which: npt.NDArray[np.intp]) -> tuple[_Floats, _Floats]:
        # The response's arithmetic works on arrays as well: a "step" whose fields are columns.
        columns: dict[str, Any] = {name: column[which] for name, column in self._columns.items()}
        work = cast("Work", SimpleNamespace(arithmetic=self._arithmetic, num_gpus=1, kernel_s=0.0, **columns))
        seconds, watts = cast("tuple[_Floats, _Floats]", response.cost(work, clock_mhz))
        # Waiting for a host that others keep busy draws what a GPU draws that has nothing to do.
        host_s = self._host_s[which]
        total = seconds + host_s
        return total, (watts * seconds + response.coefficients.static_w * host_s) / total
