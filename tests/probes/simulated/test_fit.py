"""The fit: finds back what made the observations, moves little on little, and never by chance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probes.simulated.accelerators import ACCELERATORS
from probes.simulated.coefficients import Coefficients
from probes.simulated.fit import CLOCK_COEFFICIENTS, Observation, fit
from probes.simulated.response import Response
from tests.probes.simulated.step_works import StepWork, make_decode, make_prefill

H100 = ACCELERATORS["h100-sxm"]
WORKS = (
    *(make_decode(batch, context) for batch in (1, 4, 16, 64, 256) for context in (200, 1000, 8000)),
    *(make_prefill(tokens) for tokens in (256, 1024, 4096)),
)


def observed(
    truth: Coefficients, works: tuple[StepWork, ...] = WORKS, clocks_mhz: tuple[float | None, ...] = (None,)
) -> list[Observation]:
    """Return what a GPU of these coefficients would be seen to do, without error."""
    response = Response(H100, truth)
    found = []
    for clock in clocks_mhz:
        for work in works:
            seconds, watts, _ = response.settle(
                work, clock_cap_mhz=clock or 1980.0, power_cap_w=700.0 if clock is None else 1e9, from_clock_mhz=1980.0
            )
            found.append(Observation(work=work, seconds=seconds, power_w=watts, clock_mhz=clock))
    return found


def worst(errors: tuple[float | None, ...]) -> float:
    """Return the largest absolute error."""
    return max(abs(error) for error in errors if error is not None)


def test_a_fit_explains_what_another_gpu_does() -> None:
    """Coefficients off by 20 to 60 % are corrected until time and power are within 3 % everywhere."""
    truth = replace(H100.coefficients, kv_factor=1.9, layer_s=120e-6, sequence_s=75e-6, weight_w=190.0, compute_w=500.0)
    result = fit(observed(truth), H100)
    assert result.has_converged
    assert worst(result.seconds_errors) < 0.03
    assert worst(result.power_errors) < 0.03
    assert result.coefficients.kv_factor == pytest.approx(1.9, rel=0.1)
    assert result.coefficients.sequence_s == pytest.approx(75e-6, rel=0.1)


def test_what_fits_already_does_not_move() -> None:
    """Observations made by the starting coefficients themselves give these back."""
    result = fit(observed(H100.coefficients), H100)
    for name in ("kv_factor", "sequence_s", "static_w", "compute_w"):
        assert getattr(result.coefficients, name) == pytest.approx(getattr(H100.coefficients, name), rel=0.02)


def test_one_observation_moves_little() -> None:
    """A single step that took a quarter longer leaves every coefficient within 60 % of where it was."""
    one = observed(H100.coefficients, WORKS[:1])[0]
    result = fit([replace(one, seconds=1.25 * one.seconds)], H100)
    for name in result.uncertainty:
        assert getattr(result.coefficients, name) == pytest.approx(getattr(H100.coefficients, name), rel=0.6), name


def test_an_outlier_is_outvoted() -> None:
    """One observation that is wrong by a factor of three does not spoil the others."""
    seen = observed(H100.coefficients)
    seen[4] = replace(seen[4], seconds=3 * seen[4].seconds)
    errors = fit(seen, H100).seconds_errors
    assert max(abs(error) for index, error in enumerate(errors) if index != 4) < 0.06
    assert errors[4] < -0.5


def test_a_fit_has_no_chance_in_it() -> None:
    """Two fits of the same observations give the same coefficients to the last bit."""
    seen = observed(replace(H100.coefficients, kv_factor=1.2))
    assert fit(seen, H100) == fit(seen, H100)


def test_the_clock_axis_is_fitted_where_there_are_clocks() -> None:
    """Observations at five clocks find a ridge and a slope that those at one clock leave alone."""
    truth = replace(H100.coefficients, voltage_per_ghz=0.45, memory_knee_share=0.55)
    clocks = (600.0, 990.0, 1290.0, 1590.0, 1980.0)
    swept = fit(observed(truth, clocks_mhz=clocks), H100)
    assert swept.coefficients.voltage_per_ghz == pytest.approx(0.45, rel=0.15)
    assert swept.coefficients.memory_knee_share == pytest.approx(0.55, rel=0.05)
    single = fit(observed(truth), H100)
    for name in CLOCK_COEFFICIENTS:
        assert getattr(H100.coefficients, name) == getattr(single.coefficients, name)


def test_only_free_coefficients_change() -> None:
    """A fit of the host's terms alone leaves the GPU's as they were."""
    result = fit(observed(replace(H100.coefficients, sequence_s=90e-6)), H100, free=("step_s", "sequence_s"))
    restored = replace(result.coefficients, step_s=H100.coefficients.step_s, sequence_s=H100.coefficients.sequence_s)
    assert H100.coefficients == restored
    assert {"step_s", "sequence_s"} == set(result.uncertainty)


def test_a_busy_hosts_time_is_not_the_gpus() -> None:
    """Observations lengthened by a known wait at idle watts give the coefficients of those without."""
    static_w, wait_s = H100.coefficients.static_w, 0.02
    seen = []
    for one in observed(H100.coefficients):
        assert one.power_w is not None
        total_s = one.seconds + wait_s
        watts = (one.seconds * one.power_w + wait_s * static_w) / total_s
        seen.append(replace(one, seconds=total_s, power_w=watts, host_s=wait_s))
    result = fit(seen, H100)
    assert result.coefficients.sequence_s == pytest.approx(H100.coefficients.sequence_s, rel=0.02)
    assert worst(result.power_errors) < 0.03


def test_a_mix_of_steps_is_averaged_by_time_and_energy() -> None:
    """An observation of nine decodes to one prompt is predicted by the mean of both, watts by energy over time."""
    parts = ((0.9, make_decode(16)), (0.1, make_prefill(1024)))
    response = Response(H100)
    answers = [(share, *response.cost(work, 1980)) for share, work in parts]
    seconds = sum(share * step_s for share, step_s, _ in answers)
    watts = sum(share * step_s * step_w for share, step_s, step_w in answers) / seconds
    seen = Observation(work=parts[0][1], seconds=seconds, power_w=watts, mix=parts, clock_mhz=1980)
    result = fit([seen], H100, free=("step_s",))
    assert worst(result.seconds_errors) < 1e-6
    assert worst(result.power_errors) < 1e-6


def test_time_alone_is_enough() -> None:
    """Observations without power, far from any cap, are fitted in time; of power nothing is learnt nor said."""
    seen = [replace(one, power_w=None) for one in observed(replace(H100.coefficients, kv_factor=1.9), WORKS[:9])]
    result = fit(seen, H100)
    assert worst(result.seconds_errors) < 0.06
    assert {None} == set(result.power_errors)
    assert result.coefficients.static_w == pytest.approx(H100.coefficients.static_w)


def test_what_is_known_better_moves_less() -> None:
    """A narrower spread keeps a coefficient nearer to where it starts."""
    seen = observed(replace(H100.coefficients, static_w=170.0))
    usual, narrow = fit(seen, H100), fit(seen, H100, spreads={"static_w": 0.01})
    assert 125.0 < narrow.coefficients.static_w < usual.coefficients.static_w


def test_uncertainty_says_what_the_observations_do_not() -> None:
    """What no observation bears on stays as uncertain as it was; what all bear on gets much surer."""
    uncertainty = fit(observed(H100.coefficients), H100).uncertainty
    assert uncertainty["scale_out_s"] == pytest.approx(0.5, rel=0.01)
    assert uncertainty["sequence_s"] < 0.2


@pytest.mark.parametrize(
    ("seen", "free", "message"),
    [([], None, "nothing to fit"), (observed(H100.coefficients), ("speed",), "free has speed")],
)
def test_what_cannot_be_fitted_is_refused(seen: list[Observation], free: tuple[str, ...] | None, message: str) -> None:
    """No observations, or a coefficient of an unknown name, is a ValueError that says so."""
    with pytest.raises(ValueError, match=message):
        fit(seen, H100, free=free)


def test_measured_noise_averages_out() -> None:
    """With 5 % of noise on 18 points the median error against the truth stays below 4 %."""
    rng = np.random.Generator(np.random.PCG64(1))
    truth = replace(H100.coefficients, kv_factor=1.9, sequence_s=70e-6)
    exact = observed(truth)
    noisy = [
        replace(one, seconds=one.seconds * rng.normal(1, 0.05), power_w=(one.power_w or 0.0) * rng.normal(1, 0.05))
        for one in exact
    ]
    response = Response(H100, fit(noisy, H100).coefficients)
    errors = [
        abs(response.cost(one.work, 1980)[0] / Response(H100, truth).cost(one.work, 1980)[0] - 1) for one in exact
    ]
    assert float(np.median(errors)) < 0.04
