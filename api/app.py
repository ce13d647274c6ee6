"""The HTTP service: a factory. Imports neither torch nor optuna."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial

from fastapi import APIRouter, Depends, FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles

from api.access import Access, KeyRing
from api.document import document
from api.event_streams import EventStreams
from api.explanation import Explanations
from api.figure_answers import FigureAnswers
from api.front_answers import FrontAnswers
from api.garbage import leave_out_loaded
from api.limits import Bounds, Envelope, RateLimits
from api.metrics import Metrics, RequestTimes
from api.night_keeper import NightKeeper
from api.nightly import Nightly
from api.operator_file import Operator, load_operator
from api.pages.routers import ROUTERS as PAGES
from api.plot.bundle import Bundle, warm
from api.problems import add_problem_handlers
from api.recommender import Recommender
from api.repeated import require_once
from api.routes import (
    audit,
    calendars,
    deliveries,
    devices,
    engines,
    estimates,
    events,
    exports,
    figures,
    front_pictures,
    fronts,
    health,
    imports,
    job_details,
    jobs,
    login,
    metrics,
    models,
    recommendations,
    schedules,
    submissions,
    workloads,
)
from api.settings import Settings
from api.stores import Stores, utc_now
from api.submit import Submissions
from api.webhooks import Webhooks, keep_and_send
from api.workload_files import Uploads

#: Names that a service on this machine answers to; WATTFRONT_ALLOWED_HOSTS adds names.
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
#: Each resource's routes: one line each.
ROUTERS: tuple[APIRouter, ...] = (
    jobs.router,
    submissions.router,
    estimates.router,
    fronts.router,
    figures.router,
    job_details.router,
    front_pictures.router,
    events.router,
    exports.router,
    recommendations.router,
    schedules.router,
    calendars.router,
    devices.router,
    engines.router,
    models.router,
    workloads.router,
    imports.router,
    audit.router,
    deliveries.router,
    health.router,
    metrics.router,
    login.router,
    *PAGES,
)


def create_app(stores: Stores, settings: Settings | None = None) -> FastAPI:
    """Build the application on an opened database; without settings, by those of the environment.

    Raises UsageError when the operator's file cannot be used.
    """
    settings = settings or Settings()
    app = FastAPI(
        title="Wattfront",
        description="Pareto fronts of tokens per watt against latency.",
        # Its pages load scripts from elsewhere, which the content policy forbids.
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
        lifespan=_lifespan,
        dependencies=[Depends(require_once)],
    )
    app.state.stores = stores
    app.state.settings = settings
    app.state.operator = load_operator(settings.operator_file)
    app.state.submissions = Submissions(stores, app.state.operator)
    app.state.front_answers = FrontAnswers(stores)
    app.state.figure_answers = FigureAnswers(stores, app.state.front_answers)
    app.state.event_streams = EventStreams(stores)
    app.state.readiness = health.Readiness(stores.database)
    app.state.metrics = Metrics(stores, lambda: app.state.event_streams.num_followers)
    app.state.explanations = Explanations()
    app.state.bundle = Bundle(settings.cache_dir)
    app.state.drawing = front_pictures.Drawing()
    app.state.uploads = Uploads()
    app.state.ring = KeyRing(stores.keys)
    app.state.recommender = Recommender(stores, utc_now)
    app.state.nightly = Nightly(_night_work(stores, app.state.operator)) if settings.nightly else None
    app.state.routers = ROUTERS
    _add_middleware(app, settings)
    add_problem_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    app.mount("/static", StaticFiles(packages=[("api", "static")]), name="static")
    app.openapi = partial(document, app)  # type: ignore[method-assign] # FastAPI's own way to change the document
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Keep the nights of schedules for as long as the service runs, and make ready what the first chart needs."""
    if app.state.nightly is not None:
        app.state.nightly.start()
    warm(app.state.bundle, then=leave_out_loaded)
    try:
        yield
    finally:
        app.state.bundle.close()
        if app.state.nightly is not None:
            await run_in_threadpool(app.state.nightly.stop)


def _night_work(stores: Stores, operator: Operator) -> Callable[[], datetime | None]:
    """Return what a look at the nights does: keep them, and send what there is to tell."""
    keeper = NightKeeper(stores, utc_now, stores.deliveries.add)
    return partial(keep_and_send, keeper.keep, Webhooks(stores.deliveries, operator.targets, utc_now))


def _add_middleware(app: FastAPI, settings: Settings) -> None:
    """Put around the routes what every request goes through; what is added last is the outermost."""
    limits = RateLimits(reads_per_s=settings.rate_limit_reads_per_s, writes_per_s=settings.rate_limit_writes_per_s)
    app.add_middleware(
        Access,
        ring=app.state.ring,
        limits=limits,
        is_loopback=settings.is_loopback,
        are_metrics_open=settings.metrics_open,
    )
    app.add_middleware(Bounds, hosts=_hosts(settings))
    app.add_middleware(Envelope)
    app.add_middleware(RequestTimes, durations=app.state.metrics.durations)


def _hosts(settings: Settings) -> Sequence[str]:
    """Return the names that the service answers to: a page elsewhere that resolves to one of ours gets 400."""
    return (*settings.allowed_host_names, *LOOPBACK_NAMES)


def _operation_id(route: APIRoute) -> str:
    """Return a name for clients that are made from the document: the function's, which a test keeps unique."""
    return route.name
