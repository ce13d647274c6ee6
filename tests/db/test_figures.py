"""The figures that are kept beside a measurement: what they are, how small, and that a migration makes the same."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sqlalchemy import select, text

from db import migrate
from db.database import Database
from db.figures import NAMES, rounded, stored_figures
from db.jobs import JobStore
from db.records import measurement_to_json
from db.tables import MeasurementRow
from db.trial_figures import TrialFigureStore
from db.trials import TrialStore
from probes.device import Method, Scope
from tests.db.factories import (
    Clock,
    make_conditions,
    make_engine_info,
    make_measurement,
    make_point,
    make_reading,
    make_request,
    make_trial,
)
from tuner.measurement import Estimate, Measurement, Quality


def everything() -> Measurement:
    """A measurement with every figure there is."""
    clocks = (make_conditions(), make_conditions(mean_clock_mhz=1402.5), make_conditions(mean_clock_mhz=None))
    return make_measurement(
        tok_per_j=Estimate(2.0 / 3, 0.1 / 3, None),
        reading=make_reading(conditions=clocks),
        host=make_reading(scope=Scope.CPU_PACKAGE, energy_j=2490.0),
        quality=Quality(num_tokens=9, perplexity=17.3, perplexity_ratio=1.0123456, top1_agreement=None, kl=0.0123),
        cut_by="sla:ttft_p99_ms",
        driver="580.65",
    )


def named(measurement: Measurement) -> dict[str, object]:
    return dict(zip(NAMES, stored_figures(measurement), strict=True))


def test_every_figure_that_is_shown_is_kept() -> None:
    """Estimates come with both bounds, clocks as the mean over devices, the host's watts, quality and the cut."""
    expected = {
        "tok_per_j": 0.666667,
        "tok_per_j_low": 0.0333333,
        "tok_per_j_high": None,
        "output_tok_s": 20.0,
        "output_tok_s_low": 19.2,
        "ttft_mean_ms": 20.0,
        "tpot_p99_ms": 31.0,
        "tpot_p99_ms_low": 25.0,
        "tpot_p99_ms_high": None,
        "e2e_p99_ms": None,
        "clock_mhz": 1400.0,
        "num_finished": 40,
        "host_w": 83.0,
        "perplexity_ratio": 1.01235,
        "kl": 0.0123,
        "cut_by": "sla:ttft_p99_ms",
    }
    figures = named(everything())
    assert {name: figures[name] for name in expected} == expected


def test_figures_that_must_not_be_used_are_not_there() -> None:
    """A measurement without energy has no tokens per joule, and an invalid reading of the host no watts."""
    broken = make_reading(scope=Scope.CPU_PACKAGE, reasons=("counter_reset",))
    figures = named(make_measurement(tok_per_j=None, host=broken, quality=None))
    missing = ("tok_per_j", "tok_per_j_low", "host_w", "perplexity_ratio", "kl")
    assert [figures[name] for name in missing] == [None] * 5


def test_they_are_small() -> None:
    """With six digits a measurement's figures have less than a kilobyte."""
    assert len(json.dumps(stored_figures(everything()))) < 1000
    assert [rounded(1.234567e-7), rounded(123456.7), rounded(0.0)] == [1.23457e-07, 123457.0, 0.0]


def test_only_what_may_be_compared_has_the_same_origin() -> None:
    """Another window of the same device and engine has the same origin; another scope, driver or version has not."""
    same = make_measurement(window_s=60.0, reading=make_reading(method=Method.INTEGRATED))
    others = [
        make_measurement(reading=make_reading(scope=Scope.MODULE)),
        make_measurement(reading=make_reading(method=Method.SIMULATED)),
        make_measurement(driver="580.66"),
        make_measurement(engine=make_engine_info(version="0.2.0")),
    ]
    origin = named(make_measurement())["origin"]
    assert origin == named(same)["origin"]
    assert origin not in [named(other)["origin"] for other in others]


def test_measurements_of_before_get_theirs_by_migration(empty_database: Database, clock: Clock) -> None:
    """Down to where there were none and up again, each measurement has the figures that a new one would have."""
    migrate.upgrade(empty_database)
    jobs, trials = JobStore(empty_database, clock.now), TrialStore(empty_database, clock.now)
    claim = jobs.claim(jobs.create(make_request()).id, "host:1", 1e9)
    bare = replace(make_measurement(), quality=None, tok_per_j=None, mean_power_w=None)
    for number, measurement in enumerate((everything(), bare, make_measurement())):
        trial = make_trial(number=number, point=make_point(number + 1), measurement=measurement)
        assert trials.finish(trials.start(claim, number, trial.point), trial)

    def figures() -> list[object]:
        with empty_database.read() as session:
            return list(session.scalars(select(MeasurementRow.figures).order_by(MeasurementRow.trial_id)))

    before = figures()
    assert [stored_figures(one) for one in (everything(), bare, make_measurement())] == before
    migrate.downgrade(empty_database, "0006")
    migrate.upgrade(empty_database)
    assert before == figures()


@pytest.mark.parametrize(
    "record", [None, {}, [1], {**measurement_to_json(make_measurement()), "tok_per_j": {"value": "many"}}]
)
def test_a_damaged_record_keeps_nobody_from_migrating(empty_database: Database, clock: Clock, record: object) -> None:
    """A measurement whose record is none has no figures after the migration, which goes on."""
    migrate.upgrade(empty_database)
    jobs, trials = JobStore(empty_database, clock.now), TrialStore(empty_database, clock.now)
    claim = jobs.claim(jobs.create(make_request()).id, "host:1", 1e9)
    trial = make_trial()
    assert trials.finish(trials.start(claim, 0, trial.point), trial)
    migrate.downgrade(empty_database, "0006")
    with empty_database.transaction() as session:
        session.execute(text("UPDATE measurements SET record = :record"), {"record": json.dumps(record)})
    migrate.upgrade(empty_database)
    with empty_database.read() as session:
        assert session.execute(text("SELECT figures FROM measurements")).scalars().all() == [None]
    found = TrialFigureStore(empty_database).of_job(claim.job_id)
    assert list(found.figures["tok_per_j"]) == [None]
