"""Landscapes played back: a trial of a stored truth set costs nothing, and its device time is counted, not spent.

A launch that differs from the one before costs LAUNCH_S, a window WINDOW_S; what a window shows is what the truth set
holds, with noise if that is asked for. SIMULATED throughout, as the truth sets are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import numpy as np

from benchmarks import truth_sets
from benchmarks.early_stopping import cut_share
from engine.settings import EngineInfo
from probes.device import Method, Reading, Scope
from tuner.measurement import Distribution, Estimate, Measurement
from tuner.objectives import verdict
from tuner.pareto import ObjectivePair, hypervolume
from tuner.planner import DEFAULTS, Options
from tuner.point import OperatingPoint
from tuner.request import Budget, TuneRequest
from tuner.search import Proposal, Search
from tuner.space import SearchSpace, search_space
from tuner.trial import Trial, TrialState

LAUNCH_S = 60.0
WINDOW_S = 30.0
_START = datetime(2026, 1, 1, tzinfo=UTC)
_NUM_REQUESTS = 500
_ENGINE = EngineInfo(
    engine="simulated",
    version="played back",
    model="played back",
    model_hash="",
    precision="",
    device="",
    max_context=1,
    num_kv_blocks=1,
    num_parameters=1,
    start_s=0.0,
    isa="",
    pids=(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A search after one more trial."""

    device_s: float
    #: The front's true hypervolume as a share of what the landscape has.
    share: float
    trial: Trial


class Landscape:
    """A stored truth set as something that measures."""

    def __init__(self, name: str) -> None:
        made = next(one for one in truth_sets.landscapes() if one.name == name)
        self.name = name
        self.truth = truth_sets.load(name)
        self.request = made.request
        self.space: SearchSpace = search_space(made.request, truth_sets.open_landscape(made).device)
        self._points = self.truth.points()
        self._index = {point: i for i, point in enumerate(self._points)}
        self._launch_knobs = [knob.name for knob in self.space.knobs if knob.needs_launch]

    def run(
        self,
        request: TuneRequest,
        *,
        options: Options = DEFAULTS,
        noise: float = 0.0,
        stops_early: bool = False,
        max_device_s: float = math.inf,
    ) -> Iterator[Step]:
        """Run a job's search until it ends, or the caller stops asking, or the device time is used up."""
        player = _Player(self, request, noise=noise, stops_early=stops_early)
        search = Search(request, self.space, player.measure, options=options)
        for trial in search:
            yield Step(device_s=player.device_s, share=self.share(search.trials), trial=trial)
            if player.device_s >= max_device_s:
                return

    def job(self, *, sampler: str, seed: int, num_trials: int) -> TuneRequest:
        """Return the landscape's job with a sampler, a seed and a budget."""
        return dataclasses.replace(self.request, sampler=sampler, seed=seed, budget=Budget(trials=num_trials))

    def share(self, trials: list[Trial]) -> float:
        """Return the true hypervolume of the trials' feasible points over the landscape's."""
        places = [self.place(trial.point) for trial in trials if trial.state is TrialState.COMPLETE]
        return hypervolume(places, self.truth.latency_reference_ms) / self.truth.hypervolume

    def place(self, point: OperatingPoint) -> ObjectivePair:
        """Return where a point truly lies."""
        i = self._index[point]
        figures = self.truth.figures
        return ObjectivePair(float(figures["tok_per_j"][i]), float(figures[self.truth.latency_metric][i]))

    def launch_of(self, point: OperatingPoint) -> tuple[object, ...]:
        """Return what two points must share to be measured in one launch."""
        return tuple(point[name] for name in self._launch_knobs)

    def state(self, point: OperatingPoint) -> str:
        """Return how a point truly ends: its state, and the reason behind a colon."""
        return self.truth.states[self._index[point]]

    def figure(self, point: OperatingPoint, name: str) -> float:
        """Return a true figure of a point; NaN where it has none."""
        return float(self.truth.figures[name][self._index[point]])

    def peak_running(self, point: OperatingPoint) -> int | None:
        """Return the most sequences that ran at once, as far as the truth set tells.

        Where a smaller batch size gives the very same figures, that one was not reached.
        """
        own = point.as_dict().get("max_batch")
        if not isinstance(own, int):
            return None
        smallest = own
        for smaller in sorted(
            (int(value) for value in self.truth.knobs["max_batch"] if int(value) < own), reverse=True
        ):
            other = OperatingPoint.of({**point.as_dict(), "max_batch": smaller})
            if any(self.figure(point, name) != self.figure(other, name) for name in ("tok_per_j", "e2e_p99_ms")):
                break
            smallest = smaller
        return own if smallest == own else smallest - 1


@lru_cache(maxsize=8)
def landscape(name: str) -> Landscape:
    """Return a landscape by name; kept, as reading one takes a second."""
    return Landscape(name)


class _Player:
    """Measures by looking up, and counts what it would have cost."""

    def __init__(self, played: Landscape, request: TuneRequest, *, noise: float, stops_early: bool) -> None:
        self._played = played
        self._request = request
        self._noise = noise
        self._stops_early = stops_early
        self._draw = np.random.default_rng([request.seed, 7])
        self._open: tuple[object, ...] | None = None
        self._num_launches = 0
        self.device_s = 0.0

    def measure(self, proposal: Proposal) -> Trial:
        """Return the trial of a proposal."""
        point = proposal.point
        launch = self._played.launch_of(point)
        if launch != self._open or proposal.needs_new_launch:
            self._open = launch
            self._num_launches += 1
            self.device_s += LAUNCH_S
        measured = self._measurement(point)
        state, _, reason = self._played.state(point).partition(":")
        if measured is not None:
            judged = verdict(self._request, measured)
            state, reason = judged.state.value, judged.reason or ""
        began = _START + timedelta(seconds=self.device_s)
        self.device_s += WINDOW_S * (self._used(point) if self._stops_early else 1.0)
        return Trial(
            number=proposal.number,
            point=point,
            role=proposal.role,
            state=TrialState(state),
            reason=reason or None,
            measurement=measured,
            session=str(self._num_launches),
            started_at=began,
            finished_at=_START + timedelta(seconds=self.device_s),
        )

    def _used(self, point: OperatingPoint) -> float:
        """Return the share of a window that is needed until a limit is certainly missed."""
        bounds = self._played.truth.sla_ms
        worst = max(self._played.figure(point, metric) / bound - 1 for metric, bound in bounds.items())
        return cut_share(worst) if worst > 0 else 1.0

    def _measurement(self, point: OperatingPoint) -> Measurement | None:
        if self._played.state(point).startswith("invalid") or math.isnan(self._played.figure(point, "tok_per_j")):
            return None
        figures = {name: self._shown(self._played.figure(point, name)) for name in self._played.truth.figures}
        tok_per_j, power_w = figures["tok_per_j"], figures["mean_power_w"]
        return Measurement(
            window_s=WINDOW_S,
            warmup_s=0.0,
            output_tokens=max(1, int(figures["output_tok_s"] * WINDOW_S)),
            prompt_tokens=0,
            num_finished=_NUM_REQUESTS,
            num_failed=0,
            num_preemptions=0,
            mean_running=1.0,
            output_tok_s=Estimate(figures["output_tok_s"]),
            tok_per_j=Estimate(tok_per_j),
            j_per_tok=Estimate(1 / tok_per_j),
            mean_power_w=power_w,
            ttft=_distribution(figures, "ttft"),
            tpot=_distribution(figures, "tpot"),
            itl=_distribution(figures, "itl"),
            e2e=_distribution(figures, "e2e"),
            reading=Reading(
                start_s=0.0,
                end_s=WINDOW_S,
                energy_j=power_w * WINDOW_S,
                uncertainty_j=0.0,
                scope=Scope.GPU,
                method=Method.SIMULATED,
                detail="played back from a truth set",
                device_uuids=("replay",),
            ),
            engine=_ENGINE,
            peak_running=self._played.peak_running(point),
        )

    def _shown(self, value: float) -> float:
        return value * math.exp(self._noise * self._draw.standard_normal()) if self._noise else value


def _distribution(figures: dict[str, float], latency: str) -> Distribution:
    """Return the percentiles that a truth set holds of a latency; those it lacks are None."""

    def estimate(statistic: str) -> Estimate | None:
        value = figures.get(f"{latency}_{statistic}_ms", math.nan)
        return None if math.isnan(value) else Estimate(value)

    return Distribution(count=_NUM_REQUESTS, p50=estimate("p50"), p99=estimate("p99"))
