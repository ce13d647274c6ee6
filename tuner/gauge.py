"""Measure what a precision costs in quality, once, and remember it: the same figures serve later points and jobs.

The reference is the widest precision that the engine can be launched with here. It completes the sample's prompts and
keeps its distributions in a folder for temporary files until the gauge goes; every other precision, with the format of
its keys and values, is compared with those. Knows nothing of limits, and of where figures are kept between jobs.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import structlog

from engine.errors import EngineDied, NotEnoughMemory, NumericsError
from engine.load import ClosedLoad
from engine.request import FinishReason
from engine.serving import ServingEngine, TokenScores
from engine.settings import EngineInfo, EngineSettings
from tuner.lm_tasks import open_tasks
from tuner.measurement import Quality
from tuner.quality import NUM_PROMPTS, NUM_SCORED, Sample, compare, read_text, sample_of, with_tasks, with_text
from tuner.request import TuneRequest
from tuner.tasks import TaskResult, TaskSet
from tuner.workload import corpus_text

log = structlog.get_logger()

#: What others are compared with: the first that fits the machine.
REFERENCES = ("fp32", "bf16")

#: Returns an engine with these settings, launched if need be.
EngineFor = Callable[[EngineSettings], ServingEngine]


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityKey:
    """Everything that a quality figure depends on."""

    model_hash: str
    engine: str
    version: str
    #: The same precision is other arithmetic on another instruction set.
    isa: str
    precision: str
    kv_precision: str
    #: The precision compared with: which it is depends on the memory that was free.
    reference: str
    #: Of what was scored.
    sample_hash: str


class QualityStore(Protocol):
    """Where quality figures are kept between jobs."""

    def get(self, key: QualityKey) -> Quality | None:
        """Return what was measured under this key; None when nothing was."""

    def put(self, key: QualityKey, quality: Quality) -> None:
        """Keep what was measured. What stands there already stays: it was measured first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reference:
    """What the reference made of the sample."""

    precision: str
    #: Prompts with their completions.
    texts: tuple[tuple[int, ...], ...]
    scores: tuple[TokenScores, ...]
    tasks: tuple[TaskResult, ...]


class QualityGauge:
    """Tells the quality of engine settings of one job."""

    def __init__(
        self,
        request: TuneRequest,
        *,
        store: QualityStore | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        open_tasks: Callable[[Sequence[str], int], TaskSet] = open_tasks,
    ) -> None:
        """Read the job's text file and tasks. Raises InvalidRequest when they cannot be."""
        self._workload = request.workload
        gate = request.quality
        self._text = None if gate.text_file is None else read_text(gate.text_file)
        self._tasks = open_tasks(gate.tasks, gate.task_limit) if gate.tasks else None
        self._store = store
        self._now = now
        self._sample: Sample | None = None
        #: Of the first engine that was opened; what it says of model and engine holds for the others.
        self._info: EngineInfo | None = None
        self._reference: _Reference | None = None
        #: What this job compares with: the widest, unless that was found not to fit.
        self._reference_precision = REFERENCES[0]
        self._known: dict[tuple[str, str], Quality] = {}
        self._broken: dict[tuple[str, str], str] = {}
        self._folder: Path | None = None

    def quality(self, settings: EngineSettings, engine_for: EngineFor) -> Quality:
        """Return what the settings' precisions cost: as known, as stored, or measured now.

        Only what is not known launches an engine. Raises the engine's own errors, NumericsError among them where the
        precision is too narrow for the model.
        """
        candidate = _formats(settings)
        if candidate in self._broken:
            raise NumericsError(self._broken[candidate])
        if candidate not in self._known:
            try:
                self._known[candidate] = self._stored(settings, engine_for) or self._measured(settings, engine_for)
            except NumericsError as error:
                self._broken[candidate] = str(error)
                raise
        return self._known[candidate]

    def _stored(self, settings: EngineSettings, engine_for: EngineFor) -> Quality | None:
        """Look the settings up. Which model and engine they are of only an open engine knows: the first is launched."""
        if self._store is None:
            return None
        if self._info is None:
            self._sample_for(engine_for(settings))
        stored = self._store.get(self._key(settings))
        return None if stored is None else dataclasses.replace(stored, is_reused=True)

    def _measured(self, settings: EngineSettings, engine_for: EngineFor) -> Quality:
        reference = self._reference or self._measure_reference(settings, engine_for)
        self._reference = reference
        serving = engine_for(settings)
        sample = self._sample_for(serving)
        is_own = _formats(settings) == (reference.precision, "auto")
        scores = reference.scores if is_own else self._scored(serving, reference.texts, is_reference=False)
        quality = compare(scores, reference.scores, sample.num_completed)
        quality = dataclasses.replace(
            quality,
            kl=0.0 if is_own else quality.kl,
            reference=reference.precision,
            kv_precision=settings.kv_precision,
            measured_at=self._now(),
        )
        if sample.pieces:
            quality = with_text(quality, [serving.score(piece) for piece in sample.pieces])
        quality = with_tasks(quality, reference.tasks if is_own else self._task_results(serving), reference.tasks)
        log.info("quality_measured", precision=settings.precision, kv_precision=settings.kv_precision,
                 reference=reference.precision, kl=quality.kl,
                 perplexity_ratio=quality.perplexity_ratio)  # fmt: skip
        if self._store is not None:
            self._store.put(self._key(settings), quality)
        return quality

    def _measure_reference(self, settings: EngineSettings, engine_for: EngineFor) -> _Reference:
        serving, precision = self._launch_reference(settings, engine_for)
        sample = self._sample_for(serving)
        texts = _completed(serving, sample)
        return _Reference(
            precision=precision,
            texts=texts,
            scores=self._scored(serving, texts, is_reference=True),
            tasks=self._task_results(serving),
        )

    def _launch_reference(self, settings: EngineSettings, engine_for: EngineFor) -> tuple[ServingEngine, str]:
        """Launch the widest precision that fits; one that is the point's own must, whatever it takes."""
        for precision in REFERENCES:
            self._reference_precision = precision
            is_own = _formats(settings) == (precision, "auto")
            wanted = settings if is_own else dataclasses.replace(
                settings, precision=precision, kv_precision="auto", max_batch=min(settings.max_batch, NUM_PROMPTS)
            )  # fmt: skip
            try:
                return engine_for(wanted), precision
            except NotEnoughMemory as error:
                if is_own or precision == REFERENCES[-1]:
                    raise
                log.warning("reference_does_not_fit", precision=precision, error=str(error))
        raise AssertionError("the last reference returns or raises")

    def _scored(
        self, serving: ServingEngine, texts: tuple[tuple[int, ...], ...], *, is_reference: bool
    ) -> tuple[TokenScores, ...]:
        """Score the texts; the reference keeps its distributions, the others are compared with them."""
        scored: list[TokenScores] = []
        for place, text in enumerate(texts):
            path = str(self._kept_in() / f"{place}.npy")
            how = {"keep": path} if is_reference else {"against": path}
            scored.append(serving.score(text, num_last=NUM_SCORED, **how))
        return tuple(scored)

    def _task_results(self, serving: ServingEngine) -> tuple[TaskResult, ...]:
        return () if self._tasks is None else self._tasks.results(serving)

    def _sample_for(self, serving: ServingEngine) -> Sample:
        """Return what is scored, the same all through the job; the first engine's tokens and context decide it."""
        if self._sample is None:
            self._info = serving.info
            text_ids = () if self._text is None else serving.encode(self._text)
            corpus_ids = serving.encode(corpus_text())
            self._sample = sample_of(
                self._workload,
                corpus_ids,
                text_ids,
                max_context=serving.info.max_context,
                tasks_hash=None if self._tasks is None else self._tasks.hash,
            )
        return self._sample

    def _key(self, settings: EngineSettings) -> QualityKey:
        info, sample = self._info, self._sample
        assert info is not None  # an engine was open before
        assert sample is not None
        return QualityKey(
            model_hash=info.model_hash,
            engine=info.engine,
            version=info.version,
            isa=info.isa,
            precision=settings.precision,
            kv_precision=settings.kv_precision,
            reference=self._reference_precision,
            sample_hash=sample.hash,
        )

    def _kept_in(self) -> Path:
        """Return the folder of the reference's distributions, which goes with the gauge."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="wattfront-quality-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder


def _formats(settings: EngineSettings) -> tuple[str, str]:
    """Return what sets one quality apart from another within a job."""
    return settings.precision, settings.kv_precision


def _completed(serving: ServingEngine, sample: Sample) -> tuple[tuple[int, ...], ...]:
    """Return the prompts with what the engine makes of each. Raises NumericsError or EngineDied when one gets none."""
    wanted = sample.completion_requests()
    records = serving.run(ClosedLoad(requests=iter(wanted), concurrency=len(wanted)), lambda progress: True)
    found = {record.request_id: record for record in records}
    texts = []
    for request in wanted:
        record = found.get(request.request_id)
        if record is None or record.finish_reason is not FinishReason.LENGTH:
            words = "" if record is None or record.error is None else record.error
            if words.startswith(NumericsError.kind):
                raise NumericsError(f"while the reference completed a prompt: {words}")
            raise EngineDied(f"the engine ended before prompt {request.request_id} was completed; {words or 'no word'}")
        # A server names no tokens; its text has as many again, or nearly.
        texts.append(request.prompt_token_ids + (record.token_ids or serving.encode(record.text)))
    return tuple(texts)
