"""The figures that tables and charts show, beside each measurement's record: a tenth of the bytes to read, or less.

Revision: 0007, after 0006. Measurements of before get theirs from their records, a few hundred at a time, in about
a millisecond each. One whose record is damaged gets none: it must not keep a whole database from this version.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_MEASUREMENTS = sa.table(
    "measurements",
    sa.column("trial_id", sa.Integer()),
    sa.column("record", sa.JSON()),
    sa.column("figures", sa.JSON(none_as_null=True)),
)
_ROWS_AT_ONCE = 500
_STATISTICS = ("mean", "p50", "p90", "p95", "p99")


def upgrade() -> None:
    op.add_column("measurements", sa.Column("figures", sa.JSON()))
    connection = op.get_bind()
    trial_id, record = _MEASUREMENTS.c.trial_id, _MEASUREMENTS.c.record
    filled = (
        _MEASUREMENTS.update()
        .where(trial_id == sa.bindparam("of_trial"))
        .values(figures=sa.bindparam("found", type_=sa.JSON(none_as_null=True)))
    )
    after = -1
    while True:
        some = sa.select(trial_id, record).where(trial_id > after).order_by(trial_id).limit(_ROWS_AT_ONCE)
        rows = connection.execute(some).all()
        if not rows:
            return
        connection.execute(filled, [{"of_trial": row.trial_id, "found": _figures_of(row.record)} for row in rows])
        after = rows[-1].trial_id


def downgrade() -> None:
    op.drop_column("measurements", "figures")


def _figures_of(record: Any) -> list[Any] | None:
    try:
        return _figures(record)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):  # whatever is in the place of a record
        return None


def _figures(record: dict[str, Any]) -> list[Any]:
    reading, host, quality = record["reading"], record.get("host"), record.get("quality") or {}
    estimates = [record["tok_per_j"], record["output_tok_s"]]
    estimates += [record[latency].get(one) for latency in ("ttft", "tpot", "itl", "e2e") for one in _STATISTICS]
    clocks_mhz = [
        one["mean_clock_mhz"] for one in reading.get("conditions", ()) if one.get("mean_clock_mhz") is not None
    ]
    return [
        *(_rounded((estimate or {}).get(bound)) for estimate in estimates for bound in ("value", "low", "high")),
        _rounded(sum(clocks_mhz) / len(clocks_mhz)) if clocks_mhz else None,
        record["num_finished"],
        None if host is None or host.get("reasons") else _mean_power_w(host),
        _rounded(quality.get("perplexity_ratio")),
        _rounded(quality.get("kl")),
        record.get("cut_by"),
        _origin(record),
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _mean_power_w(reading: dict[str, Any]) -> float | None:
    duration_s = reading["end_s"] - reading["start_s"]
    return None if reading["energy_j"] is None or duration_s <= 0 else _rounded(reading["energy_j"] / duration_s)


def _origin(record: dict[str, Any]) -> str:
    reading, engine = record["reading"], record["engine"]
    is_estimate = reading["method"] in ("estimate", "simulated")
    served_by = [engine["engine"], engine["version"], engine["model_hash"]]
    family = [reading["scope"], is_estimate, reading["device_uuids"], record.get("driver"), *served_by]
    return hashlib.sha256(json.dumps(family).encode()).hexdigest()[:8]
