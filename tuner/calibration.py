"""Fits a simulated accelerator to measured trials: a digital twin, and how far it is off on trials it has not seen.

Coefficients stay near those of the accelerator one starts from as far as the trials do not speak against them; those
that the trials say little of are named. Knows nothing of where trials or twins are kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from probes.device import DeviceInfo, DeviceKind, Method, Scope
from probes.metering.group import member_uuids
from probes.simulated.accelerators import ACCELERATORS, Accelerator
from probes.simulated.coefficients import COEFFICIENT_NAMES, Coefficients
from probes.simulated.fit import Observation, fit, predict
from probes.simulated.twin import Provenance, Quantiles, Residuals, Twin
from tuner.errors import InvalidRequest
from tuner.measurement import Measurement
from tuner.observations import JobTrials, LeftOut, Seen, observe
from tuner.trial import Trial

#: Fewer trials would move a coefficient or two, and leave nothing to test the result on.
MIN_TRIALS = 8
#: Largest over smallest number of requests running at once: without it, a step's costs and a request's look alike.
MIN_BATCH_RATIO = 2.0
#: Trials that are fitted to at most; those of the latest jobs come first.
MAX_TRIALS = 400
#: Parts that trials are left out in, to be predicted by a fit to the others; one each where there are no more trials.
NUM_PARTS = 12
#: Trials of one machine and engine scatter less than the published points that the fit's scales are for: half as much.
WEIGHT = 4.0
#: A coefficient is told by the trials when its standard error falls below this share of what was assumed before: then
#: they say more of it than the assumption does.
TOLD_SHARE = 0.7
#: Above this share the trials say nothing of it at all, and it stays as it was.
_TOUCHED_SHARE = 0.999
#: So little that the fit stays at what was assumed.
_WEIGHTLESS = 1e-12

#: What drivers call the accelerators; other variants of a family differ too much to be guessed.
_NAMES = (
    (r"GB300", "gb300-nvl72"),
    (r"GB200", "gb200-nvl72"),
    (r"Vera Rubin|VR200", "vera-rubin-nvl72"),
    (r"B300", "b300"),
    (r"B200", "b200"),
    (r"H200(?! NVL)", "h200-sxm"),
    (r"H100 NVL", "h100-nvl"),
    (r"H100 PCIe", "h100-pcie"),
    (r"H100( SXM5?)?( 80GB HBM3)?$", "h100-sxm"),
    (r"A100[- ]SXM4?[- ]80 ?GB", "a100-sxm-80"),
    (r"L40S", "l40s"),
    (r"RTX 4090(?! (D|Laptop))", "rtx-4090"),
    (r"RTX PRO 6000(?!.*Max-Q)", "rtx-pro-6000"),
)
#: Names of several kinds of GPUs together, and of a part of one.
_NOT_ONE_KIND = (" + ", " MIG ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Coefficients, and how well the trials tell them."""

    coefficients: Coefficients
    #: Standard error of each coefficient as a share of it: after the fit, and as assumed before.
    uncertainty: dict[str, float]
    assumed: dict[str, float]
    #: Coefficients that the trials say anything of; all others are the base's.
    touched: tuple[str, ...]
    has_converged: bool

    @property
    def untold(self) -> tuple[str, ...]:
        """Coefficients that the trials say less of than was assumed before."""
        return tuple(name for name in COEFFICIENT_NAMES if not self._is_told(name))

    def _is_told(self, name: str) -> bool:
        return name in self.touched and self.uncertainty[name] <= TOLD_SHARE * self.assumed[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A twin, and how it came about."""

    twin: Twin
    fitted: Fitted
    #: Errors of the base itself on the same trials, before anything was fitted.
    before: Residuals
    seen: tuple[Seen, ...]
    left_out: tuple[LeftOut, ...]
    #: Parts that trials were left out in.
    num_parts: int


def base_of(info: DeviceInfo) -> Accelerator:
    """Return the accelerator that a device's name stands for.

    Raises InvalidRequest for a CPU, and for a name that could be several or none.
    """
    if info.kind is DeviceKind.CPU:
        raise InvalidRequest("device", info.uuid, f"{info.name} is a CPU; only accelerators can be simulated")
    details = dict(info.details)
    if info.kind is DeviceKind.SIMULATED:
        key = details.get("accelerator", "")
    elif details.get("is_mig") == "True" or any(mark in info.name for mark in _NOT_ONE_KIND):
        key = ""
    else:
        key = next((key for pattern, key in _NAMES if re.search(rf"\b(?:{pattern})", info.name, re.I)), "")
    if key not in ACCELERATORS:
        remedy = f"name the accelerator it is nearest to with --base: {', '.join(ACCELERATORS)}"
        raise InvalidRequest("base", info.name, remedy)
    return ACCELERATORS[key]


def calibrate(jobs: Sequence[JobTrials], info: DeviceInfo, base: Accelerator, *, now: datetime) -> Calibration:
    """Fit an accelerator to the trials of jobs on one device, latest job first.

    Only trials of the latest driver and engine count. Raises InvalidRequest for a CPU, and when there are too few
    trials or all have the same batch, saying what is missing.
    """
    if info.kind is DeviceKind.CPU:
        raise InvalidRequest("device", info.uuid, f"{info.name} is a CPU; only accelerators can be simulated")
    jobs, mixed = _of_one_kind(jobs, info)
    seen, unusable = observe(jobs, base, _num_gpus(info))
    seen, left_out = seen[:MAX_TRIALS], (*mixed, *unusable)
    _require_enough(seen, left_out)
    observations = [replace(one.observation, weight=WEIGHT) for one in seen]
    found = _fitted(observations, base)
    num_parts = min(NUM_PARTS, len(seen))
    twin = Twin(
        base=base.key,
        coefficients=found.coefficients,
        idle_loaded_w=_idle_loaded_w(jobs, info, base),
        untold=found.untold,
        in_sample=_residuals(observations, predict(observations, base, found.coefficients)),
        held_out=_residuals(observations, _held_out(observations, base, found.touched, num_parts)),
        provenance=_provenance(jobs, seen, info, now),
    )
    return Calibration(
        twin=twin,
        fitted=found,
        before=_residuals(observations, predict(observations, base, base.coefficients)),
        seen=seen,
        left_out=left_out,
        num_parts=num_parts,
    )


def _num_gpus(info: DeviceInfo) -> int:
    if info.kind is DeviceKind.SIMULATED:
        return int(dict(info.details).get("num_gpus", "1"))
    return len(member_uuids(info.uuid))


def _of_one_kind(jobs: Sequence[JobTrials], info: DeviceInfo) -> tuple[list[JobTrials], tuple[LeftOut, ...]]:
    """Return the jobs with the trials that have the latest one's driver and engine, and a GPU's own energy."""
    latest = next((one for job in jobs for trial in reversed(job.trials) if (one := trial.measurement)), None)
    kept: list[JobTrials] = []
    left_out: list[LeftOut] = []
    for job in jobs:
        trials: list[Trial] = []
        for trial in job.trials:
            reason = trial.measurement and latest and _strange(trial.measurement, latest, info)
            if reason:
                left_out.append(LeftOut(job_id=job.job_id, number=trial.number, reason=reason))
            else:
                trials.append(trial)
        kept.append(replace(job, trials=tuple(trials)))
    return kept, tuple(left_out)


def _strange(measurement: Measurement, latest: Measurement, info: DeviceInfo) -> str | None:
    reading = measurement.reading
    if reading.method is Method.ESTIMATE:
        return "its energy is an estimate, nothing was measured"
    if reading.method is Method.SIMULATED and info.kind is not DeviceKind.SIMULATED:
        return "its energy is simulated, the device is not"
    if reading.scope not in (Scope.GPU, Scope.MODULE):
        return f"its energy is that of {reading.scope}, not of the GPU"
    if measurement.driver != latest.driver:
        return f"measured under driver {measurement.driver}, the latest trial under {latest.driver}"
    if measurement.engine.engine != latest.engine.engine:
        return f"served by {measurement.engine.engine}, the latest trial by {latest.engine.engine}"
    return None


def _require_enough(seen: Sequence[Seen], left_out: Sequence[LeftOut]) -> None:
    """Refuse what no fit could make sense of."""
    if len(seen) < MIN_TRIALS:
        reasons = Counter(one.reason for one in left_out).most_common(3)
        because = "".join(f"; left out {count}: {reason}" for reason, count in reasons)
        raise InvalidRequest("trials", len(seen), f"{MIN_TRIALS} or more usable ones are needed; tune longer{because}")
    batches = [one.batch for one in seen]
    if max(batches) < MIN_BATCH_RATIO * min(batches):
        raise InvalidRequest(
            "trials",
            f"{min(batches):.3g} to {max(batches):.3g} requests at once",
            f"the largest batch must be {MIN_BATCH_RATIO:g} times the smallest, or more; tune over several max_batch",
        )


def _fitted(observations: Sequence[Observation], base: Accelerator) -> Fitted:
    """Fit, and compare with what a fit to next to nothing gives: the uncertainty before anything is known."""
    result = fit(observations, base)
    assumed = fit([replace(one, weight=_WEIGHTLESS) for one in observations], base).uncertainty
    touched = tuple(name for name, error in result.uncertainty.items() if error < _TOUCHED_SHARE * assumed[name])
    return Fitted(
        coefficients=replace(base.coefficients, **{name: getattr(result.coefficients, name) for name in touched}),
        uncertainty=result.uncertainty,
        assumed=assumed,
        touched=touched,
        has_converged=result.has_converged,
    )


def _held_out(
    observations: Sequence[Observation], base: Accelerator, free: Collection[str], num_parts: int
) -> list[tuple[float, float]]:
    """Return seconds and watts of each trial as predicted by a fit without it and the others of its part."""
    predicted: dict[int, tuple[float, float]] = {}
    for part in range(num_parts):
        without = [one for index, one in enumerate(observations) if index % num_parts != part]
        coefficients = fit(without, base, free=free).coefficients
        places = range(part, len(observations), num_parts)
        answers = predict([observations[place] for place in places], base, coefficients)
        predicted |= dict(zip(places, answers, strict=True))
    return [predicted[place] for place in range(len(observations))]


def _residuals(observations: Sequence[Observation], predicted: Sequence[tuple[float, float]]) -> Residuals:
    """Summarise by how much predictions miss.

    Tokens per step are the measurement's, so that the energy of a token is off by what time and power are off together.
    """
    seconds: list[float] = []
    power: list[float] = []
    energy: list[float] = []
    for seen, (step_s, step_w) in zip(observations, predicted, strict=True):
        slower = step_s / seen.seconds
        seconds.append(slower - 1)
        if seen.power_w is not None:
            hungrier = step_w / seen.power_w
            power.append(hungrier - 1)
            energy.append(slower * hungrier - 1)
    return Residuals(
        seconds=_quantiles(seconds),
        power=_quantiles(power) if power else None,
        j_per_token=_quantiles(energy) if energy else None,
    )


def _quantiles(errors: Sequence[float]) -> Quantiles:
    sizes = np.abs(errors)
    return Quantiles(median=float(np.median(sizes)), p90=float(np.quantile(sizes, 0.9)), worst=float(np.max(sizes)))


def _idle_loaded_w(jobs: Sequence[JobTrials], info: DeviceInfo, base: Accelerator) -> float:
    """Return the idle power of a GPU with a model loaded: the median of the jobs that measured it, else the base's."""
    measured = [
        trial.measurement.idle_power_w / _num_gpus(info)
        for job in jobs
        for trial in job.trials
        if trial.measurement is not None and trial.measurement.idle_power_w is not None
    ]
    return float(np.median(measured)) if measured else base.idle_loaded_w


def _provenance(jobs: Sequence[JobTrials], seen: Sequence[Seen], info: DeviceInfo, now: datetime) -> Provenance:
    measurements = {
        (job.job_id, trial.number): trial.measurement for job in jobs for trial in job.trials if trial.measurement
    }
    engine = measurements[seen[0].job_id, seen[0].number].engine
    return Provenance(
        device_uuid=info.uuid,
        device_name=info.name,
        driver=info.driver,
        engine=f"{engine.engine} {engine.version}",
        job_ids=tuple(dict.fromkeys(one.job_id for one in seen)),
        num_trials=len(seen),
        created_at=now,
    )
