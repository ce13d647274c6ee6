"""Recommendations from a store: evidence, age, staleness, other loads, and what is remembered."""

from __future__ import annotations

import asyncio
import gc
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from api.recommend_schemas import RecommendationQuery
from api.recommender import BELIEVED_S, LOOK_S, NoResults, Recommender
from api.stores import Stores
from db.errors import DatabaseUnreachable
from db.results import ResultStore
from probes.device import Method, Scope
from tests.api.commands import wait_until
from tests.db.factories import START, make_device, make_measurement, make_point, make_reading, make_request, make_trial
from tuner.measurement import Distribution, Estimate
from tuner.pareto import front_of
from tuner.request import WorkloadSpec
from tuner.trial import Trial

DAY = timedelta(days=1)


class Ticks:
    """A clock for what is remembered, and the time of day."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.today = START + DAY

    def seconds(self) -> float:
        return self.now_s

    def now(self) -> datetime:
        return self.today


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def recommender(stores: Stores, ticks: Ticks) -> Recommender:
    return Recommender(stores, ticks.now, ticks.seconds)


def make_query(**changes: Any) -> RecommendationQuery:
    return RecommendationQuery(**{"model": "smollm2-135m", "device": "auto", **changes})


def measured(number: int, tok_per_j: float, tpot_ms: float, **changes: Any) -> Trial:
    figures = make_measurement(
        tok_per_j=Estimate(tok_per_j, 0.95 * tok_per_j, 1.05 * tok_per_j),
        tpot=Distribution(count=40, p99=Estimate(tpot_ms, 0.9 * tpot_ms, 1.2 * tpot_ms)),
        **changes,
    )
    return make_trial(number=number, point=make_point(8 << number), measurement=figures)


def store(stores: Stores, trials: list[Trial], **request: Any) -> str:
    """Store a job's results; its knobs are the engine's, so that max_batch 8 is the default."""
    job = stores.jobs.create(make_request(**{"knobs": (), **request}))
    stores.results.save(job.id, trials, front_of(trials, "tpot_p99_ms", created_at=START))
    return job.id


def test_the_answer_has_point_evidence_and_commands(stores: Stores, recommender: Recommender) -> None:
    """The best point inside the limit comes with its job, interval, gain, margin, age, and how to run it."""
    job_id = store(stores, [measured(0, 2.0, 10.0), measured(1, 3.0, 20.0), measured(2, 4.0, 40.0)])
    answer = recommender.answer(make_query(tpot_p99_ms=25, min_output_tok_s=10))
    best = answer.recommended
    assert best is not None
    assert (best.job, best.trial, best.tok_per_j.value) == (job_id, 1, 3.0)
    assert best.tok_per_j.low == pytest.approx(2.85)
    assert (best.label, best.is_estimate, best.is_stale) == (None, False, False)
    assert best.over_default is not None
    assert (best.over_default.trial, best.over_default.ratio) == (0, 1.5)
    assert [(one.name, one.figure.value, one.is_certain) for one in best.limits] == [
        ("tpot_p99_ms", 20.0, True),
        ("output_tok_s", 20.0, True),
    ]
    assert best.limits[0].margin == pytest.approx(0.2)
    assert best.age_hours == pytest.approx(24, abs=0.1)
    assert best.run["vllm"].startswith("vllm serve HuggingFaceTB/SmolLM2-135M-Instruct")
    assert best.exports["dynamo"] == f"/v1/jobs/{job_id}/export?form=dynamo&number=1"
    assert "Of 3 stored points trial 1" in answer.why
    assert "1.5 times the default" in answer.why


def test_what_the_intervals_leave_open_is_told(stores: Stores, recommender: Recommender) -> None:
    """A mean inside a limit whose interval reaches beyond it is taken, and the answer says so."""
    store(stores, [measured(0, 2.0, 24.0)])
    answer = recommender.answer(make_query(tpot_p99_ms=25))
    assert answer.recommended is not None
    assert answer.recommended.limits[0].is_certain is False
    assert "intervals do not show it for tpot_p99_ms" in answer.why
    assert "has the most tokens per joule: 2." in recommender.answer(make_query()).why


def test_without_a_point_inside_the_nearest_are_told(stores: Stores, recommender: Recommender) -> None:
    """Limits that no point holds are answered with the points that come nearest and what each misses."""
    store(stores, [measured(0, 2.0, 10.0), measured(1, 3.0, 20.0)])
    answer = recommender.answer(make_query(tpot_p99_ms=8))
    assert answer.recommended is None
    assert [(near.trial, near.missed[0].missed_by) for near in answer.nearest] == [(0, 0.25), (1, 1.5)]
    assert "none is inside tpot_p99_ms <= 8" in answer.why
    assert f"trial 0 of job {answer.nearest[0].job[:8]}, has" in answer.why


def test_an_old_point_is_stale(stores: Stores, recommender: Recommender) -> None:
    """A point older than asked for is still named, and marked with the reason."""
    store(stores, [measured(0, 2.0, 10.0)])
    fresh, old = (recommender.answer(make_query(max_age_hours=hours)).recommended for hours in (48, 2))
    assert fresh is not None
    assert old is not None
    assert (fresh.is_stale, old.is_stale, old.stale_because) == (False, True, ["too_old"])


def test_a_new_driver_makes_a_point_stale(stores: Stores, recommender: Recommender) -> None:
    """When the device was last seen with another driver than the point's, the answer says so."""
    store(stores, [measured(0, 2.0, 10.0, driver="580.65.06")])
    stores.devices.seen(make_device(driver="590.10"), [])
    answer = recommender.answer(make_query())
    assert answer.recommended is not None
    assert answer.recommended.stale_because == ["driver_changed"]
    assert "driver has changed" in answer.why


def test_a_point_of_the_same_driver_is_not_stale(stores: Stores, recommender: Recommender) -> None:
    """A device that was last seen with the point's own driver leaves the point as it is."""
    store(stores, [measured(0, 2.0, 10.0, driver="580.65.06")])
    stores.devices.seen(make_device(), [])
    answer = recommender.answer(make_query())
    assert answer.recommended is not None
    assert answer.recommended.stale_because == []


def test_other_loads_are_named_and_can_be_asked_for(stores: Stores, recommender: Recommender) -> None:
    """Points under another load are listed with the name to ask for them by, and then answer."""
    other = WorkloadSpec(prompt_tokens=(900, 900), output_tokens=(5, 5))
    store(stores, [measured(0, 9.0, 10.0)], workload=other)
    later = measured(0, 2.0, 10.0)
    job = stores.jobs.create(make_request(knobs=()))
    moved = make_trial(
        point=later.point, measurement=later.measurement, started_at=START + DAY, finished_at=START + DAY
    )
    stores.results.save(job.id, [moved], front_of([moved], "tpot_p99_ms", created_at=START))
    answer = recommender.answer(make_query())
    assert answer.recommended is not None
    assert answer.recommended.tok_per_j.value == 2.0
    (load,) = answer.other_loads
    assert load.load == "closed, prompts of 900-900 tokens, outputs of 5-5"
    there = recommender.answer(make_query(workload=load.workload)).recommended
    assert there is not None
    assert there.tok_per_j.value == 9.0


def test_an_estimate_is_labelled(stores: Stores, recommender: Recommender) -> None:
    """A point whose energy is an estimate says so in its label and in the sentence."""
    reading = make_reading(method=Method.ESTIMATE, scope=Scope.CPU_SHARE)
    store(stores, [measured(0, 2.0, 10.0, reading=reading)])
    answer = recommender.answer(make_query())
    assert answer.recommended is not None
    assert (answer.recommended.is_estimate, answer.recommended.label) == (
        True, "ESTIMATE: the energy was not measured, it is computed"
    )  # fmt: skip
    assert "estimate" in answer.why


def test_nothing_stored_is_said_so(recommender: Recommender) -> None:
    """A model that was never tuned on the device is refused with what to do."""
    with pytest.raises(NoResults, match="no finished job has results of model 'smollm2-135m' on device 'auto'"):
        recommender.answer(make_query())


def test_a_new_job_is_known_within_half_a_second(stores: Stores, ticks: Ticks, recommender: Recommender) -> None:
    """What is remembered holds until something new is stored, which is looked for twice a second."""
    store(stores, [measured(0, 2.0, 10.0)])
    assert recommender.answer(make_query()).num_points == 1
    store(stores, [measured(0, 2.0, 10.0), measured(1, 3.0, 10.0)])
    ticks.now_s += LOOK_S
    assert recommender.answer(make_query()).num_points == 2


def test_a_job_that_was_deleted_is_forgotten(stores: Stores, ticks: Ticks, recommender: Recommender) -> None:
    """Points of a deleted job are named for a minute at most."""
    job_id = store(stores, [measured(0, 2.0, 10.0)])
    assert recommender.answer(make_query()).num_points == 1
    with stores.database.transaction() as session:
        session.execute(text("DELETE FROM jobs WHERE id = :id"), {"id": job_id})
    ticks.now_s += BELIEVED_S
    with pytest.raises(NoResults):
        recommender.answer(make_query())


def test_what_was_read_is_answered_without_the_store(
    stores: Stores, recommender: Recommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second question about the same points, under other limits that the same one meets, reads nothing."""
    store(stores, [measured(0, 2.0, 10.0), measured(1, 3.0, 10.0)])
    first = asyncio.run(recommender.answer_in_turn(make_query()))
    for name in ("find", "mark", "get", "newest_id"):
        monkeypatch.setattr(ResultStore, name, _unreachable)
    second = asyncio.run(recommender.answer_in_turn(make_query(tpot_p99_ms=20.0)))
    assert first.recommended is not None
    assert second.recommended is not None
    assert first.recommended.knobs == second.recommended.knobs
    nearest = asyncio.run(recommender.answer_in_turn(make_query(tpot_p99_ms=1.0)))
    assert nearest.recommended is None
    assert len(nearest.nearest) == 2


def test_what_is_asked_for_is_read_anew_before_it_is_too_old(
    stores: Stores, recommender: Recommender, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks late in a page's minute is answered from it, and those after that minute wait for no read either."""
    store(stores, [measured(0, 2.0, 10.0)])
    asyncio.run(recommender.answer_in_turn(make_query()))
    mark, read_at_s = ResultStore.mark, list[float]()

    def mark_noted(*given: Any, **named: Any) -> Any:
        read_at_s.append(ticks.now_s)
        return mark(*given, **named)

    monkeypatch.setattr(ResultStore, "mark", mark_noted)
    ticks.now_s = 110.0
    asyncio.run(recommender.answer_in_turn(make_query()))
    assert read_at_s == []
    ticks.now_s = 155.0
    asyncio.run(recommender.answer_in_turn(make_query()))
    wait_until(lambda: read_at_s or None, what="the page to be read anew")
    ticks.now_s = 165.0
    asyncio.run(recommender.answer_in_turn(make_query()))
    assert read_at_s == [155.0]


def test_other_jobs_results_cost_no_read(
    stores: Stores, recommender: Recommender, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that ends has nothing read anew but what it changed: of another model that is nothing."""
    store(stores, [measured(0, 2.0, 10.0)])
    before = recommender.answer(make_query())
    store(stores, [measured(0, 9.0, 10.0)], model="another")
    ticks.now_s += LOOK_S
    with monkeypatch.context() as patched:
        for name in ("find", "get"):
            patched.setattr(ResultStore, name, _unreachable)
        assert recommender.answer(make_query()) == before
    store(stores, [measured(0, 3.0, 10.0)])
    ticks.now_s += LOOK_S
    changed = recommender.answer(make_query()).recommended
    assert changed is not None
    assert changed.tok_per_j.value == 3.0


def test_what_is_remembered_of_a_point_is_few_objects(stores: Stores, recommender: Recommender) -> None:
    """A point that was shown leaves some five objects behind, and not the hundred that its figures are."""
    store(stores, [measured(number, 2.0 + number, 10.0 + number) for number in range(11)])
    recommender.answer(make_query(tpot_p99_ms=10.5))
    gc.collect()
    before = len(gc.get_objects())
    shown = {recommender.answer(make_query(tpot_p99_ms=10.5 + number)).why for number in range(1, 11)}
    gc.collect()
    assert len(shown) == 10
    assert len(gc.get_objects()) - before < 10 * 10


def test_the_default_point_says_that_it_is_the_default(stores: Stores, recommender: Recommender) -> None:
    """Where nothing is better, the default configuration is named as such, without a gain over itself."""
    store(stores, [measured(0, 3.0, 10.0), measured(1, 2.0, 20.0)])
    why = recommender.answer(make_query()).why
    assert "It is the default configuration itself." in why
    assert "times the default" not in why


def _unreachable(*_: object, **__: object) -> None:
    raise DatabaseUnreachable("the store was asked")
