"""What a job found, in sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from api import schemas
from api.explanation_words import brief, full, none_words
from db.job import Job, JobState
from probes.device import Method, Scope
from tests.db.factories import START, make_reading, make_request
from tests.tuner.test_explain import TestGains, at, job
from tuner.budget import spent
from tuner.explain import Explanation, explain
from tuner.influence import Effect, Influence
from tuner.steps import Ratio, Step
from tuner.trial import Trial, TrialState

TRIALS = TestGains.TRIALS


def stored(**changes: Any) -> Job:
    made = Job(
        id="ab" * 16,
        name="nightly",
        request=make_request(),
        state=JobState.FINISHED,
        created_at=START,
        ended_because="trials",
        num_trials={},
    )
    return replace(made, **changes)


def told(*trials: Trial) -> list[str]:
    return brief(job(), explain(job(), trials))


def known(found: Explanation, **shares: float) -> Explanation:
    """An explanation that rests on a model of forty points with these shares."""
    effects = {name: Effect(alone=share, in_all=share, levels={}) for name, share in shares.items()}
    influence = Influence(effects=effects, num_points=40, r2=0.98)
    return replace(found, tok_per_j=influence, latency=replace(influence, effects={}, r2=0.31))


def test_the_first_sentence_names_the_point_and_its_figures() -> None:
    """Trial, knobs, tokens per joule, latency and throughput of what is recommended, and by which rule."""
    assert told(*TRIALS)[0] == (
        "Recommended: trial 3, max_batch=16 precision=fp32 sm_clock_cap_mhz=1500: 4 tok/J, tpot_p99 40 ms, 150 tok/s. "
        "No point inside the limits gives more tokens per joule."
    )


def test_without_limits_none_are_spoken_of() -> None:
    """A job without an SLA has nothing to be inside of."""
    assert "limits" not in brief(job(sla=()), explain(job(sla=()), TRIALS))[0]


def test_a_faster_point_that_is_tied_is_named() -> None:
    """Whoever reads the recommendation also reads of the point that is as frugal as far as can be told, and faster."""
    first = told(*TRIALS, at(5, 3.99, 22.0, max_batch=4))[0]
    assert "Faster, and in tokens per joule not to be told apart: trial 5, max_batch=4 " in first
    assert first.endswith("3.99 tok/J, tpot_p99 22 ms, 20 tok/s.")


def test_gains_are_told_with_their_interval() -> None:
    """A gain has ratio and interval, what it costs, and the figures of what it is over."""
    assert told(*TRIALS)[1] == (
        "It has 2.00x (1.96 to 2.04) the tokens per joule of the default configuration, with tpot_p99 +100 % and tok/s "
        "+50 %: that is trial 0, max_batch=8 precision=fp32 sm_clock_cap_mhz=2000: 2 tok/J, tpot_p99 20 ms, 100 tok/s."
    )


def test_a_gain_within_the_interval_is_none() -> None:
    """A ratio that the intervals do not tell from 1 is told as such."""
    gain = told(at(0, 4.0, 20.0), at(1, 4.02, 30.0, max_batch=16))[1]
    assert gain.startswith("It has 1.00x (0.99 to 1.03), not told apart from 1x, the tokens per joule of")


def test_a_reference_outside_the_limits_is_told_to_be() -> None:
    """The default is compared with, and the sentence says which limit it misses."""
    missed = replace(TRIALS[0], state=TrialState.INFEASIBLE, reason="overloaded", detail="the queue grew by 12 %")
    assert told(missed, *TRIALS[1:])[1].endswith("100 tok/s, outside the limits (the queue grew by 12 %).")
    assert missed.measurement is not None
    cut = replace(missed, measurement=replace(missed.measurement, cut_by="sla:tpot_p99_ms"))
    assert told(cut, *TRIALS[1:])[1].endswith(
        "100 tok/s, in a window that was cut short, outside the limits (the queue grew by 12 %)."
    )


def test_a_static_clock_is_the_best_of_those_measured() -> None:
    """The sentence says of how many clocks, be it the best itself, another's, or none inside the limits."""
    among = "static clock at default engine settings (of the 3 clocks measured there)"
    assert f"the tokens per joule of the best {among}, with" in told(*TRIALS)[2]
    assert f"It is itself the best {among}." in told(*TRIALS[:3])
    missed = [replace(trial, state=TrialState.INFEASIBLE, reason="overloaded") for trial in TRIALS[:3]]
    assert f"Not compared with the best {among}: none of those meets the limits." in told(*missed, *TRIALS[3:])


def test_what_it_is_itself_is_not_compared() -> None:
    """A recommended point that is the default, the best clock and the fastest says so three times."""
    assert told(TRIALS[0], replace(TRIALS[1], state=TrialState.FAILED, measurement=None)) == [
        "Recommended: trial 0, max_batch=8 precision=fp32 sm_clock_cap_mhz=2000: 2 tok/J, tpot_p99 20 ms, 100 tok/s. "
        "No point inside the limits gives more tokens per joule.",
        "It is the default configuration itself.",
        "Not compared with the best static clock at default engine settings: no clock but the default's was measured "
        "there.",
        "No point inside the limits has a higher throughput either.",
        "Which knobs moved energy and latency cannot be told from 1 point: it takes 10.",
    ]


def test_shares_stand_by_size_and_small_ones_aside() -> None:
    """Knobs below one percent are named without a figure, and a figure that no model predicts is not explained."""
    found = known(explain(job(), TRIALS), sm_clock_cap_mhz=0.2, max_batch=0.81, precision=0.004)
    assert brief(job(), found)[-1] == (
        "Tokens per joule depend on max_batch (81 % of the variance), sm_clock_cap_mhz (20 %), hardly on precision; "
        "tpot_p99 depends on the knobs in a way that no model of so few points can tell. This is by a model of 40 "
        "points, R² 0.98 and 0.31 on points left out of it."
    )


@pytest.mark.parametrize(("method", "label"), [(Method.SIMULATED, "simulated"), (Method.ESTIMATE, "estimate")])
def test_what_was_not_measured_is_labelled(method: Method, label: str) -> None:
    """Each figure of tokens per joule says that it is simulated or an estimate, and the last lines name the scope."""
    reading = make_reading(method=method, scope=Scope.CPU_SHARE)
    trials = [
        replace(trial, measurement=replace(trial.measurement, reading=reading)) for trial in TRIALS if trial.measurement
    ]
    lines = full(stored(request=job()), explain(job(), trials), [], spent(trials))
    assert all(f" tok/J ({label})," in line for line in lines[:2])
    assert f"Energy: {label}, nothing was measured; scope cpu_share, method {method.value}." in lines


def test_steps_and_what_was_spent_follow() -> None:
    """After the brief ones stand a sentence for each knob that changed alone, a caution, and what the job used."""
    lines = full(stored(request=job()), explain(job(), TRIALS), [], spent(TRIALS))
    assert "max_batch from 8 to 16, all else equal: tokens per joule +53 % (+33 % to +75 %), tpot_p99 +67 % " in (
        "\n".join(lines)
    )
    assert lines[-3].startswith("Intervals of points with one window are of the scatter within it")
    assert lines[-2:] == [
        "Energy: measured; scope gpu, method counter.",
        "The job ended because of: trials; used: 5 of 24 trials.",
    ]


def test_a_predicted_step_says_so() -> None:
    """A step without pairs is told to be the model's, and changes that round to nothing are no minus nothing."""
    step = Step(knob="policy", from_value="a", to_value="b", num_pairs=0, tok_per_j=Ratio(0.999), latency=Ratio(1.25))
    found = replace(explain(job(), TRIALS), steps=(step,))
    assert (
        "policy from a to b, all else equal: tokens per joule ±0 %, tpot_p99 +25 % (by the model, for no two points "
        "differ in this knob alone)."
    ) in full(stored(), found, [], spent(TRIALS))


def test_a_job_without_a_feasible_point_names_the_nearest() -> None:
    """Each of the nearest points has its knobs, what it misses, and by how much."""
    misses = [
        schemas.MissOut(
            trial=3, knobs={"max_batch": 8}, detail="ttft_p99_ms is 550, the limit is 500", missed_by=0.1, is_cut=False
        ),
        schemas.MissOut(
            trial=1, knobs={"max_batch": 16}, detail="ttft_p99_ms is 700, the limit is 500", missed_by=0.4, is_cut=False
        ),
    ]
    assert none_words(misses) == (
        "No configuration meets the limits; nearest: trial 3, max_batch=8: ttft_p99_ms is 550, the limit is 500 "
        "(missed by 10 %); trial 1, max_batch=16: ttft_p99_ms is 700, the limit is 500 (missed by 40 %)."
    )
    lines = full(stored(ended_because=None), explain(job(), []), [], spent([]))
    assert lines == [
        "No point gave usable figures inside the limits.",
        "The job has not ended; used: 0 of 4 trials, 0 of 2.5 minutes.",
    ]
