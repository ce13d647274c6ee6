"""The engine: continuous batching, one step at a time.

`step` is the table of contents: schedule, run, sample, finish. Knows nothing of processes, watts or SLAs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.embedded import decode_graphs
from engine.embedded.blocks import BlockPool
from engine.embedded.native.library import instructions, kernels_for
from engine.embedded.precision import mode_of, require_kv_precision
from engine.embedded.prefix_cache import PrefixCache
from engine.embedded.runner import ModelRunner
from engine.embedded.sampling import sample
from engine.embedded.scheduler import Batch, Scheduler, Slice
from engine.embedded.scoring import score
from engine.embedded.sequence import Sequence
from engine.embedded.stopping import StopMatcher
from engine.embedded.tokenizer import Detokenizer, Tokenizer
from engine.errors import InvalidSettings, NumericsError, RequestRefused, RequestTooLong
from engine.load import LiveLoad, Load, LoadReport, Observer, Progress
from engine.request import FinishReason, Request, RequestRecord
from engine.serve import IDLE_S, Arrivals, serve, serve_arrivals
from engine.serving import TokenScores
from engine.settings import EngineInfo, EngineSettings

#: Of this engine, for the fingerprint of measurements: raise it when speed or output may change.
VERSION = "2"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step brought forth."""

    progress: Progress
    #: (request id, text that may be delivered now), in the order of the step's rows.
    texts: tuple[tuple[str, str], ...]


class EmbeddedEngine:
    """Our engine in this process. Not safe for use from several threads."""

    def __init__(
        self,
        settings: EngineSettings,
        folder: Path,
        *,
        model_hash: str = "",
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        started_s = now()
        _require_ours(settings)
        self._now = now
        self._sleep = sleep
        self._settings = settings
        self._tokenizer = Tokenizer(folder)
        self.runner = ModelRunner(folder, settings)
        num_blocks, block_size = self.runner.num_blocks, settings.block_size
        self._prefixes = PrefixCache(num_blocks, block_size) if settings.prefix_caching else None
        self.pool: BlockPool[Sequence] = self._prefixes or BlockPool(num_blocks, block_size)
        self.scheduler: Scheduler[Sequence] = Scheduler(
            self.pool,
            max_batch=settings.max_batch,
            prefill_chunk=settings.prefill_chunk,
            max_context=self.runner.max_context,
            policy=settings.policy,
            max_prefill_fraction=settings.max_prefill_fraction,
            # Nothing was sampled from it that would tell whether what it leaves in the cache is finite.
            on_half_computed=lambda sequence: self.runner.wipe(self.pool.own_blocks(sequence)),
        )
        self._outputs: dict[str, _Output] = {}
        self._names_tokens = False
        self._info = self._describe(model_hash, now() - started_s)

    @property
    def info(self) -> EngineInfo:
        """What was opened."""
        return self._info

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the text's token ids, without special tokens added."""
        return self._tokenizer.encode(text)

    def set_prefill_chunk(self, prefill_chunk: int) -> None:
        """Change the live knob between two loads."""
        self.scheduler.prefill_chunk = prefill_chunk

    def add(self, request: Request, arrival_s: float | None = None) -> Sequence:
        """Queue a request; raise RequestRefused (or RequestTooLong), changing nothing, if it can never be served."""
        vocab_size = self.runner.config.vocab_size
        for token_id in (min(request.prompt_token_ids), max(request.prompt_token_ids)):
            if not 0 <= token_id < vocab_size:
                raise RequestRefused(
                    f"request {request.request_id}: token id {token_id} is not in the vocabulary of {vocab_size}"
                )
        if request.request_id in self._outputs:
            raise RequestRefused(f"request {request.request_id}: a request of that id is already in the engine")
        sequence = Sequence.of(request, self._now() if arrival_s is None else arrival_s)
        self.scheduler.add(sequence)
        self._outputs[request.request_id] = _Output(self._tokenizer.stream(), StopMatcher(request.stop), sequence)
        return sequence

    def cancel(self, request_id: str) -> RequestRecord | None:
        """End a request wherever it is; None when the engine does not have it (any more)."""
        output = self._outputs.get(request_id)
        return None if output is None else self._end(output.sequence, FinishReason.CANCELLED)

    def step(self) -> StepResult:
        """Advance every running sequence by one slice."""
        batch = self.scheduler.schedule()
        logits = self.runner.run(batch)
        sampled = [piece for piece in batch.slices if piece.is_sampled]
        self.scheduler.computed(batch)
        token_ids = sample(logits, [piece.sequence for piece in sampled])
        return self._finish(batch, sampled, token_ids)

    def run(self, load: Load, observer: Observer) -> list[RequestRecord]:
        """Serve a load until it is used up or the observer says stop; see `ServingEngine.run`."""
        self._begin_load(names_tokens=isinstance(load, LiveLoad))
        return serve(self, load, observer)

    def run_arrivals(self, arrivals: Arrivals, observer: Observer, *, names_tokens: bool) -> list[RequestRecord]:
        """Serve what arrives from elsewhere; `names_tokens` tells of each token by its id, as of a live load."""
        self._begin_load(names_tokens=names_tokens)
        return serve_arrivals(self, arrivals, observer)

    @property
    def num_in_flight(self) -> int:
        """Requests let in and not yet ended."""
        return len(self._outputs)

    def now_s(self) -> float:
        """The engine's clock."""
        return self._now()

    def advance(self, until_s: float | None) -> Progress:
        """Take one step."""
        return self.step().progress

    def wait_until(self, time_s: float) -> None:
        """Sleep until then, or for a moment."""
        self._sleep(min(IDLE_S, max(0.0, time_s - self._now())))

    def cancel_all(self) -> list[RequestRecord]:
        """End whatever is in flight."""
        return [self._end(output.sequence, FinishReason.CANCELLED) for output in list(self._outputs.values())]

    def score(
        self,
        token_ids: tuple[int, ...],
        *,
        num_last: int | None = None,
        keep: str | None = None,
        against: str | None = None,
    ) -> TokenScores:
        """Run the tokens through the model once, in chunks; see `ServingEngine.score`."""
        if len(token_ids) > self.runner.max_context:
            raise RequestTooLong(f"{len(token_ids)} tokens to score, but the context is {self.runner.max_context}")
        request = Request(request_id="score", prompt_token_ids=token_ids, max_tokens=1)
        sequence = Sequence.of(request, self._now())
        chunk = self.scheduler.prefill_chunk
        try:
            return score(self.runner, self.pool, sequence, chunk=chunk, num_last=num_last, keep=keep, against=against)
        except NumericsError as error:
            raise NumericsError(f"{self._settings.model} in {self._settings.precision}: {error}") from error

    def report(self) -> LoadReport | None:
        """Return how much of the last load's prompts was found; None without a prefix cache, as of a server without."""
        return None if self._prefixes is None else LoadReport(prefix_hit_share=self._prefixes.hit_share)

    def close(self) -> None:
        """Nothing to do: the memory goes with the object."""

    def _begin_load(self, *, names_tokens: bool) -> None:
        """Let no load find what an earlier one left: the second of two alike must cost what the first did."""
        self._names_tokens = names_tokens
        if self._prefixes is not None:
            self._prefixes.forget()

    def _finish(
        self, batch: Batch[Sequence], sampled: list[Slice[Sequence]], token_ids: list[int | None]
    ) -> StepResult:
        """Give every sampled sequence its token and end those that are done."""
        time_s = self._now()
        num_running = self.scheduler.num_running
        first_tokens: list[str] = []
        finished: list[RequestRecord] = []
        texts: list[tuple[str, str]] = []
        named: list[tuple[str, int]] = []
        for piece, token_id in zip(sampled, token_ids, strict=True):
            sequence, request_id = piece.sequence, piece.sequence.request.request_id
            if token_id is None:
                self.runner.wipe(self.pool.own_blocks(sequence))
                finished.append(self._end(sequence, FinishReason.ERROR, "numerics: logits are not finite"))
                continue
            if self._prefixes is not None:
                self._prefixes.share(sequence, piece.start + piece.count)
            if self._names_tokens:
                named.append((request_id, token_id))
            reason, text = self._append(sequence, token_id, time_s)
            if text:
                texts.append((request_id, text))
            if sequence.num_output_tokens == 1:
                first_tokens.append(request_id)
            if reason is not None:
                finished.append(self._end(sequence, reason))
        progress = Progress(
            time_s=time_s,
            num_running=num_running,
            num_waiting=len(self.scheduler.waiting),
            num_tokens=sum(token_id is not None for token_id in token_ids),
            num_prompt_tokens=batch.num_prompt_tokens,
            first_tokens=tuple(first_tokens),
            finished=tuple(finished),
            kv_blocks_used=self.pool.num_used,
            token_ids=tuple(named),
        )
        return StepResult(progress=progress, texts=tuple(texts))

    def _append(self, sequence: Sequence, token_id: int, time_s: float) -> tuple[FinishReason | None, str]:
        """Note a token, and return why it was the last one (or None) and the text it sets free."""
        request = sequence.request
        sequence.token_ids.append(token_id)
        sequence.token_times_s.append(time_s)
        output = self._outputs[request.request_id]
        is_eos = token_id in self.runner.config.eos_token_ids and not request.ignore_eos
        text = "" if is_eos else output.stops.feed(output.detokenizer.feed(token_id))
        reason = None
        if is_eos or output.stops.is_stopped:
            reason = FinishReason.STOP
        elif sequence.num_output_tokens == request.max_tokens:
            reason = FinishReason.LENGTH
        if reason is not None:
            text += output.stops.flush()
        sequence.text += text
        return reason, text

    def _end(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> RequestRecord:
        output = self._outputs.pop(sequence.request.request_id)
        if reason is FinishReason.CANCELLED:
            sequence.text += output.stops.flush()
        self.scheduler.finish(sequence, reason, error)
        return sequence.record()

    def _describe(self, model_hash: str, start_s: float) -> EngineInfo:
        runner = self.runner
        is_cuda = runner.device.type == "cuda"
        capability = "sm_{}{}".format(*torch.cuda.get_device_capability()) if is_cuda else ""
        return EngineInfo(
            engine="embedded",
            version=version_on(self._settings.device),
            model=self._settings.model,
            model_hash=model_hash,
            precision=self._settings.precision,
            device=self._settings.device,
            max_context=runner.max_context,
            num_kv_blocks=runner.num_blocks,
            num_parameters=runner.config.num_parameters,
            start_s=start_s,
            isa=capability or instructions(),
            pids=(os.getpid(),),
            is_emulated=runner.is_emulated,
        )


def version_on(device: str) -> str:
    """Return what a measurement's fingerprint has of this engine on `cpu` or a GPU: what computes is part of it.

    Raises NativeKernelsMissing where kernels are required and there are none.
    """
    version = f"{VERSION}+torch{torch.__version__}"
    if device != "cpu":
        return f"{version}+graphs" if decode_graphs.are_wanted() else version
    return version if kernels_for(torch.device("cpu")) is None else f"{version}+kernels"


def _require_ours(settings: EngineSettings) -> None:
    """Refuse what only other engines have: this one runs on one device."""
    mode_of(settings.precision)
    require_kv_precision(settings.kv_precision)
    if settings.num_gpus != 1:
        raise InvalidSettings(
            f"tensor_parallel x pipeline_parallel x data_parallel + prefill_gpus is {settings.num_gpus}; "
            "the embedded engine runs on one device: leave them out"
        )
    if settings.expert_parallel:
        raise InvalidSettings("expert_parallel is True; the embedded engine runs on one device: leave it out")


@dataclass(slots=True, eq=False)
class _Output:
    """The text side of a running request."""

    detokenizer: Detokenizer
    stops: StopMatcher
    sequence: Sequence
