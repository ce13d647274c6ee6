"""An engine that may be left in the midst of a call, and whose every answer is a sign of life.

Knows nothing of what engine it is, nor why a job ends.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.load import Load, LoadReport, Observer, Progress
from engine.request import RequestRecord
from engine.serving import ServingEngine, TokenScores
from engine.settings import EngineInfo


class WatchedEngine:
    """Passes every call on, with a look in between at whether the job still runs; implements `ServingEngine`.

    `check` raises what ends the job: then the engine is in the midst of something, and can only be closed.
    """

    def __init__(self, serving: ServingEngine, check: Callable[[], None]) -> None:
        self._serving = serving
        self._check = check

    @property
    def info(self) -> EngineInfo:
        """What was opened."""
        return self._serving.info

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the text's token ids; see `ServingEngine.encode`."""
        self._check()
        return self._serving.encode(text)

    def score(
        self,
        token_ids: tuple[int, ...],
        *,
        num_last: int | None = None,
        keep: str | None = None,
        against: str | None = None,
    ) -> TokenScores:
        """Run the tokens through the model once; see `ServingEngine.score`."""
        self._check()
        return self._serving.score(token_ids, num_last=num_last, keep=keep, against=against)

    def set_prefill_chunk(self, prefill_chunk: int) -> None:
        """Change the live knob between two loads."""
        self._check()
        self._serving.set_prefill_chunk(prefill_chunk)

    def run(self, load: Load, observer: Observer) -> list[RequestRecord]:
        """Serve the load; see `ServingEngine.run`."""

        def watched(progress: Progress) -> bool:
            self._check()
            return observer(progress)

        self._check()
        return self._serving.run(load, watched)

    def report(self) -> LoadReport | None:
        """Return what a client of the engine says of the last load."""
        return self._serving.report()

    def close(self) -> None:
        """End the engine."""
        self._serving.close()
