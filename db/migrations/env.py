"""Run migrations on the connection that `db.migrate` hands over; the transaction around them is its business.

Alembic executes this file. It configures neither logging nor a connection of its own.
"""

from __future__ import annotations

from alembic import context

from db import service_tables  # noqa: F401 - adds its tables to the same metadata
from db.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite alters a table by building a new one
)
with context.begin_transaction():
    context.run_migrations()
