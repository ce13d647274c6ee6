"""Operating points by serving: the simulated engine on a simulated device does what a published row's server did.

The load begins in its middle: the first requests have part of their output behind them already, as prompt, so that the
batch has the contexts of a steady state once their prompts are computed. Spreads of output lengths are assumed. Knows
nothing of coefficients' origin.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from benchmarks.published_points import PROMPTS, Point, Row, settings_of
from engine.errors import EngineError
from engine.load import ClosedLoad, Progress
from engine.request import Request
from engine.simulated.engine import SimulatedEngine
from engine.simulated.shapes import load_shape
from probes.device import Meter
from probes.simulated.accelerators import Accelerator
from probes.simulated.coefficients import Coefficients
from probes.simulated.device import SimulatedDevice

#: Outputs are this share of their mean at least and at most; assumption.
OUTPUT_SPREAD = (0.5, 1.5)
#: vLLM's default on GPUs of 80 GB and more.
PREFILL_CHUNK = 8192
WARM_STEPS = 50
FULL_STEPS = 500
WINDOW_STEPS = 1500
#: A window has this many ended requests at least, unless it gets `MOST_STEPS` long.
WINDOW_ENDED = 100
MOST_STEPS = 6000


class NotServed(Exception):
    """A row's load does not fit the simulated machine, or ends before it settles."""


def serve(row: Row, accelerator: Accelerator, coefficients: Coefficients, wait_s: float) -> Point:
    """Serve a row's load without noise and return what it showed; the host keeps every step waiting for `wait_s`.

    Raises NotServed.
    """
    slowed = replace(coefficients, step_s=coefficients.step_s + wait_s)
    device = SimulatedDevice(replace(accelerator, coefficients=slowed), num_gpus=row.num_gpus, seed=0, noise=0.0)
    longest = max(prompt.tokens for prompt in PROMPTS[row.task]) + int(OUTPUT_SPREAD[1] * row.output_tokens) + 16
    shape = load_shape(row.model)
    settings = replace(
        settings_of(row.model, row.num_gpus, row.data_parallel, row.is_expert_parallel),
        device=device.info.uuid,
        max_batch=-(-row.max_num_seqs // row.data_parallel),
        prefill_chunk=PREFILL_CHUNK,
        max_context=min(longest, shape.max_context),
    )
    try:
        engine = SimulatedEngine(settings, shape, device)
    except EngineError as failure:
        raise NotServed(str(failure)) from failure
    meter = device.meter(())
    window = _Window(meter, start_s=device.now_s())
    engine.run(ClosedLoad(requests=_requests(row), concurrency=row.max_num_seqs), window.observe)
    meter.close()
    return window.served()


def _requests(row: Row) -> Iterator[Request]:
    """Yield requests without end, the first of them begun already."""
    rng = random.Random(f"{row.model} {row.task} {row.max_num_seqs}")
    prompts = PROMPTS[row.task]
    for index in count():
        tokens = rng.choices([prompt.tokens for prompt in prompts], [prompt.share for prompt in prompts])[0]
        output = max(2, round(rng.uniform(*OUTPUT_SPREAD) * row.output_tokens))
        done = rng.randrange(output - 1) if index < row.max_num_seqs else 0
        yield Request(
            request_id=f"{index}", prompt_token_ids=(0,) * (tokens + done), max_tokens=output - done, ignore_eos=True
        )


class _Window:
    """Waits until all prompts of the beginning are computed, then meters some steps."""

    def __init__(self, meter: Meter, *, start_s: float) -> None:
        self._meter = meter
        self._last_s = start_s
        self._calm_steps = 0
        self._fewest_waiting = math.inf
        self._begun_s: float | None = None
        self._steps = self._tokens = self._ended = 0
        self._running = 0.0
        self._joules = 0.0
        self._gaps: list[tuple[float, int]] = []

    def observe(self, progress: Progress) -> bool:
        """Take note of a step; end the load when the window is full."""
        gap_s = (progress.time_s - self._last_s) / progress.num_steps
        self._last_s = progress.time_s
        if self._begun_s is None:
            # Settled when nobody waits, or when the queue has long stopped falling: then memory is full.
            if progress.num_waiting < self._fewest_waiting:
                self._fewest_waiting, self._calm_steps = progress.num_waiting, 0
            self._calm_steps += progress.num_steps
            if self._calm_steps >= (FULL_STEPS if progress.num_waiting else WARM_STEPS):
                self._begun_s = progress.time_s
                self._meter.start()
            return True
        self._steps += progress.num_steps
        self._tokens += progress.num_tokens
        self._ended += len(progress.finished)
        self._running += progress.num_running * progress.num_steps
        self._gaps.append((gap_s, progress.num_tokens))
        is_full = self._steps >= WINDOW_STEPS and self._ended >= WINDOW_ENDED
        if is_full or self._steps >= MOST_STEPS:
            self._joules = self._meter.stop().energy_j or 0.0
            return False
        return True

    def served(self) -> Point:
        """Return rates of the window; raise NotServed where it never began."""
        if self._begun_s is None or not self._steps:
            raise NotServed("the load ended before it settled")
        seconds = self._last_s - self._begun_s
        return Point(
            tok_s=self._tokens / seconds,
            power_w=self._joules / seconds,
            itl_ms=1000 * _weighted_median(self._gaps),
            batch=self._running / self._steps,
        )


def _weighted_median(gaps: list[tuple[float, int]]) -> float:
    half = sum(tokens for _, tokens in gaps) / 2
    for gap_s, tokens in sorted(gaps):
        half -= tokens
        if half <= 0:
            return gap_s
    return 0.0
