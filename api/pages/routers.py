"""The routes of all pages."""

from __future__ import annotations

from api.pages import assets, compare, devices, job, jobs, new_job, overview, schedules

#: One line each.
ROUTERS = (
    overview.router,
    assets.router,
    compare.router,
    jobs.router,
    devices.router,
    new_job.router,  # before the job's: `new` is no id
    job.router,
    schedules.router,
)
