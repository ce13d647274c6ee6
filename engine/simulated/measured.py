"""Steps whose kernels somebody measured: the same work on paper, with the time of its kernels beside it.

Knows nothing of who measured, nor of what the host adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.settings import EngineSettings
from engine.simulated.layout import WorkModel
from engine.simulated.work import StepWork

#: Decodes, their mean context, prompt tokens, and how many tokens were computed before those: to seconds of kernels.
StepTimes = Callable[[int, float, int, float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSource:
    """Where the times of an engine's steps come from."""

    #: None leaves them to the device.
    times: StepTimes | None
    #: In words, for the record.
    source: str


#: Looks for measured times of an engine with these settings that serves up to so many tokens a request.
ChooseTimes = Callable[[EngineSettings, int], TimeSource]


class MeasuredWork:
    """A work model whose steps carry the time of their kernels; otherwise as the model itself."""

    def __init__(self, model: WorkModel, times: StepTimes) -> None:
        self._model = model
        self._times = times

    def step(
        self,
        *,
        num_decodes: int,
        decode_context: float,
        num_sampled: int,
        local_context: int = 0,
        chunks: Sequence[tuple[int, int]] = (),
    ) -> StepWork:
        """Count one step; see `WorkModel.step`."""
        work = self._model.step(
            num_decodes=num_decodes,
            decode_context=decode_context,
            num_sampled=num_sampled,
            local_context=local_context,
            chunks=chunks,
        )
        num_prompt = sum(count for _, count in chunks)
        start = sum(start * count for start, count in chunks) / num_prompt if num_prompt else 0.0
        mean_context = decode_context / num_decodes if num_decodes else 0.0
        return work._replace(kernel_s=self._times(num_decodes, mean_context, num_prompt, start))
