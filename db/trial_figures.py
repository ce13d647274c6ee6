"""All trials of a job with the figures that tables and charts show: one query, by column, no record decoded.

Rows are taken apart a thousand at a time: objects by the ten thousand would make the garbage collector look at
everything there is. Knows nothing of what is shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Text, cast, select

from db.database import Database
from db.errors import RecordUnreadable
from db.figures import NAMES
from db.tables import MeasurementRow, TrialRow
from tuner.request import KnobValue

_ROWS_AT_ONCE = 1000
#: Of a trial without a measurement.
_NONE = json.dumps([None] * len(NAMES), separators=(",", ":"))
_POINT = cast(TrialRow.point, Text)
_FIGURES = cast(MeasurementRow.figures, Text)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFigures:
    """Every attempt of a job by number and attempt, one sequence a column: there may be thousands."""

    number: Sequence[int]
    attempt: Sequence[int]
    #: The same text for the same knobs.
    point: Sequence[str]
    state: Sequence[str]
    reason: Sequence[str | None]
    detail: Sequence[str | None]
    role: Sequence[str]
    session: Sequence[str | None]
    reused_from: Sequence[str | None]
    finished_at: Sequence[datetime | None]
    device_s: Sequence[float | None]
    #: This and the next two are None without a measurement; power also where the energy must not be used.
    window_s: Sequence[float | None]
    mean_power_w: Sequence[float | None]
    method: Sequence[str | None]
    #: By name; None at a point that does not have it.
    knobs: Mapping[str, Sequence[KnobValue | None]]
    #: By `db.figures.NAMES`.
    figures: Mapping[str, Sequence[Any]]


class TrialFigureStore:
    """The figures of one database."""

    def __init__(self, database: Database, *, loads: Callable[[str], Any] = json.loads) -> None:
        """Read by a decoder of JSON that raises ValueError: most of the time goes there, and some are faster."""
        self._database = database
        self._loads = loads

    def of_job(self, job_id: str) -> TrialFigures:
        """Return every attempt of a job, those that run now included. Raises RecordUnreadable."""
        trial, measurement = TrialRow, MeasurementRow
        asked = {
            "number": trial.number,
            "attempt": trial.attempt,
            "state": trial.state,
            "reason": trial.reason,
            "detail": trial.detail,
            "role": trial.role,
            "session": trial.session,
            "reused_from": trial.reused_from,
            "finished_at": trial.finished_at,
            "device_s": trial.device_s,
            "window_s": measurement.window_s,
            "mean_power_w": measurement.mean_power_w,
            "method": measurement.method,
            "point": _POINT,
        }
        query = (
            select(*asked.values(), _FIGURES)
            .outerjoin(measurement, measurement.trial_id == trial.id)
            .where(trial.job_id == job_id)
            .order_by(trial.number, trial.attempt)
        )
        plain: dict[str, list[Any]] = {name: [] for name in asked}
        knobs: dict[str, list[KnobValue | None]] = {}
        figures: dict[str, list[Any]] = {name: [] for name in NAMES}
        with self._database.read() as session:
            for rows in session.execute(query).partitions(_ROWS_AT_ONCE):
                *columns, texts = zip(*rows, strict=True)
                _extend(plain, columns)
                _extend_knobs(knobs, self._points(columns[-1]), len(plain["number"]))
                _extend(figures, self._figures(texts))
        return TrialFigures(**plain, knobs=knobs, figures=figures)

    def _points(self, texts: Sequence[str]) -> list[dict[str, KnobValue]]:
        try:
            return [dict(point["knobs"]) for point in self._together(texts)]
        except (KeyError, TypeError, ValueError) as error:
            raise RecordUnreadable(f"a trial's point is no point: {error}; restore a backup") from error

    def _figures(self, texts: Sequence[str | None]) -> list[tuple[Any, ...]]:
        try:
            columns = list(zip(*self._together([text or _NONE for text in texts]), strict=True))
        except (TypeError, ValueError) as error:
            raise RecordUnreadable(f"a measurement's figures are no list of {len(NAMES)}: {error}") from error
        if len(columns) != len(NAMES):
            raise RecordUnreadable(f"a measurement's figures are {len(columns)}, not {len(NAMES)}; restore a backup")
        return columns

    def _together(self, texts: Sequence[str]) -> list[Any]:
        """Return several JSON texts decoded: at once, which is faster than one by one."""
        decoded: list[Any] = self._loads(f"[{','.join(texts)}]")
        return decoded


def _extend(columns: Mapping[str, list[Any]], more: Sequence[Sequence[Any]]) -> None:
    for column, values in zip(columns.values(), more, strict=True):
        column.extend(values)


def _extend_knobs(
    knobs: dict[str, list[KnobValue | None]], points: Sequence[Mapping[str, KnobValue]], num_rows: int
) -> None:
    """Add points' knobs; a knob that comes up late had no value before."""
    names = dict.fromkeys(name for point in points for name in point)
    for name in names:
        knobs.setdefault(name, [None] * (num_rows - len(points)))
    for name, column in knobs.items():
        column.extend(point.get(name) for point in points)
