"""The command `max-rate`: the highest rate of arrivals that keeps an SLA, as an interval. Needs no database."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from api.errors import UsageError
from api.flags import job_fields
from api.jobfile import read_job
from api.settings import Settings
from tuner.sustained_rate import ALPHA, RateRule, RateTried, SustainedRate, find_sustained_rate

if TYPE_CHECKING:  # what a command needs is imported when it runs
    from api.prepare import Prepared
    from tuner.measurement import Measurement
    from tuner.point import OperatingPoint
    from tuner.request import TuneRequest

#: Windows go on until so many requests ended, up to the rules' ten minutes, unless told otherwise: a p99 needs as many.
_FEWEST_REQUESTS = 500
_LONGEST_S = 600.0


@click.command("max-rate")
@click.option("--model", required=True, help="As for tune.")
@click.option("--device", default="auto", show_default=True, help="As for tune: simulated:h100-sxm, cpu, gpu, ...")
@click.option("--engine", help="As for tune [default: what the device takes].")
@click.option("--scenario", metavar="PRESET", help="Limits of an MLPerf scenario, as in mlperf:server:llama3.1-8b.")
@click.option("--sla", multiple=True, metavar="METRIC<=MS", help="A limit on a percentile of ttft, tpot or e2e; "
              "several by comma or repetition.")  # fmt: skip
@click.option("--workload", metavar="SPEC", help="server:prompt=64-192,output=16-48,seed=0, without a rate.")
@click.option("--point", multiple=True, metavar="K=V,...", help="Knobs of the point, as in max_batch=64,precision=fp8 "
              "[default: the engine's own].")  # fmt: skip
@click.option("--first", "first_per_s", type=float, default=1.0, show_default=True, metavar="RATE",
              help="Requests a second that are tried first.")  # fmt: skip
@click.option("--tolerance", type=float, default=0.05, show_default=True, help="How close the ends are to be, as a "
              "share.")  # fmt: skip
@click.option("--max-rates", type=int, default=16, show_default=True, help="Rates to try at most.")
@click.option("--max-windows", type=int, default=4, show_default=True, help="Windows at each rate at most.")
@click.option("--window", type=float, metavar="S", help="Seconds of one window at least [default: 30].")
@click.option("--warmup", type=float, metavar="S", help="Seconds of warm-up before it [default: 10].")
@click.option("--seed", type=int, help="Seed of the simulated device.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.pass_obj
def max_rate(settings: Settings, /, as_json: bool, **options: Any) -> None:
    """Search the highest rate of random arrivals at which a point keeps its limits.

    The answer is the highest rate shown to hold with the lowest shown not to hold; all that is said of rates is wrong
    with a chance of 5 % at most, however many windows it took. Exit code 1 when no rate was shown to hold.
    """
    from rich.console import Console

    from api.max_rate import RateBench
    from api.prepare import prepare
    from api.terminal import fetching
    from probes.holder import hold

    rule = RateRule(**{name: options.pop(name) for name in ("first_per_s", "tolerance", "max_rates", "max_windows")})
    notes = Console(stderr=True)
    with fetching(notes) as progress:
        prepared = prepare(_request(options, rule), settings, progress)
    point = prepared.space.default_point
    is_simulated = prepared.simulation is not None
    held = contextlib.nullcontext() if is_simulated else hold(prepared.device.info.uuid)
    with held, RateBench(prepared, point) as bench:
        found = find_sustained_rate(
            bench.measure,
            prepared.request.sla,
            rule,
            on_window=lambda tried: notes.print(tried_words(tried), markup=False, highlight=False, soft_wrap=True),
        )
    fields = result_fields(found, prepared, point, bench.measured)
    if as_json:
        click.echo(json.dumps(fields, indent=2))
    else:
        click.echo("\n".join(answer_words(fields)))
    sys.exit(0 if found.holds_per_s is not None else 1)


def _request(options: dict[str, Any], rule: RateRule) -> TuneRequest:
    """Return the request whose point and load are measured; raises UsageError or InvalidRequest."""
    knobs = [part for group in options.pop("point") for part in group.split(",") if part.strip()]
    flags = job_fields({**options, "knob": knobs, "task": ()})
    if "workload.rate_per_s" in flags:
        raise UsageError("--workload has a rate: the rate is what is searched; --first says where to begin")
    if options["scenario"] is None:
        flags.setdefault("workload.scenario", "server")
    flags["workload.rate_per_s"] = rule.first_per_s
    flags["window.min_requests"] = _FEWEST_REQUESTS
    flags["window.max_window_s"] = max(_LONGEST_S, options["window"] or 0.0)
    return read_job(None, flags)


def result_fields(
    found: SustainedRate, prepared: Prepared, point: OperatingPoint, measured: Mapping[float, Measurement]
) -> dict[str, Any]:
    """Return the answer as plain data; figures of the rate that holds are those of its last window."""
    request = prepared.request
    at_end = None if found.holds_per_s is None else measured.get(found.holds_per_s)
    return {
        "model": request.model,
        "device": prepared.device.info.name,
        "is_simulated": prepared.simulation is not None,
        "point": point.as_dict(),
        "scenario": request.workload.scenario,
        "sla": {limit.metric: limit.bound_ms for limit in request.sla},
        "holds_per_s": found.holds_per_s,
        "missed_per_s": found.missed_per_s,
        "error_chance": ALPHA,
        "ended_because": found.ended_because,
        "at_holds": None if at_end is None else figures_of(at_end),
        "rates": [dataclasses.asdict(tried) for tried in found.tried],
    }


def figures_of(measured: Measurement) -> dict[str, Any]:
    """Return throughput and energy of a window, with what the energy is of."""
    tok_per_j = measured.tok_per_j
    return {
        "output_tok_s": measured.output_tok_s.value,
        "tok_per_j": None if tok_per_j is None else tok_per_j.value,
        "mean_power_w": measured.mean_power_w,
        "energy_scope": measured.reading.scope,
        "energy_method": measured.reading.method,
    }


def tried_words(tried: RateTried) -> str:
    """Say in one line what is known of a rate so far."""
    over = ", ".join(f"{metric} {share:.2%} over" for metric, share in tried.over.items())
    because = f" ({tried.because})" if tried.because else ""
    windows = "1 window" if tried.num_windows == 1 else f"{tried.num_windows} windows"
    return f"{tried.rate_per_s:.4g}/s: {tried.state}{because} after {windows}, {tried.num_requests} requests; {over}"


def answer_words(fields: Mapping[str, Any]) -> list[str]:
    """Say the answer."""
    holds, missed = fields["holds_per_s"], fields["missed_per_s"]
    told = "no rate was shown to hold" if holds is None else f"holds at {holds:.4g} requests/s"
    end = "none was shown not to" if missed is None else f"does not at {missed:.4g}"
    label = " SIMULATED, nothing was measured." if fields["is_simulated"] else ""
    lines = [
        f"{fields['model']} on {fields['device']}, {fields['point']}: {told}, {end}.{label}",
        f"Of all that is said of rates, anything is wrong with a chance of {fields['error_chance']:.0%} at most.",
        f"search ended: {fields['ended_because']}",
    ]
    at = fields["at_holds"]
    if at is not None:
        energy = "no energy" if at["tok_per_j"] is None else f"{at['tok_per_j']:.3g} tok/J, {at['mean_power_w']:.4g} W"
        lines.append(
            f"at {holds:.4g}/s: {at['output_tok_s']:.5g} tok/s, {energy} "
            f"(scope {at['energy_scope']}, method {at['energy_method']})"
        )
    return lines
