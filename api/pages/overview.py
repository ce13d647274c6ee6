"""`/`: what runs, what the last nights gave, what moved, what was found lately, and the devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from api import inventory
from api.pages.job_lines import JobLine, follow_words, job_line
from api.pages.rendering import page
from api.pages.spark import Spark, spark
from api.routes.stores_of import StoresDep
from api.schedule_schemas import NightOut, night_out
from api.stores import Stores, utc_now
from db.job import JobState
from db.job_filter import JobFilter
from db.job_lists import FrontDot
from db.night_lists import ListedNight

router = APIRouter(include_in_schema=False)

MAX_ACTIVE = 8
MAX_FOUND = 6
MAX_NIGHTS = 8
#: Nights that are looked through for drift: of every schedule the last one that was reported.
_NIGHTS_BACK = 60
MAX_DRIFTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What a job that ran to its end found: its most frugal point."""

    line: JobLine
    best: FrontDot | None
    #: Of that point, on the front's axis.
    latency_ms: float | None
    picture: Spark | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NightLine:
    """A night with the name of its schedule."""

    schedule: str
    night: NightOut

    @property
    def has_moved(self) -> bool:
        """Whether a point that is in use moved beyond its intervals."""
        return self.night.drift is not None and self.night.drift.has_moved


@router.get("/", response_class=HTMLResponse)
def overview(request: Request, stores: StoresDep) -> HTMLResponse:
    """Show what an operator looks at in the morning."""
    now = utc_now()
    nights = [_night_line(listed) for listed in stores.night_lists.latest(limit=_NIGHTS_BACK)]
    running = _lines(stores, JobState.RUNNING, now)
    seen = inventory.devices(stores, request.app.state.operator, now).items
    discoveries = _discoveries(stores, now)
    context: dict[str, Any] = {
        "counts": stores.counts.jobs(),
        "num_workers": len(inventory.live_workers(stores, now)),
        "running": running,
        "queued": _lines(stores, JobState.QUEUED, now),
        "follow": follow_words(stores, [line.job.id for line in running]),
        "nights": nights[:MAX_NIGHTS],
        "drifts": _drifts(nights),
        "found": discoveries,
        "best": max((one.line for one in discoveries if one.line.gain is not None), key=_gain, default=None),
        "seen": seen,
        "watts": stores.job_lists.last_windows_w([device.running_job for device in seen if device.running_job]),
    }
    return page(request, stores, "overview.html", context)


def _lines(stores: Stores, state: JobState, now: datetime) -> list[JobLine]:
    return [job_line(one, now) for one in stores.job_lists.page(limit=MAX_ACTIVE, only=JobFilter(state=state))]


def _gain(line: JobLine) -> float:
    return line.gain.value if line.gain else 0.0


def _discoveries(stores: Stores, now: datetime) -> list[Discovery]:
    listed = stores.job_lists.page(limit=MAX_FOUND, only=JobFilter(state=JobState.FINISHED))
    fronts = stores.job_lists.front_dots([one.job.id for one in listed])
    return [_discovery(job_line(one, now), fronts.get(one.job.id, [])) for one in listed]


def _discovery(line: JobLine, dots: Sequence[FrontDot]) -> Discovery:
    metric = line.job.latency_metric
    places = [(dot.latencies_ms[metric], dot.tok_per_j) for dot in dots if metric in dot.latencies_ms]
    best = dots[0] if dots else None
    return Discovery(
        line=line,
        best=best,
        latency_ms=None if best is None else best.latencies_ms.get(metric),
        picture=spark(places),
    )


def _night_line(listed: ListedNight) -> NightLine:
    return NightLine(schedule=listed.schedule_name, night=night_out(listed.night))


def _drifts(nights: Sequence[NightLine]) -> list[NightLine]:
    """Return the schedules whose last night that was reported moved; what moved earlier and held since is no alert."""
    last: dict[str, NightLine] = {}
    for line in nights:
        if line.night.drift is not None:
            last.setdefault(line.schedule, line)
    return [line for line in last.values() if line.has_moved][:MAX_DRIFTS]
