"""What a trial was for, what it cost, where its figures come from; which values a job searches, and after which job.

Revision: 0003, after 0002. Trials of before were screened once, their cost was not kept, and under which conditions
they were measured was not either: nothing takes their figures over.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("trials") as batch:
        batch.add_column(sa.Column("role", sa.String(20), nullable=False, server_default="screening"))
        batch.add_column(sa.Column("session", sa.Text()))
        batch.add_column(sa.Column("device_s", sa.Double()))
        batch.add_column(sa.Column("device_j", sa.Double()))
        batch.add_column(sa.Column("reused_from", sa.String(60)))
        batch.create_check_constraint(op.f("ck_trials_role"), "role IN ('screening', 'finalist', 'baseline')")
    with op.batch_alter_table("measurements") as batch:
        batch.add_column(sa.Column("fingerprint", sa.String(64)))
        batch.add_column(sa.Column("settings", sa.String(64)))
        batch.create_index(op.f("ix_measurements_fingerprint_settings"), ["fingerprint", "settings"])
    with op.batch_alter_table("jobs") as batch:
        batch.add_column(sa.Column("previous_job_id", sa.String(32)))
        batch.add_column(sa.Column("space", sa.JSON()))
        batch.create_foreign_key(
            op.f("fk_jobs_previous_job_id_jobs"), "jobs", ["previous_job_id"], ["id"], ondelete="SET NULL"
        )
        batch.create_index(op.f("ix_jobs_previous_job_id"), ["previous_job_id"])


def downgrade() -> None:
    with op.batch_alter_table("jobs") as batch:
        batch.drop_index(op.f("ix_jobs_previous_job_id"))
        batch.drop_constraint(op.f("fk_jobs_previous_job_id_jobs"), type_="foreignkey")
        batch.drop_column("space")
        batch.drop_column("previous_job_id")
    with op.batch_alter_table("measurements") as batch:
        batch.drop_index(op.f("ix_measurements_fingerprint_settings"))
        batch.drop_column("settings")
        batch.drop_column("fingerprint")
    with op.batch_alter_table("trials") as batch:
        batch.drop_constraint(op.f("ck_trials_role"), type_="check")
        for column in ("reused_from", "device_j", "device_s", "session", "role"):
            batch.drop_column(column)
