"""Devices, jobs, trials, measurements, fronts.

Revision: 0001, the first. Types are spelled out: a migration must not change when `db.tables` does.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    _create_devices()
    _create_jobs()
    _create_trials()
    _create_measurements()
    _create_fronts()
    _create_front_points()


def downgrade() -> None:
    for table in ("front_points", "fronts", "measurements", "trials", "jobs", "devices"):
        op.drop_table(table)


def _create_devices() -> None:
    op.create_table(
        "devices",
        sa.Column("uuid", sa.String(200), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("driver", sa.Text(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("capabilities", sa.JSON(), nullable=False),
        sa.Column("first_seen", INSTANT, nullable=False),
        sa.Column("last_seen", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("uuid", name=op.f("pk_devices")),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("idempotency_key", sa.String(200)),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("started_at", INSTANT),
        sa.Column("finished_at", INSTANT),
        sa.Column("ended_because", sa.String(100)),
        sa.Column("message", sa.Text()),
        sa.Column("device_uuid", sa.String(200)),
        sa.Column("owner", sa.Text()),
        sa.Column("token", sa.String(32)),
        sa.Column("lease_expires_at", INSTANT),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("resume_count", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_jobs")),
        sa.UniqueConstraint("id", name=op.f("uq_jobs_id")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_jobs_idempotency_key")),
        sa.ForeignKeyConstraint(["device_uuid"], ["devices.uuid"], name=op.f("fk_jobs_device_uuid_devices")),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'finished', 'failed', 'cancelled')", name=op.f("ck_jobs_state")
        ),
    )
    op.create_index(op.f("ix_jobs_state_seq"), "jobs", ["state", "seq"])
    op.create_index(op.f("ix_jobs_device_uuid"), "jobs", ["device_uuid"])


def _create_trials() -> None:
    op.create_table(
        "trials",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("point", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("detail", sa.Text()),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("finished_at", INSTANT),
        sa.Column("token", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trials")),
        sa.UniqueConstraint("job_id", "number", "attempt", name=op.f("uq_trials_job_id_number_attempt")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_trials_job_id_jobs"), ondelete="CASCADE"),
        sa.CheckConstraint(
            "state IN ('running', 'complete', 'infeasible', 'invalid', 'failed', 'interrupted')",
            name=op.f("ck_trials_state"),
        ),
    )
    op.create_index(op.f("ix_trials_job_id_state"), "trials", ["job_id", "state"])


def _create_measurements() -> None:
    op.create_table(
        "measurements",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("window_s", sa.Double(), nullable=False),
        sa.Column("output_tok_s", sa.Double(), nullable=False),
        sa.Column("tok_per_j", sa.Double()),
        sa.Column("mean_power_w", sa.Double()),
        sa.Column("energy_j", sa.Double()),
        sa.Column("scope", sa.String(30), nullable=False),
        sa.Column("method", sa.String(30), nullable=False),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("trial_id", name=op.f("pk_measurements")),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name=op.f("fk_measurements_trial_id_trials"), ondelete="CASCADE"
        ),
    )
    op.create_index(op.f("ix_measurements_tok_per_j"), "measurements", ["tok_per_j"])


def _create_fronts() -> None:
    op.create_table(
        "fronts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("latency_metric", sa.String(50), nullable=False),
        sa.Column("hypervolume", sa.Double(), nullable=False),
        sa.Column("latency_reference_ms", sa.Double()),
        sa.Column("num_points", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fronts")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_fronts_job_id_jobs"), ondelete="CASCADE"),
    )
    op.create_index(op.f("ix_fronts_job_id"), "fronts", ["job_id"])


def _create_front_points() -> None:
    op.create_table(
        "front_points",
        sa.Column("front_id", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("front_id", "rank", name=op.f("pk_front_points")),
        sa.UniqueConstraint("front_id", "trial_id", name=op.f("uq_front_points_front_id_trial_id")),
        sa.ForeignKeyConstraint(
            ["front_id"], ["fronts.id"], name=op.f("fk_front_points_front_id_fronts"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name=op.f("fk_front_points_trial_id_trials"), ondelete="CASCADE"
        ),
    )
    op.create_index(op.f("ix_front_points_trial_id"), "front_points", ["trial_id"])
