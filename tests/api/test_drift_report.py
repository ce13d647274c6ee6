"""What moved between two nights: beyond its intervals, with the likely cause, and no more than was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.drift_report import NightResult, drift_between, has_moved
from api.drift_schemas import DriftOut
from probes.device import Method
from tests.db.factories import (
    START,
    make_conditions,
    make_engine_info,
    make_measurement,
    make_point,
    make_reading,
    make_request,
    make_trial,
)
from tuner.measurement import Distribution, Estimate
from tuner.pareto import front_of
from tuner.request import WorkloadSpec
from tuner.trial import Trial, TrialState

NO_CAUSE = "no known cause: device, driver, engine, model, workload, temperature and clock events are the same"


def latency(value_ms: float) -> Distribution:
    figure = Estimate(value_ms, value_ms * 0.98, value_ms * 1.02)
    return Distribution(count=400, mean=figure, p50=figure, p90=figure, p95=figure, p99=figure)


def trial(number: int, tok_per_j: float, latency_ms: float, **changes: Any) -> Trial:
    """A point with batch 8, 16, 32, ... and 2 % wide intervals; other fields of its measurement by keyword."""
    figure = Estimate(tok_per_j, tok_per_j * 0.98, tok_per_j * 1.02)
    fields = {"tok_per_j": figure, "tpot": latency(latency_ms), "driver": "580.65.06"} | changes
    return make_trial(number=number, point=make_point(8 * 2**number), measurement=make_measurement(**fields))


def night(trials: Sequence[Trial], job_id: str = "a" * 32, **changes: Any) -> NightResult:
    request = make_request(latency_metric="tpot_p99_ms", sla=(), **changes)
    front = front_of(trials, "tpot_p99_ms", created_at=START, request=request)
    return NightResult(job_id=job_id, request=request, front=front, trials=trials)


def two(**changes: Any) -> list[Trial]:
    """A fast point and a frugal one."""
    return [trial(0, 2.0, 10.0, **changes), trial(1, 3.0, 20.0, **changes)]


def states(drift: DriftOut) -> dict[Any, str]:
    return {point.knobs["max_batch"]: point.state for point in drift.points}


BEFORE = night(two())


def test_a_first_night_has_nothing_before_it() -> None:
    """It says so, and claims nothing."""
    drift = drift_between(None, BEFORE)
    assert (drift.compared_with, drift.has_moved, drift.points) == (None, False, [])
    assert drift.sentences == ["the first night with a front: 2 points"]


def test_another_latency_is_not_held_against_the_one_before() -> None:
    """A schedule whose job is asked for another latency, or other limits, says so and compares no areas."""
    trials = two(ttft=latency(300.0))
    request = make_request(latency_metric="ttft_p99_ms")
    front = front_of(trials, "ttft_p99_ms", created_at=START, request=request)
    drift = drift_between(night(trials), NightResult(job_id="b" * 32, request=request, front=front, trials=trials))
    assert (drift.hypervolume_before, drift.hypervolume_after, drift.hypervolume_change) == (None, None, None)
    assert drift.sentences[-2:] == [
        "the latency was tpot_p99_ms before and is ttft_p99_ms now: the two fronts are of different figures, and their "
        "areas cannot be compared",
        "the job's limits are others than before, which by itself can change the front",
    ]


def test_the_same_figures_again_are_no_drift() -> None:
    """Two equal nights: every point held, the same area, no cause is sought."""
    drift = drift_between(BEFORE, night(two(), "b" * 32))
    assert (drift.compared_with, drift.has_moved) == ("a" * 32, False)
    assert states(drift) == {8: "held", 16: "held"}
    assert (drift.hypervolume_change, drift.changes, drift.vanished, drift.came) == (0.0, [], [], [])
    assert drift.sentences[0] == "0 of 2 points of the front before moved beyond their intervals"
    assert not any("cause" in sentence for sentence in drift.sentences)


def test_a_driver_that_is_another_is_the_likely_cause() -> None:
    """Less energy efficiency under a new driver: the points, by how much, and both versions are named."""
    after = night([trial(0, 1.8, 10.0, driver="590.10"), trial(1, 2.7, 20.0, driver="590.10")])
    drift = drift_between(BEFORE, after)
    assert (drift.has_moved, states(drift)) == (True, {8: "moved", 16: "moved"})
    energy = drift.points[0].tok_per_j
    assert energy is not None
    assert energy.change == pytest.approx(-0.1)
    assert [(change.name, change.before, change.after) for change in drift.changes] == [
        ("driver", "580.65.06", "590.10")
    ]
    assert "max_batch=8 precision=fp32: tokens per joule from 2 to 1.8 (-10.0%)" in drift.sentences
    assert "likely cause: the driver was 580.65.06 and is 590.10" in drift.sentences
    assert "the hypervolume changed by -10.0%" in drift.sentences


def test_without_a_difference_no_cause_is_made_up() -> None:
    """Slower by more than the intervals on the same of everything: moved, and no known cause."""
    drift = drift_between(BEFORE, night([trial(0, 2.0, 12.0), trial(1, 3.0, 20.0)]))
    assert states(drift) == {8: "moved", 16: "held"}
    assert "max_batch=8 precision=fp32: tpot_p99_ms from 10 to 12 (+20.0%)" in drift.sentences
    assert NO_CAUSE in drift.sentences
    assert any("repeats.windows 3" in sentence for sentence in drift.sentences)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"engine": make_engine_info(version="0.2.0")}, "the engine was embedded 0.1.0 and is embedded 0.2.0"),
        ({"engine": make_engine_info(model_hash="cd" * 32)}, "the model's hash was abababababab and is cdcdcdcdcdcd"),
        ({"reading": make_reading(device_uuids=("GPU-2",))}, "the device was GPU-1 and is GPU-2"),
        (
            {"reading": make_reading(method=Method.INTEGRATED)},
            "what the energy is of was gpu by counter and is gpu by integrated",
        ),
    ],
)
def test_what_figures_were_measured_on(changes: Mapping[str, Any], expected: str) -> None:
    """Another engine version, model, device or way to read energy is named with both values."""
    after = [trial(0, 1.8, 10.0, **changes), trial(1, 2.7, 20.0, **changes)]
    assert f"likely cause: {expected}" in drift_between(BEFORE, night(after)).sentences


def test_heat_and_throttling_are_told_from_shared_points() -> None:
    """Hotter, and for longer under a thermal limit: events come before temperature, each with both medians."""
    cool = make_reading(conditions=(make_conditions(highest_temperature_c=61.0, event_shares=()),))
    hot = make_reading(conditions=(make_conditions(highest_temperature_c=88.0, event_shares=(("hw_thermal", 0.4),)),))
    drift = drift_between(
        night(two(reading=cool)), night([trial(0, 1.8, 12.0, reading=hot), trial(1, 2.7, 24.0, reading=hot)])
    )
    assert [change.name for change in drift.changes] == ["clock_event:hw_thermal", "temperature"]
    assert "likely cause: the share of time under the clock event hw_thermal was 0% and is 40%" in drift.sentences
    assert "also: the device's highest temperature was 61 °C and is 88 °C" in drift.sentences


def test_a_power_limit_that_somebody_set_is_told() -> None:
    """Another power limit of the device at the same points is a cause."""
    low = make_reading(conditions=(make_conditions(power_limit_w=350.0),))
    high = make_reading(conditions=(make_conditions(power_limit_w=700.0),))
    drift = drift_between(night(two(reading=high)), night([trial(0, 2.4, 12.0, reading=low)]))
    assert [(change.name, change.before, change.after) for change in drift.changes] == [
        ("power_limit", "700 W", "350 W")
    ]


def test_another_workload_is_told_field_by_field() -> None:
    """A schedule whose workload was changed says which of its fields, and both values."""
    other = WorkloadSpec(prompt_tokens=(8, 16), output_tokens=(4, 8), concurrency=4, seed=7)
    drift = drift_between(BEFORE, night([trial(0, 1.5, 30.0)], workload=other))
    assert [(change.name, change.before, change.after) for change in drift.changes] == [
        ("workload", "concurrency 2", "concurrency 4")
    ]


def test_other_prompts_show_in_fingerprints_alone() -> None:
    """Where everything that has a name agrees and the fingerprints do not, it was the text or a trace."""
    before = replace(BEFORE, fingerprints=frozenset({"ab" * 32}))
    drift = drift_between(before, replace(night(two()), fingerprints=frozenset({"cd" * 32})))
    assert [(change.name, change.before, change.after) for change in drift.changes] == [
        ("prompts", "abababababab", "cdcdcdcdcdcd")
    ]
    assert not drift.has_moved
    assert any(sentence.startswith("since then: the prompts' text") for sentence in drift.sentences)


def test_points_that_went_and_came() -> None:
    """What left the front says why: beaten, outside a limit, or not measured; what came is listed."""
    after = [
        make_trial(
            number=0, point=make_point(8), state=TrialState.INFEASIBLE, reason="sla:ttft_p99_ms", detail="ttft is 9 ms",
            measurement=None,
        ),
        trial(1, 3.0, 20.0),
        trial(2, 4.0, 40.0),
    ]  # fmt: skip
    drift = drift_between(BEFORE, night(after))
    assert [(gone.knobs["max_batch"], gone.reason) for gone in drift.vanished] == [(8, "ttft is 9 ms")]
    assert [knobs["max_batch"] for knobs in drift.came] == [32]
    assert states(drift) == {8: "not_measured", 16: "held"}
    assert "1 points left the front, 1 came to it" in drift.sentences
    beaten = drift_between(BEFORE, night([trial(0, 2.0, 10.0), trial(1, 1.0, 20.0)]))
    assert [gone.reason for gone in beaten.vanished] == ["other points beat it now"]


def test_a_night_without_a_point_says_so() -> None:
    """A job that ended before its first window compares nothing and finds no drift."""
    drift = drift_between(BEFORE, night([]))
    assert (drift.has_moved, drift.hypervolume_after) == (False, 0.0)
    assert [(point.state, point.reason) for point in drift.points] == [
        ("not_measured", "the night ended before it")
    ] * 2
    assert drift.sentences[0] == "no point of the front before could be held against tonight's"


def test_what_was_taken_over_is_not_measured() -> None:
    """A measurement of an earlier job in place of one of tonight's shows nothing of tonight."""
    after = [replace(one, reused_from=f"{'a' * 32}/{one.number}") for one in two()]
    drift = drift_between(BEFORE, night(after))
    assert states(drift) == {8: "not_measured", 16: "not_measured"}
    assert drift.points[0].reason == f"its measurement was taken over from {'a' * 32}/0"


def test_an_open_interval_tells_nothing() -> None:
    """A p99 of too few requests has no upper bound: that it rose is not claimed, that energy moved is."""
    open_above = Distribution(count=40, p99=Estimate(10.0, 9.8, None))
    before = night([trial(0, 2.0, 10.0, tpot=open_above)])
    drift = drift_between(before, night([trial(0, 2.0, 15.0)]))
    assert states(drift) == {8: "not_told"}
    assert drift.points[0].reason is not None
    assert states(drift_between(before, night([trial(0, 1.5, 15.0)]))) == {8: "moved"}


def test_an_estimate_is_not_held_against_a_measurement() -> None:
    """Energy of another kind says nothing of drift, and is named as what changed."""
    estimate = make_reading(method=Method.ESTIMATE)
    drift = drift_between(BEFORE, night(two(reading=estimate)))
    assert states(drift) == {8: "not_told", 16: "not_told"}
    assert [change.name for change in drift.changes] == ["energy"]


@given(st.floats(1, 100), st.floats(0, 10), st.floats(1, 100), st.floats(0, 10))
def test_moving_is_the_same_both_ways(one: float, reach: float, other: float, fall: float) -> None:
    """Whoever is called the earlier one, the verdict is the same; disjoint intervals have moved, equal figures not."""
    a, b = Estimate(one, one - reach, one + reach), Estimate(other, other - fall, other + fall)
    assert has_moved(a, b) is has_moved(b, a)
    assert has_moved(a, a) is False
    if abs(one - other) > (reach + fall) * 1.001:
        assert has_moved(a, b) is True


def test_a_report_is_plain_json_and_back() -> None:
    """What is stored with a night is read back as the same report."""
    drift = drift_between(BEFORE, night([trial(0, 1.8, 12.0, driver="590.10")]))
    assert DriftOut.model_validate(drift.model_dump(mode="json")) == drift
