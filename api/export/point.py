"""Which point of a job is exported: the one with the most tokens per joule inside the job's limits, or a trial's."""

from __future__ import annotations

from collections.abc import Sequence

from api.export.forms import Exported, export
from api.export.recipe import NotExportable, recipe_of
from api.stores import Stores
from db.job import Job
from db.result import Result, results_of
from tuner.trial import Trial

#: Trials that a refusal names at most.
_MAX_NAMED = 12


def exported(stores: Stores, job_id: str, form: str, *, number: int | None = None) -> Exported:
    """Return a job's point in a form; the trial `number` is that of any of its windows.

    Raises JobNotFound, AmbiguousJob, and NotExportable for a point that is outside of the job's limits or has no
    usable figures.
    """
    job = stores.jobs.get(job_id)
    return export(recipe_of(job.request, point_of(stores, job, number)), form)


def point_of(stores: Stores, job: Job, number: int | None) -> Result:
    """Return the point of a trial, or the one to use where no trial is named. Raises NotExportable."""
    stored = stores.results.of_trial(job.id, number) if job.has_ended and number is not None else None
    if stored is not None:  # without reading thousands
        return stored
    results = stores.results.of_job(job.id) if job.has_ended else []
    trials: Sequence[Trial] = ()
    if not results:
        trials = stores.trials.history(job.id)
        results = results_of(job.id, job.request, trials, stores.front(job))
    if not results:
        raise NotExportable(f"job {job.id[:8]} has no point inside its limits; wattfront front tells what they miss")
    if number is None:
        return best_of(results, job.request.latency_metric)
    found = next((one for one in results if one.number == number), None)
    if found is not None:
        return found
    trials = trials or stores.trials.history(job.id)
    repeated = next((trial.point for trial in trials if trial.number == number), None)
    found = next((one for one in results if one.point == repeated), None)
    if found is None:
        raise NotExportable(_refusal(job, number, results))
    return found


def best_of(results: Sequence[Result], latency_metric: str) -> Result:
    """Return the point with the most tokens per joule; of equals the fastest."""
    return max(results, key=lambda one: (one.tok_per_j, -(one.latency_ms(latency_metric) or 0.0)))


def _refusal(job: Job, number: int, results: Sequence[Result]) -> str:
    numbers = sorted(one.number for one in results)
    shown = ", ".join(map(str, numbers[:_MAX_NAMED]))
    more = f" and {len(numbers) - _MAX_NAMED} more" if len(numbers) > _MAX_NAMED else ""
    return f"number is {number}: job {job.id[:8]} has points inside its limits at the trials {shown}{more}"
