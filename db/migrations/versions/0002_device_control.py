"""Whether a device is observed or set.

Revision: 0002, after 0001. Devices that were seen before had only been observed: nothing could set them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("devices") as batch:
        batch.add_column(sa.Column("control_state", sa.String(20), nullable=False, server_default="observed"))
        batch.add_column(sa.Column("control_detail", sa.Text()))
        batch.create_check_constraint(
            op.f("ck_devices_control_state"), "control_state IN ('observed', 'controlled', 'restore_failed')"
        )


def downgrade() -> None:
    with op.batch_alter_table("devices") as batch:
        batch.drop_constraint(op.f("ck_devices_control_state"), type_="check")
        batch.drop_column("control_detail")
        batch.drop_column("control_state")
