"""A job's front as the bytes that answer a request.

Of a job that has ended the stored document is sent as it is, without decoding a trial; where it is missing or of
another version it is made once more and stored. Every answer is checked against the database first, so that what is
remembered is never older than what is stored.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence

import structlog
from starlette.concurrency import run_in_threadpool

from api.batching import Batcher
from api.packing import Packed, pack
from api.records import front_document, front_out
from api.schemas import FRONT_VERSION
from api.stores import Stores, utc_now
from db.errors import JobNotFound, StoreError
from db.front_documents import FrontDocument, FrontState
from db.job import Job
from tuner.pareto import Front, front_of
from tuner.trial import Trial

#: Of a whole job id, in characters.
ID_LENGTH = 32
#: Of remembered answers: some five thousand fronts.
MAX_CACHE_BYTES = 128_000_000

log = structlog.get_logger()


class ByteCache:
    """The answers that were asked for last, within bounds. For several threads."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._answers: OrderedDict[Hashable, Packed] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Packed | None:
        """Return an answer if it is remembered."""
        with self._lock:
            answer = self._answers.get(key)
            if answer is not None:
                self._answers.move_to_end(key)
            return answer

    def put(self, key: Hashable, answer: Packed) -> None:
        """Remember an answer, and forget those that were not asked for longest."""
        with self._lock:
            former = self._answers.pop(key, None)
            self._num_bytes += len(answer.body) - (0 if former is None else len(former.body))
            self._answers[key] = answer
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= len(self._answers.popitem(last=False)[1].body)


class FrontAnswers:
    """The fronts of one database."""

    def __init__(self, stores: Stores, *, cache: ByteCache | None = None) -> None:
        self._stores = stores
        self._cache = cache or ByteCache()
        self._states = Batcher("front-state", stores.front_documents.states)
        self._bodies = Batcher("front-body", self._load_bodies)
        # One at a time, as each may decode a thousand measurements.
        self._builds = Batcher("front-build", self._build, max_batch=1)

    async def get(self, job_id: str) -> Packed:
        """Return the front of a job, by its id or the start of it. Raises JobNotFound, AmbiguousJob."""
        state = await self._states.get(job_id) if len(job_id) == ID_LENGTH else None
        if state is None:
            job = await run_in_threadpool(self._stores.jobs.get, job_id)
            state = await self._states.get(job.id)
            if state is None:  # deleted between the two
                raise JobNotFound(job_id)
        return self._cache.get(state) or await self._loaded(state) or await self._built(state)

    async def _loaded(self, state: FrontState) -> Packed | None:
        """Return the stored document, if it can be used."""
        if not state.has_ended or state.front_id is None:
            return None
        answer = await self._bodies.get(state.front_id)
        if answer is not None:
            self._cache.put(state, answer)
        return answer

    async def _built(self, state: FrontState) -> Packed:
        answer = await self._builds.get(state)
        assert answer is not None  # a front is built, or an error was raised
        return answer

    def _load_bodies(self, front_ids: Sequence[int]) -> dict[int, Packed]:
        bodies = self._stores.front_documents.bodies(front_ids, FRONT_VERSION)
        return {front_id: Packed.of(body) for front_id, body in bodies.items()}

    def _build(self, states: Sequence[FrontState]) -> dict[FrontState, Packed]:
        return {state: self._cache.get(state) or self._build_one(state) for state in states}

    def _build_one(self, state: FrontState) -> Packed:
        """Build a job's front from its trials; that of a job that has ended is stored for the next time."""
        job = self._stores.jobs.get(state.job_id)
        trials = self._stores.trials.history(job.id)
        stored = self._stores.fronts.latest_whole(job.id) if job.has_ended else None
        front = stored or _front_of(job, trials)
        if job.has_ended:
            document = front_document(job, front, trials)
            self._keep(job, front, document, front_id=state.front_id if stored else None)
            answer = Packed.of(document.body)
        else:
            shown = front_out(job, front, trials, trials[0].point if trials else None)
            answer = Packed.of(pack(shown.model_dump_json().encode()))
        self._cache.put(state, answer)
        return answer

    def _keep(self, job: Job, front: Front, document: FrontDocument, *, front_id: int | None) -> None:
        """Store a document, with its front where that is new. A store that cannot be written to stops no reader."""
        try:
            if front_id is not None:
                self._stores.front_documents.put(front_id, document)
            elif job.num_trials:
                self._stores.fronts.save(job.id, front, document)
        except StoreError as error:
            log.warning("front_not_stored", job=job.id, error=str(error))


def _front_of(job: Job, trials: Sequence[Trial]) -> Front:
    """Return the front of all trials, made no sooner than the last of them: a worker's clock may be ahead of ours."""
    made_at = max([utc_now(), *(trial.finished_at for trial in trials if trial.finished_at is not None)])
    return front_of(trials, job.request.latency_metric, created_at=made_at, request=job.request)
