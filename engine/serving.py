"""The seam: what the tuner asks of any engine, in this process or another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.load import Load, LoadReport, Observer
from engine.request import RequestRecord
from engine.settings import EngineInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """How a model sees a given text, for comparing precisions. One value for each scored position."""

    #: Most likely token after each position.
    top_token_ids: tuple[int, ...]
    #: Natural log of the probability given to the token that follows.
    logprobs: tuple[float, ...]
    #: Kullback-Leibler divergence of a kept pass's distribution from this one's at each position, in nats, over the
    #: whole vocabulary; None where there was nothing to compare with, or the engine shows no more than logprobs.
    divergences: tuple[float, ...] | None = None


class ServingEngine(Protocol):
    """An opened engine."""

    @property
    def info(self) -> EngineInfo:
        """What was opened."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the text's token ids, without special tokens added."""

    def score(
        self,
        token_ids: tuple[int, ...],
        *,
        num_last: int | None = None,
        keep: str | None = None,
        against: str | None = None,
    ) -> TokenScores:
        """Run the tokens through the model once and score the positions before the last `num_last` tokens (all).

        `keep` names a file that takes this pass's distributions, `against` one that such a pass left behind, of the
        same positions. A server that only has logprobs of a given text (echo) ignores both and shows no divergences.
        Raises NumericsError when a logit is not finite, RequestTooLong when the text exceeds the context,
        ReferenceUnreadable when a file cannot be written or read.
        """

    def set_prefill_chunk(self, prefill_chunk: int) -> None:
        """Change the live knob between two loads."""

    def run(self, load: Load, observer: Observer) -> list[RequestRecord]:
        """Serve the load until it is used up or the observer says stop.

        Requests still in flight at that moment are returned as CANCELLED with the tokens they had.
        Raises EngineDied when the engine's process ends, and the engine's own errors by their class.
        """

    def report(self) -> LoadReport | None:
        """Return what the engine, or a client of it, says of the last load beside its requests; None where nothing."""

    def close(self) -> None:
        """End the engine and wait until its memory is free. Idempotent."""
