"""The routes of all pages."""

from __future__ import annotations

from api.pages import job, overview

#: One line each.
ROUTERS = (overview.router, job.router)
