"""The figures of a job's trials as the bytes that answer a request, remembered for as long as nothing happened.

What a job's front depends on is what its figures do: its events, its state and its stored front. So a page that asks
again costs one small query while nothing changed. Knows nothing of HTTP but what `api.packing` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic_core import from_json, to_json
from starlette.concurrency import run_in_threadpool

from api.batching import Batcher
from api.figures import figures
from api.front_answers import ByteCache, FrontAnswers
from api.packing import Packed, pack
from api.stores import Stores
from db.errors import JobNotFound
from db.front_documents import FrontState
from db.job import Job

#: A dozen jobs of ten thousand trials.
MAX_CACHE_BYTES = 16_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What is asked for: the same as long as nothing happened to the job."""

    state: FrontState
    after: int
    job: Job = field(compare=False)
    front: Packed = field(compare=False)

    @property
    def key(self) -> tuple[FrontState, int]:
        return self.state, self.after


class FigureAnswers:
    """The figures of one database."""

    def __init__(self, stores: Stores, fronts: FrontAnswers, *, cache: ByteCache | None = None) -> None:
        self._stores = stores
        self._fronts = fronts
        self._cache = cache or ByteCache(MAX_CACHE_BYTES)
        # One at a time, and once for all who ask: everybody who looks at a running job does after each trial.
        self._builds = Batcher("figures-build", self._build, max_batch=1)

    async def get(self, job_id: str, after: int) -> Packed:
        """Return the figures of the trials behind a number. Raises JobNotFound, AmbiguousJob, RecordUnreadable."""
        job, state = await run_in_threadpool(self._looked_up, job_id)
        known = self._cache.get((state, after))
        if known is not None:
            return known
        wanted = _Wanted(state=state, after=after, job=job, front=await self._fronts.get(job.id))
        answer = await self._builds.get(wanted)
        assert answer is not None  # it is built, or an error was raised
        return answer

    def _looked_up(self, job_id: str) -> tuple[Job, FrontState]:
        """Return the job and what its figures depend on: looked up before they are read, it is never newer."""
        job = self._stores.jobs.get(job_id)
        state = self._stores.front_documents.states([job.id]).get(job.id)
        if state is None:  # deleted between the two
            raise JobNotFound(job_id)
        return job, state

    def _build(self, all_wanted: Sequence[_Wanted]) -> dict[_Wanted, Packed]:
        return {wanted: self._cache.get(wanted.key) or self._build_one(wanted) for wanted in all_wanted}

    def _build_one(self, wanted: _Wanted) -> Packed:
        found = self._stores.trial_figures.of_job(wanted.job.id)
        shown = figures(wanted.job, found, from_json(wanted.front.json), after=wanted.after)
        # A third of the time of `json`; what is not finite would become null.
        answer = Packed.of(pack(to_json(shown)))
        self._cache.put(wanted.key, answer)
        return answer
