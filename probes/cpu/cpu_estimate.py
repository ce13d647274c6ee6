"""A labelled estimate of the engine's CPU energy, for machines where nothing can be measured.

    P = cores x (idle_w + (max_w - idle_w) x u),  u = engine's CPU seconds / (wall seconds x cores)

where cores need not be a whole number: under a quota it is how many cores' time the engine can have. This is the
linear model of Cloud Carbon Footprint, per usable core:
https://www.cloudcarbonfootprint.org/docs/methodology/ ("Average Watts = Min Watts + Avg vCPU Utilization * (Max
Watts - Min Watts)"; AWS averages 0.74 and 3.5 W, derived from SPECpower_ssj2008 results). Knows nothing of clocks,
vector units or memory traffic, so it cannot tell two ways of using a core apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from probes.clock import Clock, Mark
from probes.cpu.processes import HostLoad, judge_load
from probes.device import Method, PowerSample, PowerSource, Reading, Scope
from probes.metering.findings import Findings, Stretch, Subject, not_started, sampling_reasons
from probes.metering.sampler import LONGEST_GAP_S, Run, Sampler
from probes.validity import Note, Reason

ESTIMATE_INTERVAL_S = 0.5
#: CPU time is kept in ticks of 10 ms.
TICK_S = 0.01
SHORTEST_WINDOW_TICKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuPowerModel:
    """What one core draws; the default is for a server nobody knows more about."""

    idle_w: float = 0.74
    max_w: float = 3.5
    #: Covers every micro-architecture in Cloud Carbon Footprint's AWS table (1.69 W for AMD EPYC of the second
    #: generation to 5.42 W for Coffee Lake, at full load) but the two it sets aside as outliers itself.
    relative_uncertainty: float = 0.55
    #: In words: whose figures these are.
    origin: str = "Cloud Carbon Footprint's average of AWS vCPUs"

    def __post_init__(self) -> None:
        """Raise ValueError unless 0 <= idle_w <= max_w and the uncertainty is a share."""
        if not 0 <= self.idle_w <= self.max_w < float("inf"):
            raise ValueError(f"need 0 <= idle_w <= max_w, got idle_w={self.idle_w} and max_w={self.max_w} W per core")
        if not 0 <= self.relative_uncertainty <= 1:
            raise ValueError(f"relative_uncertainty must be between 0 and 1, got {self.relative_uncertainty}")

    def energy_j(self, *, cores: float, wall_s: float, cpu_s: float) -> float:
        """Return joules: every usable core idle throughout, plus what `cpu_s` of work adds."""
        return cores * self.idle_w * wall_s + (self.max_w - self.idle_w) * cpu_s

    def power_source(self, cores: float) -> PowerSource:
        """Return the estimate in words."""
        return PowerSource(
            scope=Scope.CPU_SHARE,
            method=Method.ESTIMATE,
            detail=f"{cores:g} cores at {self.idle_w:g} W idle to {self.max_w:g} W busy each, {self.origin}",
            resolution_s=TICK_S,
        )


class EstimateMeter:
    """Turns the engine's CPU time into joules by a CpuPowerModel."""

    def __init__(
        self,
        read_load: Callable[[], HostLoad],
        model: CpuPowerModel,
        *,
        cores: float,
        num_cores: int,
        device_uuid: str,
        clock: Clock,
    ) -> None:
        """Estimate over `cores` worth of usable time; others' load is judged over the `num_cores` we may run on."""
        self._read_load = read_load
        self._model = model
        self._cores = cores
        self._num_cores = num_cores
        self._clock = clock
        self._subject = Subject(source=model.power_source(cores), device_uuids=(device_uuid,))
        self._loads: Sampler[HostLoad] | None = None
        self._stretch: Stretch | None = None

    def start(self) -> float:
        """Begin a stretch at the first look at the process table."""
        self.close()
        begin = Mark.now(self._clock)
        self._loads = Sampler(self._read_load, interval_s=ESTIMATE_INTERVAL_S, clock=self._clock)
        self._stretch = Stretch(begin=begin, start_s=self._loads.start().time_s)
        return self._stretch.start_s

    def stop(self) -> Reading:
        """End the stretch at the last look; the idle power of the usable cores is the engine's in full."""
        if self._loads is None or self._stretch is None:
            return not_started(self._subject, self._clock)
        run, stretch = self._loads.stop(), self._stretch
        self.close()
        findings = self._estimate(run)
        return stretch.reading(self._subject, findings, end_s=run.closing.time_s, clock=self._clock)

    def close(self) -> None:
        """Stop sampling and forget the stretch. Idempotent."""
        if self._loads:
            self._loads.cancel()
        self._loads = self._stretch = None

    def _estimate(self, run: Run[HostLoad]) -> Findings:
        source = self._subject.source
        wall_s = run.closing.time_s - run.opening.time_s
        broken = sampling_reasons(run)
        if not broken and wall_s < SHORTEST_WINDOW_TICKS * TICK_S:
            broken = (Reason.WINDOW_TOO_SHORT,)
        if broken:
            return Findings(energy_j=None, method=source.method, detail=source.detail, reasons=broken)
        first, last = run.samples[0].value, run.samples[-1].value
        energy_j = self._model.energy_j(cores=self._cores, wall_s=wall_s, cpu_s=engine_cpu_s(first, last))
        reasons, notes = judge_load(first, last, cores_s=wall_s * self._num_cores)
        # Totals grow whether looked at or not, so a gap costs detail in the drawing and no energy.
        gaps = (Note.SAMPLING_GAP,) if run.longest_gap_s > LONGEST_GAP_S else ()
        return Findings(
            energy_j=energy_j,
            method=source.method,
            detail=source.detail,
            uncertainty_j=self._model.relative_uncertainty * energy_j,
            reasons=reasons,
            notes=(*notes, *gaps),
            trace=self._trace(run),
        )

    def _trace(self, run: Run[HostLoad]) -> tuple[PowerSample, ...]:
        return tuple(
            PowerSample(
                time_s=(earlier.time_s + later.time_s) / 2,
                power_w=self._model.energy_j(
                    cores=self._cores,
                    wall_s=later.time_s - earlier.time_s,
                    cpu_s=engine_cpu_s(earlier.value, later.value),
                )
                / (later.time_s - earlier.time_s),
            )
            for earlier, later in pairwise(run.samples)
            # CPU time comes in ticks: between two looks in quick succession power would be noise.
            if later.time_s - earlier.time_s >= SHORTEST_WINDOW_TICKS * TICK_S
        )


def engine_cpu_s(before: HostLoad, after: HostLoad) -> float:
    """Return the engine's CPU seconds between two looks.

    The total falls when a process leaves the tree without being waited for; that is no work undone.
    """
    return max(after.engine_s - before.engine_s, 0.0)
