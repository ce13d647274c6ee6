"""The command `tune`: a job run here and now, or at a server by its workers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from api.errors import UsageError
from api.flags import job_fields
from api.jobfile import read_fields, read_job
from api.place import Local, server_of
from api.settings import Settings


@click.command()
@click.argument("job_file", required=False, type=click.Path(path_type=Path), metavar="[JOB.yaml]")
@click.option("--model", help="A folder, a .gguf file, a Hugging Face id or smollm2-135m; on a simulated device a "
              "shape such as llama-3.1-8b, or a config.json.")  # fmt: skip
@click.option("--engine", help="embedded, simulated, or a server: vllm, sglang, trtllm, dynamo, llamacpp, openai "
              "[default: what the device takes].")  # fmt: skip
@click.option("--profile", metavar="NAME", help="How the server is started: a name of the operator's file [default: "
              "the engine's].")  # fmt: skip
@click.option("--device", help="auto, cpu, gpu, cuda:N, a UUID, or a simulated one such as simulated:h100-sxm, "
              "simulated:h200-sxm:8 or simulated:twin.json; see wattfront doctor.")  # fmt: skip
@click.option("--allow-device-control", is_flag=True, default=None, help="Let the job set clocks and power limits; the "
              "operator must allow it too.")  # fmt: skip
@click.option("--trials", type=int, help="Points to measure at most.")
@click.option("--minutes", type=float, help="Wall time at most.")
@click.option("--device-hours", type=float, help="Time of the device at most, launches and warm-ups included.")
@click.option("--joules", type=float, help="Energy of the device at most.")
@click.option("--plateau", type=int, metavar="K", help="End the search when K trials in a row found next to nothing.")
@click.option("--repeats", type=int, metavar="N", help="Windows of each of the best points [default: 1].")
@click.option("--reuse", type=float, metavar="HOURS", help="Take over measurements of the same conditions up to this "
              "age [default: 0, none].")  # fmt: skip
@click.option("--sampler", help="Who chooses the points: wattfront, or one of Optuna's for comparison: gp, tpe, "
              "nsga2, sobol, random, grid [default: wattfront].")  # fmt: skip
@click.option("--sla", multiple=True, metavar="METRIC<=MS", help="A latency limit, as in ttft_p99_ms<=500; several by "
              "comma or repetition.")  # fmt: skip
@click.option("--knob", multiple=True, metavar="NAME=V1,V2", help="Values of one knob, as in max_batch=1,4,16.")
@click.option("--workload", metavar="SPEC", help="closed:prompt=64-192,output=16-48,concurrency=8,seed=0; every part "
              "may be left out. Also offline, server:rate=20,burstiness=0.5, interactive:rate=20, "
              "trace:trace=FILE,time_scale=0.5; or FILE alone, whose form is recognised "
              "(docs/workloads.md).")  # fmt: skip
@click.option("--scenario", metavar="PRESET", help="An MLPerf scenario, as in mlperf:server:llama3.1-8b: fills "
              "workload, limits and latency axis; see docs/mlperf.md.")  # fmt: skip
@click.option("--latency", metavar="METRIC", help="The front's latency axis [default: tpot_p99_ms].")
@click.option("--window", type=float, metavar="S", help="Seconds of one measured window [default: 30].")
@click.option("--warmup", type=float, metavar="S", help="Seconds of warm-up before it [default: 10].")
@click.option("--task", multiple=True, metavar="NAME|FOLDER", help="An lm-eval task, or a folder of task files (with a "
              "slash), that precisions are compared on; needs the extra lm-eval.")  # fmt: skip
@click.option("--task-limit", type=int, metavar="N", help="Documents of each task [default: 200].")
@click.option("--min-task-share", type=float, metavar="S", help="Share of the widest precision's score that is asked "
              "for on each task [default: 0.99].")  # fmt: skip
@click.option("--seed", type=int, help="Seed of the search.")
@click.option("--name", help="A label for the job.")
@click.option("--resume", metavar="JOB", help="Go on with a job that was stopped or killed; nothing is repeated.")
@click.option("--after", metavar="JOB", help="A new version of an earlier job, as with other lists of values: what it "
              "measured under the same conditions is taken over.")  # fmt: skip
@click.option("--database", "database_url", metavar="URL", help="SQLAlchemy URL of the store.")
@click.pass_obj
def tune(settings: Settings, /, job_file: Path | None, resume: str | None, after: str | None, **options: Any) -> None:
    """Run a tuning job here and now, and print its Pareto front.

    Ctrl-C ends it after the running window and keeps everything; a second Ctrl-C ends it at once. Flags win over the
    job file.
    """
    database_url = options.pop("database_url")
    flags = job_fields(options)
    if resume is not None and (job_file is not None or flags or after):
        given = ", ".join([*([str(job_file)] if job_file else []), *flags, *(["--after"] if after else [])])
        raise UsageError(f"--resume goes on with the job as it was; {given} cannot be changed now: start a new job, "
                         f"which --after {resume} lets begin with what this one measured")  # fmt: skip
    if resume is None and job_file is None and "model" not in flags:
        raise UsageError("give a job file or --model, as in: wattfront tune --model smollm2-135m")
    server = server_of(click.get_current_context())
    if server is None:
        sys.exit(_tune_here(settings, database_url, job_file, flags, resume=resume, after=after))
    for flag, value in (("--resume", resume), ("--after", after), ("--database", database_url)):
        if value is not None:
            raise UsageError(f"{flag} is {value!r}: that works on the machine of the job alone; leave it out, or "
                             "leave out --server")  # fmt: skip
    from api.remote_tune import tune_at

    sys.exit(tune_at(server, Console(), read_fields(job_file, flags)))


def _tune_here(
    settings: Settings,
    database_url: str | None,
    job_file: Path | None,
    flags: dict[str, Any],
    *,
    resume: str | None,
    after: str | None,
) -> int:
    """Run a job in this process and return the exit code."""
    from api.heartbeat import LEASE_S
    from api.owners import is_dead, owner_name
    from api.prepare import prepare
    from api.reuse import version_words
    from api.terminal import fetching, run_here
    from api.worker import give_back

    local, console = Local(settings, database_url), Console()
    stores = local.stores
    give_back(stores, settings)
    if resume is None:
        request = local.noted(read_job(job_file, flags))
        previous = None if after is None else stores.jobs.get(after)
        with fetching(console) as progress:
            prepared = prepare(request, settings, progress, workloads=stores.workloads)
        if previous is not None:
            for words in version_words(stores, previous, prepared):
                console.print(words, markup=False, highlight=False, soft_wrap=True)
        claim = stores.jobs.create_claimed(
            request, owner_name(), LEASE_S, previous_job_id=None if previous is None else previous.id
        )
    else:
        stores.jobs.expire(is_dead)
        claim = stores.jobs.claim(stores.jobs.get(resume).id, owner_name(), LEASE_S, reopen=True)
    return run_here(stores, settings, console, claim)
