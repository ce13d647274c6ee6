"""What the service keeps around jobs: keys, audit, schedules and their nights, workloads, events, workers, results.

Revision: 0005, after 0004. Jobs get their model, engine and device as columns, from their requests. Of jobs that
ended before, no results are written here: that needs more than SQL, and the service does it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(20), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.Column("last_used_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint("scope IN ('read', 'tune', 'admin')", name=op.f("ck_api_keys_scope")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("name", name=op.f("uq_api_keys_name")),
        sa.UniqueConstraint("prefix", name=op.f("uq_api_keys_prefix")),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.String(50), nullable=False),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    with op.batch_alter_table("audit") as batch:
        batch.create_index(op.f("ix_audit_at"), ["at"])
        batch.create_index(op.f("ix_audit_subject"), ["subject"])

    op.create_table(
        "deliveries",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("target", sa.String(100), nullable=False),
        sa.Column("event_key", sa.String(200), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("num_attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("delivered_at", sa.DateTime(timezone=True)),
        sa.Column("last_error", sa.Text()),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'failed')", name=op.f("ck_deliveries_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
        sa.UniqueConstraint("target", "event_key", name=op.f("uq_deliveries_target_event_key")),
    )
    with op.batch_alter_table("deliveries") as batch:
        batch.create_index(op.f("ix_deliveries_state_next_attempt_at"), ["state", "next_attempt_at"])

    op.create_table(
        "schedules",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("idempotency_key", sa.String(200)),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("cron", sa.String(100)),
        sa.Column("window_start", sa.String(5)),
        sa.Column("window_end", sa.String(5)),
        sa.Column("timezone", sa.String(64), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("overlap", sa.String(20), nullable=False),
        sa.Column("grace_s", sa.Double()),
        sa.Column("keep_nights", sa.Integer()),
        sa.Column("notify", sa.JSON(), nullable=False),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_by", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("decided_until", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("overlap IN ('skip', 'queue', 'replace')", name=op.f("ck_schedules_overlap")),
        sa.CheckConstraint("state IN ('active', 'paused')", name=op.f("ck_schedules_state")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_schedules")),
        sa.UniqueConstraint("id", name=op.f("uq_schedules_id")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_schedules_idempotency_key")),
        sa.UniqueConstraint("name", name=op.f("uq_schedules_name")),
    )
    op.create_table(
        "workers",
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("version", sa.String(50), nullable=False),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.Column("engines", sa.JSON(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), nullable=False),
        sa.Column("job_id", sa.String(32)),
        sa.PrimaryKeyConstraint("owner", name=op.f("pk_workers")),
    )
    op.create_table(
        "workloads",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("form", sa.String(30), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("num_rows", sa.Integer(), nullable=False),
        sa.Column("num_bytes", sa.Integer(), nullable=False),
        sa.Column("summary", sa.JSON(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("created_by", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workloads")),
        sa.UniqueConstraint("name", name=op.f("uq_workloads_name")),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_events_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    with op.batch_alter_table("events") as batch:
        batch.create_index(op.f("ix_events_at"), ["at"])
        batch.create_index(op.f("ix_events_job_id_id"), ["job_id", "id"])

    op.create_table(
        "nights",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("schedule_id", sa.String(32), nullable=False),
        sa.Column("night", sa.String(40), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("job_id", sa.String(32)),
        sa.Column("drift", sa.JSON()),
        sa.CheckConstraint("state IN ('started', 'skipped', 'missed')", name=op.f("ck_nights_state")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_nights_job_id_jobs"), ondelete="SET NULL"),
        sa.ForeignKeyConstraint(
            ["schedule_id"], ["schedules.id"], name=op.f("fk_nights_schedule_id_schedules"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nights")),
        sa.UniqueConstraint("schedule_id", "night", name=op.f("uq_nights_schedule_id_night")),
    )
    with op.batch_alter_table("nights") as batch:
        batch.create_index(op.f("ix_nights_job_id"), ["job_id"])
        batch.create_index(op.f("ix_nights_schedule_id_due_at"), ["schedule_id", "due_at"])

    op.create_table(
        "results",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(300), nullable=False),
        sa.Column("engine", sa.String(50), nullable=False),
        sa.Column("device", sa.String(300), nullable=False),
        sa.Column("device_uuid", sa.String(200)),
        sa.Column("workload", sa.String(64), nullable=False),
        sa.Column("is_current", sa.Boolean(), nullable=False),
        sa.Column("is_front", sa.Boolean(), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("is_simulated", sa.Boolean(), nullable=False),
        sa.Column("is_estimate", sa.Boolean(), nullable=False),
        sa.Column("point", sa.JSON(), nullable=False),
        sa.Column("tok_per_j", sa.Double(), nullable=False),
        sa.Column("output_tok_s", sa.Double(), nullable=False),
        sa.Column("mean_power_w", sa.Double(), nullable=False),
        sa.Column("latencies", sa.JSON(), nullable=False),
        sa.Column("quality", sa.Double()),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_results_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_results")),
        sa.UniqueConstraint("job_id", "number", name=op.f("uq_results_job_id_number")),
    )
    with op.batch_alter_table("results") as batch:
        batch.create_index("ix_results_asked", ["model", "device", "is_current", "tok_per_j"])
        batch.create_index("ix_results_on", ["model", "device_uuid", "is_current", "tok_per_j"])

    with op.batch_alter_table("fronts") as batch:
        batch.add_column(sa.Column("document", sa.JSON()))
        batch.add_column(sa.Column("document_version", sa.Integer()))

    with op.batch_alter_table("jobs") as batch:
        batch.add_column(sa.Column("model", sa.String(300)))
        batch.add_column(sa.Column("engine", sa.String(50)))
        batch.add_column(sa.Column("device", sa.String(300)))
        batch.add_column(sa.Column("priority", sa.Integer(), server_default="0", nullable=False))
        batch.add_column(sa.Column("num_lost", sa.Integer(), server_default="0", nullable=False))
        batch.add_column(sa.Column("submitted_by", sa.Text()))
        batch.drop_index(op.f("ix_jobs_state_seq"))
        batch.create_index(op.f("ix_jobs_model_device_seq"), ["model", "device", "seq"])
        batch.create_index(op.f("ix_jobs_state_priority_seq"), ["state", "priority", "seq"])
    with op.batch_alter_table("trials") as batch:
        batch.drop_index(op.f("ix_trials_job_id_state"))
        batch.create_index(op.f("ix_trials_job_id_state_finished_at"), ["job_id", "state", "finished_at"])
    _fill_jobs()
    with op.batch_alter_table("jobs") as batch:
        batch.alter_column("model", existing_type=sa.String(300), nullable=False)
        batch.alter_column("engine", existing_type=sa.String(50), nullable=False)
        batch.alter_column("device", existing_type=sa.String(300), nullable=False)


def _fill_jobs() -> None:
    """Copy what each request names into the new columns, cut to their length."""
    jobs = sa.table(
        "jobs",
        sa.column("seq", sa.Integer()),
        sa.column("request", sa.JSON()),
        sa.column("model", sa.String()),
        sa.column("engine", sa.String()),
        sa.column("device", sa.String()),
    )
    connection = op.get_bind()
    for seq, request in connection.execute(sa.select(jobs.c.seq, jobs.c.request)).all():
        named = {
            name: str(request[name])[:length] for name, length in (("model", 300), ("engine", 50), ("device", 300))
        }
        connection.execute(jobs.update().where(jobs.c.seq == seq).values(named))


def downgrade() -> None:
    with op.batch_alter_table("trials") as batch:
        batch.drop_index(op.f("ix_trials_job_id_state_finished_at"))
        batch.create_index(op.f("ix_trials_job_id_state"), ["job_id", "state"])
    with op.batch_alter_table("jobs") as batch:
        batch.drop_index(op.f("ix_jobs_state_priority_seq"))
        batch.drop_index(op.f("ix_jobs_model_device_seq"))
        batch.create_index(op.f("ix_jobs_state_seq"), ["state", "seq"])
        batch.drop_column("submitted_by")
        batch.drop_column("num_lost")
        batch.drop_column("priority")
        batch.drop_column("device")
        batch.drop_column("engine")
        batch.drop_column("model")

    with op.batch_alter_table("fronts") as batch:
        batch.drop_column("document_version")
        batch.drop_column("document")

    with op.batch_alter_table("results") as batch:
        batch.drop_index("ix_results_on")
        batch.drop_index("ix_results_asked")

    op.drop_table("results")
    with op.batch_alter_table("nights") as batch:
        batch.drop_index(op.f("ix_nights_schedule_id_due_at"))
        batch.drop_index(op.f("ix_nights_job_id"))

    op.drop_table("nights")
    with op.batch_alter_table("events") as batch:
        batch.drop_index(op.f("ix_events_job_id_id"))
        batch.drop_index(op.f("ix_events_at"))

    op.drop_table("events")
    op.drop_table("workloads")
    op.drop_table("workers")
    op.drop_table("schedules")
    with op.batch_alter_table("deliveries") as batch:
        batch.drop_index(op.f("ix_deliveries_state_next_attempt_at"))

    op.drop_table("deliveries")
    with op.batch_alter_table("audit") as batch:
        batch.drop_index(op.f("ix_audit_subject"))
        batch.drop_index(op.f("ix_audit_at"))

    op.drop_table("audit")
    op.drop_table("api_keys")
