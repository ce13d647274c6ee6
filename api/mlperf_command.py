"""The command `loadgen`: MLPerf's load generator drives an engine, and both accounts are kept. Needs no database."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from api.errors import UsageError
from api.flags import job_fields
from api.jobfile import read_job
from api.settings import Settings
from tuner.errors import InvalidRequest
from tuner.mlperf import NOT_VALID, preset_of, tail_verdict

if TYPE_CHECKING:  # what a command needs is imported when it runs
    from api.loadgen import LoadGenRun, LoadGenSettings
    from tuner.request import TuneRequest

#: Beside LoadGen's own files.
RESULT = "wattfront_loadgen.json"
#: Prompts that LoadGen draws from at most; it repeats them where it needs more.
_MAX_SAMPLES = 1024


@click.command("loadgen")
@click.option("--scenario", required=True, metavar="PRESET", help="mlperf:server:MODEL, mlperf:interactive:MODEL, "
              "mlperf:offline:MODEL or mlperf:singlestream:MODEL: whose limits apply.")  # fmt: skip
@click.option("--model", required=True, help="What is served: a folder, a .gguf file, a Hugging Face id or "
              "smollm2-135m.")  # fmt: skip
@click.option("--engine", default="embedded", show_default=True, help="embedded; a simulated engine has no real time.")
@click.option("--settings", "point", multiple=True, metavar="K=V,...", help="Engine settings, as in "
              "max_batch=16,precision=bf16.")  # fmt: skip
@click.option("--workload", metavar="SPEC", help="Lengths, as in server:prompt=64-192,output=16-48,seed=0.")
@click.option("--queries", "num_queries", type=click.IntRange(1, 1_000_000), default=100, show_default=True,
              help="Queries at least; samples of the one query under Offline.")  # fmt: skip
@click.option("--min-duration", "min_duration_s", type=click.FloatRange(0, 86_400), default=10.0, show_default=True,
              metavar="S", help="Seconds that LoadGen goes on at least.")  # fmt: skip
@click.option("--target-qps", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Arrivals "
              "a second; under offline and singlestream the rate LoadGen is told to expect.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DIR",
              help="Folder for LoadGen's files and ours.")  # fmt: skip
@click.pass_obj
def loadgen(
    settings: Settings, /, num_queries: int, min_duration_s: float, target_qps: float, out: Path, **options: Any
) -> None:
    """Let MLPerf's LoadGen drive an engine on this machine's CPU; needs the extra mlperf.

    Its summary, detail and trace are left in the folder, and our percentiles of the same run beside them. No run of
    this command is valid for submission: prompts are synthetic, and there is no accuracy run.
    """
    from rich.console import Console

    from api.loadgen import LoadGenSettings, load_package
    from api.terminal import fetching

    told = LoadGenSettings(
        preset=preset_of(options["scenario"]),
        num_queries=num_queries,
        min_duration_s=min_duration_s,
        target_qps=target_qps,
    )
    load_package()
    request = _request(options, target_qps)
    with fetching(Console(stderr=True)) as progress:
        run = _run(request, told, out, settings, progress)
    fields = result_fields(run)
    (out / RESULT).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    click.echo("\n".join(result_words(fields, out)))


def _request(options: dict[str, Any], target_qps: float) -> TuneRequest:
    if options["engine"] != "embedded":
        remedy = "LoadGen waits for real time to pass, and a simulation has a clock of its own; choose embedded"
        raise InvalidRequest("engine", options["engine"], remedy)
    knobs = [part for group in options.pop("point") for part in group.split(",") if part.strip()]
    flags = job_fields({**options, "device": "cpu", "sla": (), "knob": knobs, "task": ()})
    if "workload.rate_per_s" in flags:
        raise UsageError("--workload has a rate; LoadGen's is --target-qps")
    if preset_of(options["scenario"]).workload["scenario"] in ("server", "interactive"):
        flags["workload.rate_per_s"] = target_qps
    return read_job(None, flags)


def _run(request: TuneRequest, told: LoadGenSettings, out: Path, settings: Settings, progress: Any) -> LoadGenRun:
    """Open the engine in a process of its own, let LoadGen drive it, and end it."""
    from api.loadgen import drive
    from engine.embedded.models import resolve
    from engine.host import EngineHost
    from tuner.point import OperatingPoint
    from tuner.space import settings_of
    from tuner.workload import corpus_text, requests

    files = resolve(request.model, cache_dir=settings.cache_dir, progress=progress)
    for knob in request.knobs:
        if len(knob.values) != 1:
            raise UsageError(f"--settings {knob.name} has {len(knob.values)} values; give one")
    point = OperatingPoint.of({knob.name: knob.values[0] for knob in request.knobs})
    host = EngineHost(settings_of(request, point), files.folder, model_hash=files.model_hash)
    try:
        drawn = requests(request.workload, host.encode(corpus_text()), stream="loadgen")
        samples = list(itertools.islice(drawn, min(told.num_queries, _MAX_SAMPLES)))
        return drive(host, samples, told, out)
    finally:
        host.close()


def result_fields(run: LoadGenRun) -> dict[str, Any]:
    """Return both accounts as plain data, milliseconds by latency and percentile."""
    from api.loadgen import LATENCIES, PERCENTS

    settings = run.settings
    theirs_and_ours = {
        f"{latency}_p{percent}_ms": {
            "loadgen": run.summary.percentile_ms(latency, percent),
            "wattfront": run.percentile_ms(latency, percent),
        }
        for latency in LATENCIES
        for percent in PERCENTS
    }
    return {
        "label": NOT_VALID,
        "why_not_valid": list(settings.why_not_valid),
        "scenario": settings.preset.name,
        "target_qps": settings.target_qps,
        "loadgen_result": run.summary.verdict,
        "loadgen_rates": run.summary.rates,
        "num_queries": len(run.records) + run.num_failed,
        "num_failed": run.num_failed,
        "tail_rule": [
            tail_verdict(limit, run.samples_ms(limit.metric.partition("_")[0])).words
            for limit in settings.preset.limits
        ],
        "mean_lag_ms": run.mean_lag_ms,
        "max_lag_ms": run.max_lag_ms,
        "max_tell_ms": run.max_tell_ms,
        "latencies": theirs_and_ours,
    }


def result_words(fields: dict[str, Any], out: Path) -> Iterator[str]:
    """Say both accounts, line by line."""
    why = "; ".join(fields["why_not_valid"])
    yield f"{fields['label'].upper()}: {why}"
    yield f"{fields['scenario']}, {fields['num_queries']} queries, {fields['num_failed']} failed"
    rates = ", ".join(f"{name.lower()} {rate:g}" for name, rate in fields["loadgen_rates"].items())
    yield f"LoadGen: {fields['loadgen_result']} under these settings{f'; {rates}' if rates else ''}"
    yield from fields["tail_rule"]
    yield f"{'':12} {'LoadGen ms':>12} {'Wattfront ms':>13}"
    for name, both in fields["latencies"].items():
        if both["loadgen"] is not None and both["wattfront"] is not None:
            yield f"{name.removesuffix('_ms'):12} {both['loadgen']:12.3f} {both['wattfront']:13.3f}"
    yield (
        f"LoadGen hears of a token up to {fields['max_tell_ms']:.3g} ms late; queries were handed over "
        f"{fields['mean_lag_ms']:.3g} ms after they were due (at most {fields['max_lag_ms']:.3g})"
    )
    yield f"files: {out}"
