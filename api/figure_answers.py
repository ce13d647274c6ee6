"""The figures of a job's trials as the bytes that answer a request, remembered for as long as nothing happened.

What a job's front depends on is what its figures do: its events, its state and its stored front. So a page that asks
again costs one small query while nothing changed. Knows nothing of HTTP but what `api.packing` does.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json, to_json
from starlette.concurrency import run_in_threadpool

from api.figures import figures
from api.front_answers import ByteCache, FrontAnswers
from api.packing import Packed, pack
from api.stores import Stores
from db.errors import JobNotFound
from db.job import Job

#: A dozen jobs of ten thousand trials.
MAX_CACHE_BYTES = 16_000_000


class FigureAnswers:
    """The figures of one database."""

    def __init__(self, stores: Stores, fronts: FrontAnswers, *, cache: ByteCache | None = None) -> None:
        self._stores = stores
        self._fronts = fronts
        self._cache = cache or ByteCache(MAX_CACHE_BYTES)

    async def get(self, job_id: str, after: int) -> Packed:
        """Return the figures of the trials behind a number. Raises JobNotFound, AmbiguousJob, RecordUnreadable."""
        job, key = await run_in_threadpool(self._looked_up, job_id, after)
        known = self._cache.get(key)
        if known is not None:
            return known
        front = from_json((await self._fronts.get(job.id)).json)
        answer = await run_in_threadpool(self._built, job, front, after)
        self._cache.put(key, answer)
        return answer

    def _looked_up(self, job_id: str, after: int) -> tuple[Job, tuple[object, int]]:
        """Return the job and what its figures depend on: looked up before they are read, it is never newer."""
        job = self._stores.jobs.get(job_id)
        state = self._stores.front_documents.states([job.id]).get(job.id)
        if state is None:  # deleted between the two
            raise JobNotFound(job_id)
        return job, (state, after)

    def _built(self, job: Job, front: dict[str, Any], after: int) -> Packed:
        found = self._stores.trial_figures.of_job(job.id)
        # A third of the time of `json`; what is not finite would become null.
        return Packed.of(pack(to_json(figures(job, found, front, after=after))))
