"""Row <-> record, both ways, nowhere else.

A record's JSON is its fields by name under `"schema": 1`; the codec says how each type is written. Raise SCHEMA when
a change is more than a new field with a default, and read the old form here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from db.codec import JsonValue, decode, encode, encode_fields
from db.device import ControlState, SeenDevice
from db.errors import RecordUnreadable
from db.figures import stored_figures
from db.job import Claim, Job, JobState
from db.tables import DeviceRow, FrontRow, JobRow, MeasurementRow, TrialRow
from probes.device import Capability, DeviceInfo, DeviceKind
from tuner.errors import InvalidRequest
from tuner.fingerprint import ReuseKey
from tuner.measurement import Measurement
from tuner.pareto import Front
from tuner.point import OperatingPoint
from tuner.request import KnobRange, TuneRequest
from tuner.trial import Trial, TrialRole, TrialState

SCHEMA = 1

JsonObject = dict[str, JsonValue]
Record = TypeVar("Record")


def request_to_json(request: TuneRequest) -> JsonObject:
    """Return a request as versioned JSON. Raises RecordNotStorable."""
    return _to_json(request, "request")


def request_from_json(stored: Mapping[str, object]) -> TuneRequest:
    """Return the request that `request_to_json` wrote. Raises RecordUnreadable."""
    try:
        return _from_json(TuneRequest, stored, "request")
    except InvalidRequest as error:
        raise RecordUnreadable(f"request: {error}") from error


def point_to_json(point: OperatingPoint) -> JsonObject:
    """Return a point as versioned JSON. Raises RecordNotStorable."""
    return _to_json(point, "point")


def point_from_json(stored: Mapping[str, object]) -> OperatingPoint:
    """Return the point that `point_to_json` wrote. Raises RecordUnreadable."""
    return _from_json(OperatingPoint, stored, "point")


def measurement_to_json(measurement: Measurement) -> JsonObject:
    """Return a measurement, trace included, as versioned JSON. Raises RecordNotStorable."""
    return _to_json(measurement, "measurement")


def measurement_from_json(stored: Mapping[str, object]) -> Measurement:
    """Return the measurement that `measurement_to_json` wrote. Raises RecordUnreadable."""
    return _from_json(Measurement, stored, "measurement")


def trial_to_json(trial: Trial) -> JsonObject:
    """Return a trial with its measurement as versioned JSON. Raises RecordNotStorable."""
    return _to_json(trial, "trial")


def trial_from_json(stored: Mapping[str, object]) -> Trial:
    """Return the trial that `trial_to_json` wrote. Raises RecordUnreadable."""
    return _from_json(Trial, stored, "trial")


def front_to_json(front: Front) -> JsonObject:
    """Return a front with its trials as versioned JSON. Raises RecordNotStorable."""
    return _to_json(front, "front")


def front_from_json(stored: Mapping[str, object]) -> Front:
    """Return the front that `front_to_json` wrote. Raises RecordUnreadable."""
    return _from_json(Front, stored, "front")


def space_to_json(space: Sequence[KnobRange]) -> list[JsonValue]:
    """Return the knobs that are searched, with their values, as JSON. Raises RecordNotStorable."""
    return [encode_fields(knob, f"space[{i}]") for i, knob in enumerate(space)]


def space_from_json(stored: Sequence[object]) -> tuple[KnobRange, ...]:
    """Return the knobs that `space_to_json` wrote. Raises RecordUnreadable."""
    return tuple(decode(KnobRange, knob, f"space[{i}]") for i, knob in enumerate(stored))


def trial_of(row: TrialRow) -> Trial:
    """Return a row as a trial; its measurement must have been loaded with it."""
    return Trial(
        number=row.number,
        attempt=row.attempt,
        point=point_from_json(row.point),
        state=TrialState(row.state),
        reason=row.reason,
        detail=row.detail,
        measurement=None if row.measurement is None else measurement_from_json(row.measurement.record),
        started_at=row.started_at,
        finished_at=row.finished_at,
        role=TrialRole(row.role),
        session=row.session,
        device_s=row.device_s,
        device_j=row.device_j,
        reused_from=row.reused_from,
    )


def trial_columns(trial: Trial) -> dict[str, object]:
    """Return the columns that a trial's end fills in; its number, attempt, point and role stay as they were.

    Raises RecordNotStorable.
    """
    return {
        "state": trial.state.value,
        "reason": trial.reason,
        "detail": trial.detail,
        "started_at": trial.started_at,
        "finished_at": trial.finished_at,
        "session": trial.session,
        "device_s": encode(trial.device_s, "trial.device_s"),
        "device_j": encode(trial.device_j, "trial.device_j"),
        "reused_from": trial.reused_from,
    }


def measurement_row(trial_id: int, measurement: Measurement, key: ReuseKey | None = None) -> MeasurementRow:
    """Return a measurement as a row. Energy that must not be used stays out of the columns, not out of the record."""
    reading = measurement.reading
    return MeasurementRow(
        trial_id=trial_id,
        window_s=measurement.window_s,
        output_tok_s=measurement.output_tok_s.value,
        tok_per_j=None if measurement.tok_per_j is None else measurement.tok_per_j.value,
        mean_power_w=measurement.mean_power_w,
        energy_j=reading.energy_j if reading.is_valid else None,
        scope=reading.scope.value,
        method=reading.method.value,
        record=measurement_to_json(measurement),
        figures=stored_figures(measurement),
        fingerprint=None if key is None else key.fingerprint,
        settings=None if key is None else key.settings,
    )


def front_of_row(row: FrontRow, trials: Sequence[Trial]) -> Front:
    """Return a row and its trials, fastest first, as a front."""
    return Front(
        latency_metric=row.latency_metric,
        trials=tuple(trials),
        hypervolume=row.hypervolume,
        latency_reference_ms=row.latency_reference_ms,
        created_at=row.created_at,
    )


def front_row(job_id: str, front: Front) -> FrontRow:
    """Return a front as a row, without its points. Raises RecordNotStorable."""
    encode(front.hypervolume, "front.hypervolume")
    encode(front.latency_reference_ms, "front.latency_reference_ms")
    return FrontRow(
        job_id=job_id,
        created_at=front.created_at,
        latency_metric=front.latency_metric,
        hypervolume=front.hypervolume,
        latency_reference_ms=front.latency_reference_ms,
        num_points=len(front.trials),
    )


def job_of(row: JobRow, *, num_trials: Mapping[TrialState, int], front_size: int) -> Job:
    """Return a row, and what was counted beside it, as a job."""
    return Job(
        id=row.id,
        name=row.name,
        request=request_from_json(row.request),
        state=JobState(row.state),
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        ended_because=row.ended_because,
        message=row.message,
        device_uuid=row.device_uuid,
        owner=row.owner,
        lease_expires_at=row.lease_expires_at,
        cancel_requested=row.cancel_requested,
        num_trials=num_trials,
        front_size=front_size,
        resume_count=row.resume_count,
        previous_job_id=row.previous_job_id,
        space=None if row.space is None else space_from_json(row.space),
        priority=row.priority,
        num_lost=row.num_lost,
        submitted_by=row.submitted_by,
    )


def claim_of(row: JobRow) -> Claim:
    """Return the claim that holds a job."""
    if row.owner is None or row.token is None or row.lease_expires_at is None:
        raise RecordUnreadable(f"job {row.id} is {row.state} without owner, token or lease")
    return Claim(
        job_id=row.id,
        owner=row.owner,
        token=row.token,
        lease_expires_at=row.lease_expires_at,
        cancel_requested=row.cancel_requested,
    )


def device_columns(info: DeviceInfo, capabilities: Sequence[Capability]) -> dict[str, object]:
    """Return what a device says of itself as columns."""
    return {
        "name": info.name,
        "kind": info.kind.value,
        "driver": info.driver,
        "details": encode(info.details, "details"),
        "capabilities": encode(tuple(capabilities), "capabilities"),
    }


def seen_device_of(row: DeviceRow) -> SeenDevice:
    """Return a row as what is known of a device."""
    return SeenDevice(
        info=_device_info_of(row),
        capabilities=tuple(
            decode(Capability, stored, f"capabilities[{i}]") for i, stored in enumerate(row.capabilities)
        ),
        first_seen=row.first_seen,
        last_seen=row.last_seen,
        control_state=ControlState(row.control_state),
        control_detail=row.control_detail,
    )


def _device_info_of(row: DeviceRow) -> DeviceInfo:
    return DeviceInfo(
        uuid=row.uuid,
        name=row.name,
        kind=DeviceKind(row.kind),
        driver=row.driver,
        details=tuple((name, value) for name, value in row.details),
    )


def _to_json(record: object, path: str) -> JsonObject:
    return {"schema": SCHEMA, **encode_fields(record, path)}


def _from_json(kind: type[Record], stored: Mapping[str, object], path: str) -> Record:
    schema = stored.get("schema")
    if schema is None:
        raise RecordUnreadable(f"{path}.schema is missing")
    if schema != SCHEMA:
        raise RecordUnreadable(f"{path}.schema is {schema!r}, this program reads {SCHEMA}; use the one that wrote it")
    return decode(kind, stored, path)
