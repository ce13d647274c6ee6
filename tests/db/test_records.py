"""Records to JSON and back."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given

from db import records
from db.errors import RecordNotStorable, RecordUnreadable
from probes.device import Scope
from tests.db import strategies
from tests.db.factories import (
    REPOSITORY,
    make_conditions,
    make_measurement,
    make_point,
    make_reading,
    make_request,
    make_trial,
)
from tuner.measurement import Estimate, Measurement
from tuner.pareto import Front
from tuner.point import OperatingPoint
from tuner.request import TuneRequest
from tuner.trial import Trial


def through_json(stored: dict[str, Any]) -> dict[str, Any]:
    """What a JSON column gives back."""
    loaded: dict[str, Any] = json.loads(json.dumps(stored, allow_nan=False))
    return loaded


@given(strategies.requests)
def test_requests_round_trip(request: TuneRequest) -> None:
    """Every valid request comes back equal, its values with their types."""
    back = records.request_from_json(through_json(records.request_to_json(request)))
    assert request == back
    assert types_of(request) == types_of(back)


@given(strategies.points)
def test_points_round_trip(point: OperatingPoint) -> None:
    """A point comes back with its knobs in order, integers as integers and floats as floats."""
    back = records.point_from_json(through_json(records.point_to_json(point)))
    assert point == back
    assert types_of(point) == types_of(back)


@given(strategies.measurements)
def test_measurements_round_trip(measurement: Measurement) -> None:
    """Every figure of a measurement comes back bit for bit, trace and intervals included."""
    assert measurement == records.measurement_from_json(through_json(records.measurement_to_json(measurement)))


def test_conditions_and_the_hosts_energy_round_trip() -> None:
    """What the device was like, and the host CPU's own reading beside it, come back with the measurement."""
    host = make_reading(scope=Scope.CPU_PACKAGE, device_uuids=("CPU-1",))
    reading = make_reading(conditions=(make_conditions(), make_conditions(device_uuid="GPU-2", event_shares=())))
    measurement = make_measurement(reading=reading, host=host)
    assert measurement == records.measurement_from_json(through_json(records.measurement_to_json(measurement)))


@given(strategies.trials)
def test_trials_round_trip(trial: Trial) -> None:
    """A trial comes back equal, its times as the same instants."""
    assert trial == records.trial_from_json(through_json(records.trial_to_json(trial)))


@given(strategies.fronts)
def test_fronts_round_trip(front: Front) -> None:
    """A front comes back equal with its trials."""
    assert front == records.front_from_json(through_json(records.front_to_json(front)))


@pytest.mark.parametrize("knobs", [{"rate": 1}, {"rate": 1.0}, {"rate": "1"}])
def test_a_knob_keeps_its_type(knobs: dict[str, int | float | str]) -> None:
    """1, 1.0 and "1" are three values of a knob, before and after storing."""
    back = records.point_from_json(through_json(records.point_to_json(OperatingPoint.of(knobs))))
    assert repr(knobs["rate"]) == repr(back["rate"])


def test_fields_of_a_later_version_are_ignored() -> None:
    """A field that this version does not know is passed over, nested ones too."""
    stored = records.measurement_to_json(make_measurement())
    reading = {**stored["reading"], "altitude_m": 3} if isinstance(stored["reading"], dict) else None
    assert make_measurement() == records.measurement_from_json({**stored, "reading": reading, "colour": "red"})


def test_fields_of_an_earlier_version_take_their_defaults() -> None:
    """A field that an earlier version did not have takes its default when it has one."""
    stored = records.request_to_json(make_request(seed=0))
    assert make_request(seed=0) == records.request_from_json({k: v for k, v in stored.items() if k != "seed"})


def test_a_missing_field_is_named() -> None:
    """A required field that is missing is named with its path."""
    stored = through_json(records.trial_to_json(make_trial()))
    del stored["measurement"]["reading"]["scope"]
    with pytest.raises(RecordUnreadable, match=r"trial\.measurement\.reading\.scope is missing"):
        records.trial_from_json(stored)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("window_s", "long", r"measurement\.window_s is 'long'; expected float"),
        ("output_tokens", 1.5, r"measurement\.output_tokens is '1.5'; expected int"),
        ("reasons", "none", r"measurement\.reasons is 'none'; expected a list"),
        ("reasons", [3], r"measurement\.reasons\[0\] is '3'; expected str"),
        ("tok_per_j", 2.0, r"measurement\.tok_per_j is '2.0'; expected an object"),
        ("schema", 2, r"measurement\.schema is 2, this program reads 1"),
    ],
)
def test_a_value_of_another_type_is_named(field: str, value: object, message: str) -> None:
    """A value that cannot be read is shown with its path and what was expected."""
    with pytest.raises(RecordUnreadable, match=message):
        records.measurement_from_json({**records.measurement_to_json(make_measurement()), field: value})


def test_other_unreadable_shapes_are_named() -> None:
    """Unions, enums, times, fixed tuples and the schema number each say what they expected."""
    point, trial = records.point_to_json(make_point()), records.trial_to_json(make_trial())
    with pytest.raises(RecordUnreadable, match=r"point\.knobs\[0\]\[1\] is 'None'; expected int or float or str"):
        records.point_from_json({**point, "knobs": [["a", None]]})
    with pytest.raises(RecordUnreadable, match=r"point\.knobs\[0\] .* expected a list of 2"):
        records.point_from_json({**point, "knobs": [["a"]]})
    with pytest.raises(RecordUnreadable, match=r"trial\.state is 'asleep'; expected one of running, complete"):
        records.trial_from_json({**trial, "state": "asleep"})
    with pytest.raises(RecordUnreadable, match=r"trial\.started_at .* with its UTC offset"):
        records.trial_from_json({**trial, "started_at": "2026-01-01T00:00:00"})
    with pytest.raises(RecordUnreadable, match=r"trial\.started_at is 'soon'; expected an ISO 8601 time"):
        records.trial_from_json({**trial, "started_at": "soon"})
    with pytest.raises(RecordUnreadable, match=r"point\.schema is missing"):
        records.point_from_json({"knobs": []})


def test_a_stored_request_that_is_no_longer_valid_is_unreadable() -> None:
    """A stored request that the tuner refuses today is a store error that names the field."""
    stored = {**records.request_to_json(make_request()), "latency_metric": "speed"}
    with pytest.raises(RecordUnreadable, match="latency_metric is 'speed'"):
        records.request_from_json(stored)


@pytest.mark.parametrize("figure", [math.nan, math.inf, -math.inf])
def test_figures_that_are_not_finite_are_refused(figure: float) -> None:
    """NaN and infinity are refused by name before they reach a column."""
    with pytest.raises(RecordNotStorable, match=r"measurement\.tok_per_j\.high is"):
        records.measurement_to_json(make_measurement(tok_per_j=Estimate(1.0, 0.9, figure)))
    with pytest.raises(RecordNotStorable, match=r"measurement\.reading\.energy_j is"):
        records.measurement_to_json(make_measurement(reading=make_reading(energy_j=figure)))


def test_naive_times_and_strange_types_are_refused() -> None:
    """A time without a zone, and a value that is not plain data, are refused by name."""
    with pytest.raises(RecordNotStorable, match=r"trial\.started_at .* without a time zone"):
        records.trial_to_json(make_trial(started_at=datetime(2026, 1, 1)))
    with pytest.raises(RecordNotStorable, match=r"trial\.detail is a bytes"):
        records.trial_to_json(make_trial(detail=b"log"))


def test_unusable_energy_stays_out_of_the_columns() -> None:
    """An energy with a reason against it is kept in the record but not where people filter."""
    reading = make_reading(reasons=("counter_reset",))
    row = records.measurement_row(1, make_measurement(tok_per_j=None, mean_power_w=None, reading=reading))
    assert (row.tok_per_j, row.mean_power_w, row.energy_j) == (None, None, None)
    assert reading == records.measurement_from_json(row.record).reading


@pytest.mark.parametrize(
    ("make", "to_json"),
    [(make_request, records.request_to_json), (make_trial, records.trial_to_json)],
)
def test_every_record_carries_its_schema_number(
    make: Callable[[], Any], to_json: Callable[[Any], dict[str, Any]]
) -> None:
    """Stored JSON says which form it has."""
    assert to_json(make())["schema"] == 1


def test_the_store_needs_neither_torch_nor_optuna() -> None:
    """Importing every module of db loads neither torch nor optuna, so that the server starts without them."""
    modules = "database, devices, fronts, jobs, migrate, trials"
    code = f"import sys; from db import {modules}; print([m for m in ('torch', 'optuna') if m in sys.modules])"
    child = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert child.stdout == "[]\n"


def types_of(record: Any) -> Any:
    """The types of all values in a record, in order: 1 == 1.0, but they are different knob values."""
    if isinstance(record, tuple):
        return [types_of(item) for item in record]
    if is_dataclass(record):
        return [types_of(getattr(record, field.name)) for field in fields(record)]
    return type(record)
