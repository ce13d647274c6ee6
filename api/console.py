"""What the command line prints: a job's progress, a front, lists, the doctor's report. Decides nothing."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from api import schemas
from api.front_words import interval_notes, miss_words, tied_words
from api.quality_words import quality_notes, quality_words
from probes.device import Method
from tuner.pareto import front_of, points_of
from tuner.point import OperatingPoint
from tuner.request import TuneRequest
from tuner.trial import Trial, TrialState

if TYPE_CHECKING:  # brings everything a job needs, and a list of jobs must be quick
    from api.doctor import Finding

_PIPED_WIDTH = 200
_SHORT = {
    "precision": "",
    "max_batch": "batch ",
    "prefill_chunk": "chunk ",
    "sm_clock_cap_mhz": "MHz ",
    "tensor_parallel": "TP ",
    "data_parallel": "DP ",
}


class JobView:
    """A job's progress: one line per finished trial, and on a terminal a bar with time left, best and front size."""

    def __init__(self, console: Console, request: TuneRequest) -> None:
        self._console = console
        self._request = request
        self._trials: list[Trial] = []
        self._current = "starting"
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("trial"),
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=request.budget.trials)

    def __enter__(self) -> JobView:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(Text(text), soft_wrap=True)

    def limit_total(self, num_points: int) -> None:
        """Note that the space has fewer points than the budget has trials."""
        self._progress.update(self._task, total=min(self._request.budget.trials, num_points))

    def fetching(self, what: str, share: float) -> None:
        """Show how far the fetching of the model is."""
        self._progress.update(self._task, description=f"model: {what} {share:.0%}")

    def started(self, point: OperatingPoint) -> None:
        """Show which point is being measured."""
        self._current = point_words(point)
        self._refresh()

    def ended(self, trial: Trial) -> None:
        """Print a finished trial's line."""
        self._trials.append(trial)
        self._progress.update(self._task, completed=len(self._trials))
        self._console.print(_trial_line(trial, self._request.latency_metric), soft_wrap=True)
        self._refresh()

    def _refresh(self) -> None:
        parts = [self._current, *self._time_left()]
        if self._trials:
            now = self._trials[-1].started_at
            front = front_of(self._trials, self._request.latency_metric, created_at=now, request=self._request)
            points = points_of(front, self._trials, request=self._request)
            best = max((point.aggregated.tok_per_j.value for point in points), default=None)
            parts += [] if best is None else [f"best {best:.3g} tok/J", f"front {len(front.trials)}"]
        self._progress.update(self._task, description=" · ".join(parts))

    def _time_left(self) -> list[str]:
        done = [trial for trial in self._trials if trial.finished_at is not None]
        total = self._progress.tasks[0].total
        if not done or total is None:
            return []
        spent_s = sum((trial.finished_at - trial.started_at).total_seconds() for trial in done if trial.finished_at)
        left_s = spent_s / len(done) * max(0.0, total - len(self._trials))
        if self._request.budget.minutes is not None:
            left_s = min(left_s, max(0.0, 60 * self._request.budget.minutes - spent_s))
        return [f"about {duration_words(left_s)} left"]


def model_progress(console: Console) -> Progress:
    """Return a bar for fetching and converting a model; silent when there is nothing to fetch."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), console=console
    )


def point_words(point: OperatingPoint) -> str:
    """Return a point in few words: `fp32, batch 8, chunk 256`."""
    knobs = point.as_dict()
    first = [f"{knobs.pop('precision')}"] if "precision" in knobs else []
    return ", ".join(first + [f"{_SHORT.get(name, name + ' ')}{value}" for name, value in knobs.items()])


def duration_words(seconds: float) -> str:
    """Return `75 s` or `12 min`."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def print_table(console: Console, table: Table) -> None:
    """Print a table; piped output has no width of its own, so there it takes what it needs instead of cutting."""
    (console if console.is_terminal else Console(file=console.file, width=_PIPED_WIDTH)).print(table)


def print_front(console: Console, front: schemas.FrontOut) -> None:
    """Print a front with what must stand beside its figures."""
    if front.points:
        print_table(console, front_table(front))
    for note in [*front_notes(front), *interval_notes(front.points)]:
        console.print(Text(note), soft_wrap=True)


def front_table(front: schemas.FrontOut) -> Table:
    """Return a front as a table, fastest point first."""
    latency = front.latency_metric.removesuffix("_ms").replace("_", " ").upper()
    is_simulated = any(point.energy_method == Method.SIMULATED for point in front.points)
    title = f"Pareto front of {front.model}, job {front.job[:8]}" + (", simulated" if is_simulated else "")
    table = Table(title=title, title_justify="left")
    for name in point_names(front.points) if front.points else []:
        table.add_column(name, justify="right")
    for heading in ("tok/J", "95 %", f"{latency} ms", "95 %", "tok/s", "W", "TTFT p50 ms", "vs default", "quality"):
        table.add_column(heading, justify="right")
    has_repeats = any(point.num_windows > 1 for point in front.points)
    has_ties = any(point.tied_with for point in front.points)
    if has_repeats:
        table.add_column("windows", justify="right")
    if has_ties:
        table.add_column("trial", justify="right")
        table.add_column("tied with")
    for point in front.points:
        repeats = [str(point.num_windows)] if has_repeats else []
        table.add_row(*_front_row(point), *repeats, *([str(point.trial), tied_words(point)] if has_ties else []))
    return table


def front_notes(front: schemas.FrontOut) -> list[str]:
    """Return what must stand beside a front's figures: where the joules come from, what the job found."""
    if not front.points:
        misses = [
            f"  trial {miss.trial} ({', '.join(f'{k}={v}' for k, v in miss.knobs.items())}): {miss_words(miss)}"
            for miss in front.nearest_misses
        ]
        if misses:
            nearest = "Nearest, all simulated:" if front.is_simulated else "Nearest:"
            return [f"No point meets the limits. {nearest}", *misses]
        return ["No trial gave a usable measurement." if front.is_final else "No trial has ended yet."]
    energy = front.points[0].measurement.energy
    is_simulated = front.is_simulated
    estimate = "SIMULATED" if is_simulated else "ESTIMATE"
    kind = f"{estimate}, nothing was measured" if energy.is_estimate else "measured"
    notes = [f"Energy: {kind}; scope {energy.scope}, method {energy.method} ({energy.detail})."]
    if energy.is_estimate and energy.uncertainty_j is not None and energy.energy_j:
        notes.append(
            f"Systematic uncertainty of the joules: about ±{100 * energy.uncertainty_j / energy.energy_j:.0f} %, the "
            "same for every point, so that ratios between points are better known than the values."
        )
    if is_simulated:
        notes.append(
            "Quality is not simulated: what a precision does to the answers is unknown; measure it before you use it."
        )
    notes += quality_notes(front.points)
    leading = [point for point in front.points if point.is_leading]
    if len(leading) > 1:
        fast, frugal = leading[0], leading[-1]
        notes.append(
            f"From the fastest to the most frugal point: {frugal.tok_per_j.value / fast.tok_per_j.value:.2f}x tokens "
            f"per joule for {frugal.latency_ms.value / fast.latency_ms.value:.2f}x {front.latency_metric}."
        )
    return notes


def front_csv(front: schemas.FrontOut) -> str:
    """Return a front as CSV, one row a point."""
    output = io.StringIO()
    knobs = point_names(front.points)
    figures = ["tok_per_j", "tok_per_j_low", "tok_per_j_high", front.latency_metric, f"{front.latency_metric}_low",
               f"{front.latency_metric}_high", "output_tok_s", "mean_power_w", "energy_scope", "energy_method",
               "is_estimate", "gain_over_default", "is_simulated", "num_windows", "num_sessions", "interval_of",
               "tied_with", "is_leading"]  # fmt: skip
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(["trial", *knobs, *figures])
    for point in front.points:
        tok, lat = point.tok_per_j, point.latency_ms
        writer.writerow(
            [
                point.trial,
                *(point.knobs.get(name, "") for name in knobs),
                tok.value,
                tok.low,
                tok.high,
                lat.value,
                lat.low,
                lat.high,
                point.output_tok_s.value,
                point.mean_power_w,
                point.energy_scope,
                point.energy_method,
                str(point.is_estimate).lower(),
                point.gain_over_default,
                str(front.is_simulated).lower(),
                point.num_windows,
                point.num_sessions,
                point.interval_of,
                " ".join(map(str, point.tied_with)),
                str(point.is_leading).lower(),
            ]
        )
    return output.getvalue()


def point_names(points: Sequence[schemas.PointOut]) -> list[str]:
    """Return the knobs' names, in order."""
    return list(points[0].knobs) if points else []


def jobs_table(jobs: Sequence[schemas.JobOut]) -> Table:
    """Return jobs as a table."""
    table = Table(title="Jobs, newest first", title_justify="left")
    for heading in ("id", "state", "name", "model", "trials", "front", "created", "ended because"):
        table.add_column(heading, no_wrap=heading in ("id", "state"))
    for job in jobs:
        state = f"{job.state} (interrupted)" if job.is_interrupted else job.state
        counted = sum(count for name, count in job.trials.items() if name not in ("running", "interrupted"))
        table.add_row(
            job.id[:8],
            state,
            Text(job.name),
            Text(job.model + (" (simulated)" if job.engine == "simulated" else "")),
            f"{counted}/{job.budget_trials}",
            str(job.front_size),
            job.created_at.astimezone().strftime("%Y-%m-%d %H:%M"),
            job.ended_because or "",
        )
    return table


def report(findings: Sequence[Finding]) -> list[Text]:
    """Return the doctor's findings as lines."""
    lines: list[Text] = []
    section = ""
    for finding in findings:
        if finding.section != section:
            section = finding.section
            lines.append(Text(section, style="bold"))
        mark = {None: "    ", True: " ok ", False: " -- "}[finding.is_good]
        if finding.is_needed and finding.is_good is False:
            mark = " !! "
        lines.append(Text(f"{mark}{finding.name}: {finding.text}"))
    return lines


def _trial_line(trial: Trial, latency_metric: str) -> Text:
    words = f"trial {trial.number:>3}  {point_words(trial.point):<28}"
    measurement = trial.measurement
    latency = None if measurement is None else measurement.latency(latency_metric)
    if measurement is not None and measurement.tok_per_j is not None and latency is not None:
        estimate = f" ({_unmeasured(measurement.reading.method)})" if measurement.reading.is_estimate else ""
        words += (
            f" {measurement.tok_per_j.value:8.3g} tok/J{estimate}  {latency.value:8.4g} ms {latency_metric[:-3]}"
            f"  {measurement.output_tok_s.value:7.1f} tok/s"
        )
    if trial.reused_from is not None:
        words += f"  (taken over from job {trial.reused_from[:8]})"
    if trial.state is TrialState.COMPLETE:
        return Text(words)
    return Text(f"{words}  {trial.state.value}: {trial.detail or trial.reason}", style="yellow")


def _front_row(point: schemas.PointOut) -> list[str]:
    ttft, quality = point.measurement.ttft_ms.p50, point.measurement.quality
    return [
        *(str(value) for value in point.knobs.values()),
        f"{point.tok_per_j.value:.3g}",
        _interval(point.tok_per_j),
        f"{point.latency_ms.value:.4g}",
        _interval(point.latency_ms),
        f"{point.output_tok_s.value:.1f}",
        "" if point.mean_power_w is None else f"{point.mean_power_w:.1f}",
        "" if ttft is None else f"{ttft.value:.0f}",
        "" if point.gain_over_default is None else f"{point.gain_over_default:.2f}x",
        _unscored(point) if quality is None else quality_words(quality),
    ]


def _unscored(point: schemas.PointOut) -> str:
    return "unknown" if point.energy_method == Method.SIMULATED else ""


def _unmeasured(method: str) -> str:
    """Return what a figure is that nobody measured."""
    return "simulated" if method == Method.SIMULATED else "estimate"


def _number(value: float) -> str:
    """Three digits, and never as a power of ten."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _interval(estimate: schemas.EstimateOut) -> str:
    low = "?" if estimate.low is None else _number(estimate.low)
    high = "?" if estimate.high is None else _number(estimate.high)
    return f"{low}..{high}"
