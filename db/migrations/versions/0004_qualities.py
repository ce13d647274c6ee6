"""What precisions cost in quality, measured once and kept for later jobs.

Revision: 0004, after 0003. What trials of before hold of it was told from another text and is not taken over.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "qualities",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("model_hash", sa.String(64), nullable=False),
        sa.Column("engine", sa.String(50), nullable=False),
        sa.Column("version", sa.String(200), nullable=False),
        sa.Column("isa", sa.String(100), nullable=False),
        sa.Column("precision", sa.String(20), nullable=False),
        sa.Column("kv_precision", sa.String(20), nullable=False),
        sa.Column("reference", sa.String(20), nullable=False),
        sa.Column("sample_hash", sa.String(64), nullable=False),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_qualities")),
        sa.UniqueConstraint(
            "model_hash",
            "engine",
            "version",
            "isa",
            "precision",
            "kv_precision",
            "reference",
            "sample_hash",
            name=op.f("uq_qualities_key"),
        ),
    )


def downgrade() -> None:
    op.drop_table("qualities")
