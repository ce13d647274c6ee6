"""`wattfront calibrate`: a simulated device made like a GPU that was measured, and how far it is off.

Knows what to print and where trials are; the work is `tuner.calibration`'s.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from api.errors import UsageError
from api.settings import Settings

if TYPE_CHECKING:  # what a command needs is imported when it runs
    from rich.table import Table

    from api.stores import Stores
    from db.job import Job
    from engine.simulated.shapes import ModelShape
    from probes.device import DeviceInfo
    from probes.simulated.twin import Quantiles, Residuals
    from tuner.calibration import Calibration
    from tuner.observations import JobTrials

#: Jobs that are looked at in one question to the store.
_PAGE = 100
#: Reasons for leaving trials out that are told.
_NUM_REASONS = 5


@click.command()
@click.option("--device", required=True, metavar="UUID", help="The device whose trials count: a UUID, the beginning of "
              "one, or the name of a simulated one.")  # fmt: skip
@click.option("--job", "job_ids", multiple=True, metavar="ID", help="Only this job's trials; may be repeated [default: "
              "all jobs on the device].")  # fmt: skip
@click.option("--base", metavar="KEY", help="The accelerator to start from, as in h100-sxm [default: by the device's "
              "name].")  # fmt: skip
@click.option("--model-shape", metavar="NAME", help="The served model's shape where the job's own model does not tell: "
              "a name such as llama-3.1-8b, or a config.json.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="TWIN.json", help="Write the twin "
              "there, for --device simulated:TWIN.json.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True,
              help="How to print the report.")  # fmt: skip
@click.option("--database", "database_url", metavar="URL", help="SQLAlchemy URL of the store.")
@click.pass_obj
def calibrate(
    settings: Settings, device: str, job_ids: tuple[str, ...], base: str | None, model_shape: str | None,
    out: Path | None, form: str, database_url: str | None,
) -> None:  # fmt: skip
    """Fit a simulated device to what was measured on DEVICE: a digital twin that answers in seconds.

    Takes the stored trials of jobs that ran there, and says how far the twin is off on trials that it was not fitted
    to, and which of its coefficients the trials could not tell. What a twin gives is simulated, never measured.
    """
    from api.stores import open_stores, utc_now
    from probes.simulated.accelerators import ACCELERATORS
    from tuner.calibration import base_of
    from tuner.calibration import calibrate as fit_twin

    _require_twin_name(out)
    if base is not None and base not in ACCELERATORS:
        raise UsageError(f"--base is {base!r}; choose one of {', '.join(ACCELERATORS)}")
    stores = open_stores(database_url or settings.database_url, busy_timeout_s=settings.database_timeout_s)
    info = _device(stores, device)
    accelerator = base_of(info) if base is None else ACCELERATORS[base]
    jobs = _jobs(stores, info, job_ids, _shape_reader(settings, model_shape))
    done = fit_twin(jobs, info, accelerator, now=utc_now())
    if out is not None:
        _write(done, out)
    if form == "json":
        click.echo(json.dumps(report_json(done), indent=2))
    else:
        _print(done, out)


def report_json(done: Calibration) -> dict[str, Any]:
    """Return a calibration as JSON: the twin's file, and what there is to say of how it came about."""
    from probes.simulated.accelerators import ACCELERATORS
    from probes.simulated.coefficients import COEFFICIENT_NAMES
    from probes.simulated.twin import twin_json

    base = ACCELERATORS[done.twin.base].coefficients
    return {
        "twin": twin_json(done.twin),
        "before": dataclasses.asdict(done.before),
        "num_parts": done.num_parts,
        "has_converged": done.fitted.has_converged,
        "coefficients": [
            {
                "name": name,
                "base": getattr(base, name),
                "twin": getattr(done.twin.coefficients, name),
                "assumed_uncertainty": done.fitted.assumed.get(name),
                "uncertainty": done.fitted.uncertainty.get(name),
                "is_told": name not in done.twin.untold,
            }
            for name in COEFFICIENT_NAMES
        ],
        "left_out": [dataclasses.asdict(one) for one in done.left_out],
    }


def residual_table(done: Calibration) -> Table:
    """Return how far off the base and the twin are, in percent."""
    from rich.table import Table

    table = Table(title=f"How far off the simulation is, {len(done.seen)} trials", title_justify="left")
    table.add_column("")
    for heading in ("time of a step", "power", "energy of a token"):
        table.add_column(f"{heading}\nmedian / p90 / worst %", justify="right")
    parts = "one at a time" if done.num_parts == len(done.seen) else f"in {done.num_parts} parts"
    for name, residuals in (
        (f"{done.twin.base} as it was", done.before),
        ("twin, trials it was fitted to", done.twin.in_sample),
        (f"twin, trials left out, {parts}", done.twin.held_out),
    ):
        table.add_row(name, *_residual_row(residuals))
    return table


def coefficient_table(done: Calibration) -> Table:
    """Return the coefficients that the trials tell, before and after."""
    from rich.table import Table

    from probes.simulated.accelerators import ACCELERATORS

    table = Table(title="Coefficients that the trials tell", title_justify="left")
    table.add_column("name")
    for heading in ("base", "twin", "change", "standard error"):
        table.add_column(heading, justify="right")
    base = ACCELERATORS[done.twin.base].coefficients
    for name, error in done.fitted.uncertainty.items():
        if name not in done.twin.untold:
            before, after = getattr(base, name), getattr(done.twin.coefficients, name)
            table.add_row(name, f"{before:.4g}", f"{after:.4g}", f"{after / before - 1:+.0%}", f"{error:.0%}")
    return table


def notes(done: Calibration, out: Path | None) -> list[str]:
    """Return what must stand beside the tables."""
    from collections import Counter

    of = done.twin.provenance
    untouched = [name for name in done.twin.untold if name not in done.fitted.touched]
    vague = [name for name in done.twin.untold if name in done.fitted.touched]
    lines = [
        f"Simulation: {done.twin.key}, fitted to {of.num_trials} trials of {of.device_name} ({of.device_uuid}, driver "
        f"{of.driver}, engine {of.engine}). Nothing that it tells is a measurement."
    ]
    if vague:
        lines.append(f"The trials say less of these than was assumed before: {', '.join(vague)}.")
    if untouched:
        lines.append(f"No trial depends on these, which are the base's: {', '.join(untouched)}.")
    if not done.fitted.has_converged:
        lines.append("The search for coefficients was given up before it settled; more varied trials help.")
    reasons = Counter(one.reason for one in done.left_out)
    lines += [f"Left out {count}: {reason}" for reason, count in reasons.most_common(_NUM_REASONS)]
    if out is not None:
        lines.append(f"Written to {out}; tune on it with: --device simulated:{out.absolute()}")
    return lines


def _print(done: Calibration, out: Path | None) -> None:
    from rich.console import Console
    from rich.text import Text

    from api.console import print_table

    console = Console()
    print_table(console, residual_table(done))
    print_table(console, coefficient_table(done))
    for line in notes(done, out):
        console.print(Text(line), soft_wrap=True)


def _residual_row(residuals: Residuals) -> list[str]:
    return [_words(part) for part in (residuals.seconds, residuals.power, residuals.j_per_token)]


def _words(quantiles: Quantiles | None) -> str:
    if quantiles is None:
        return "not measured"
    return " / ".join(f"{100 * share:.1f}" for share in (quantiles.median, quantiles.p90, quantiles.worst))


def _require_twin_name(out: Path | None) -> None:
    """Refuse a name by which no twin would be found again, before the work is done."""
    from probes.simulated.twin import SUFFIX

    if out is not None and (out.suffix != SUFFIX or ":" in str(out.absolute())):
        raise UsageError(f"--out is {str(out)!r}: give a path that ends with {SUFFIX} and has no colon")


def _write(done: Calibration, out: Path) -> None:
    from probes.simulated.twin import write_twin

    try:
        write_twin(done.twin, out)
    except OSError as error:
        raise UsageError(f"--out is {str(out)!r}: {error.strerror}; choose another place") from error


def _device(stores: Stores, name: str) -> DeviceInfo:
    """Return the device that is meant, as the store knows it."""
    from probes.simulated.names import is_simulated_name, open_simulated

    wanted = open_simulated(name).info.uuid if is_simulated_name(name) else name
    seen = [one.info for one in stores.devices.list()]
    found = [info for info in seen if info.uuid.lower() == wanted.lower()]
    found = found or [info for info in seen if wanted and info.uuid.lower().startswith(wanted.lower())]
    if not found:
        known = ", ".join(info.uuid for info in seen) or "none: run a job first"
        raise UsageError(f"--device is {name!r}: no job has run there; devices that have had one: {known}")
    if len(found) > 1:
        raise UsageError(f"--device is {name!r}: the beginning of {', '.join(info.uuid for info in found)}; give more")
    return found[0]


def _jobs(
    stores: Stores, info: DeviceInfo, job_ids: Sequence[str], shape_of: Callable[[str], ModelShape]
) -> list[JobTrials]:
    """Return the jobs that are meant with their trials, the latest first."""
    from tuner.observations import JobTrials

    jobs = [stores.jobs.get(job_id) for job_id in dict.fromkeys(job_ids)] or list(_all_jobs(stores, info.uuid))
    for job in jobs:
        if job.device_uuid != info.uuid:
            ran = "has not run yet" if job.device_uuid is None else f"ran on {job.device_uuid}"
            raise UsageError(f"--job {job.id[:8]} {ran}, not on {info.uuid}; leave it out")
    jobs.sort(key=lambda job: job.created_at, reverse=True)
    found = [(job, stores.trials.history(job.id)) for job in jobs]
    return [
        JobTrials(job_id=job.id, request=job.request, shape=shape_of(job.request.model), trials=tuple(trials))
        for job, trials in found
        if any(trial.measurement is not None for trial in trials)
    ]


def _all_jobs(stores: Stores, device_uuid: str) -> Iterator[Job]:
    before = None
    while page := stores.jobs.list(limit=_PAGE, before=before):
        yield from (job for job in page if job.device_uuid == device_uuid)
        before = page[-1].id


def _shape_reader(settings: Settings, model_shape: str | None) -> Callable[[str], ModelShape]:
    """Return what reads the shape of a job's model: the named one for all, else from where the model is."""
    from engine.embedded.models import resolve
    from engine.errors import CheckpointError, UnknownModel
    from engine.simulated.shapes import load_shape

    if model_shape is not None:
        given = load_shape(model_shape)
        return lambda _: given

    def read(model: str) -> ModelShape:
        try:
            return load_shape(model)
        except (UnknownModel, CheckpointError):
            pass  # a .gguf file, or a name that only the engine knows
        try:
            return load_shape(resolve(model, cache_dir=settings.cache_dir, progress=lambda *_: None).folder)
        except (UnknownModel, CheckpointError, OSError) as error:
            raise UsageError(f"the shape of {model!r} is not known ({error}); name it with --model-shape") from error

    return read
