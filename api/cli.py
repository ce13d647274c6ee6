"""The command line, and the only composition root: settings are read here and passed down.

Commands import what they need when they run: `serve` must load neither torch nor optuna, and lists must be quick.

Exit codes: 0 done, 1 the job failed, 2 bad input (the message names field, value and remedy), 130 interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import structlog
from rich.console import Console

from api.calibrate_commands import calibrate
from api.errors import BAD_INPUT, UsageError
from api.explain_commands import explain
from api.flags import job_fields
from api.guard_commands import guard, restore
from api.jobfile import read_job
from api.meter_commands import measure, watch
from api.records import front_of_job, job_out
from api.settings import Settings, load_settings
from api.stores import Stores, open_stores, utc_now


def main() -> None:
    """Run the command line; every expected error is one sentence on standard error and exit code 2."""
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Abort:  # click's name for KeyboardInterrupt
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BAD_INPUT as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="wattfront")
@click.option("--database", metavar="URL", help="SQLAlchemy URL of the store [default: WATTFRONT_DATABASE_URL, else a "
              "file in your data directory].")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Log what happens to standard error.")
@click.pass_context
def cli(context: click.Context, database: str | None, verbose: bool) -> None:
    """Find, keep and serve the operating points at which an LLM server gives the most tokens per watt inside a
    latency SLA.
    """  # noqa: D205 - this text is the command's help
    _configure_logging(verbose)
    settings = load_settings()
    context.obj = settings.model_copy(update={"database_url": database}) if database else settings


def _database_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--database", "database_url", metavar="URL", help="SQLAlchemy URL of the store.")(command)


@cli.command()
@click.argument("job_file", required=False, type=click.Path(path_type=Path), metavar="[JOB.yaml]")
@click.option("--model", help="A folder, a .gguf file, a Hugging Face id or smollm2-135m; on a simulated device a "
              "shape such as llama-3.1-8b, or a config.json.")  # fmt: skip
@click.option("--engine", help="embedded or simulated [default: what the device takes].")
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
              "may be left out. On simulated devices also offline, server:rate=20, interactive:rate=20 and "
              "trace:trace=FILE,time_scale=0.5.")  # fmt: skip
@click.option("--latency", metavar="METRIC", help="The front's latency axis [default: tpot_p99_ms].")
@click.option("--window", type=float, metavar="S", help="Seconds of one measured window [default: 30].")
@click.option("--warmup", type=float, metavar="S", help="Seconds of warm-up before it [default: 10].")
@click.option("--seed", type=int, help="Seed of the search.")
@click.option("--name", help="A label for the job.")
@click.option("--resume", metavar="JOB", help="Go on with a job that was stopped or killed; nothing is repeated.")
@click.option("--after", metavar="JOB", help="A new version of an earlier job, as with other lists of values: what it "
              "measured under the same conditions is taken over.")  # fmt: skip
@_database_option
@click.pass_obj
def tune(settings: Settings, /, job_file: Path | None, resume: str | None, after: str | None, **options: Any) -> None:
    """Run a tuning job here and now, and print its Pareto front.

    Ctrl-C ends it after the running window and keeps everything; a second Ctrl-C ends it at once. Flags win over the
    job file.
    """
    settings = _with_database(settings, options.pop("database_url"))
    flags = job_fields(options)
    if resume is not None and (job_file is not None or flags or after):
        given = ", ".join([*([str(job_file)] if job_file else []), *flags, *(["--after"] if after else [])])
        raise UsageError(f"--resume goes on with the job as it was; {given} cannot be changed now: start a new job, "
                         f"which --after {resume} lets begin with what this one measured")  # fmt: skip
    from api.heartbeat import LEASE_S
    from api.owners import is_dead, owner_name
    from api.prepare import prepare
    from api.reuse import version_words
    from api.terminal import fetching, run_here
    from api.worker import give_back

    stores = _stores(settings)
    console = Console()
    give_back(stores, settings)
    if resume is None:
        if job_file is None and "model" not in flags:
            raise UsageError("give a job file or --model, as in: wattfront tune --model smollm2-135m")
        request = read_job(job_file, flags)
        previous = None if after is None else stores.jobs.get(after)
        with fetching(console) as progress:
            prepared = prepare(request, settings, progress)
        if previous is not None:
            for words in version_words(stores, previous, prepared):
                console.print(words, markup=False, highlight=False, soft_wrap=True)
        claim = stores.jobs.create_claimed(
            request, owner_name(), LEASE_S, previous_job_id=None if previous is None else previous.id
        )
    else:
        stores.jobs.expire(is_dead)
        claim = stores.jobs.claim(stores.jobs.get(resume).id, owner_name(), LEASE_S, reopen=True)
    sys.exit(run_here(stores, settings, console, claim))


@cli.command()
@click.argument("job")
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True,
              help="How to print it; json has everything that was measured.")  # fmt: skip
@_database_option
@click.pass_obj
def front(settings: Settings, job: str, form: str, database_url: str | None) -> None:
    """Print a job's Pareto front, fastest point first. JOB is an id or its first characters."""
    from api.console import front_csv, print_front

    shown = front_of_job(_stores(_with_database(settings, database_url)), job)
    if form == "json":
        print(shown.model_dump_json(indent=2))
    elif form == "csv":
        print(front_csv(shown), end="")
    else:
        print_front(Console(), shown)


@cli.command()
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True,
              help="How to print them.")  # fmt: skip
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="Jobs at most.")
@_database_option
@click.pass_obj
def jobs(settings: Settings, form: str, limit: int, database_url: str | None) -> None:
    """List jobs, newest first."""
    from api.console import jobs_table, print_table

    stores = _stores(_with_database(settings, database_url))
    now = utc_now()
    items = [job_out(job, now) for job in stores.jobs.list(limit=limit)]
    if form == "json":
        print(json.dumps({"items": [item.model_dump(mode="json") for item in items]}, indent=2))
    elif items:
        print_table(Console(), jobs_table(items))
    else:
        print("no jobs yet; start one with: wattfront tune --model smollm2-135m")


@cli.command()
@click.argument("job")
@_database_option
@click.pass_obj
def cancel(settings: Settings, job: str, database_url: str | None) -> None:
    """End a job: at once while it waits, after the running window while it runs. What it measured is kept."""
    stores = _stores(_with_database(settings, database_url))
    asked = stores.jobs.request_cancel(stores.jobs.get(job).id)
    print(
        f"job {asked.id[:8]} is {asked.state.value}" + ("" if asked.has_ended else "; it ends after its running window")
    )


@cli.command()
@_database_option
@click.pass_obj
def doctor(settings: Settings, database_url: str | None) -> None:
    """Say what this machine can do: devices, power sources, models, database. Exit code 1 when tuning cannot run."""
    from api.console import report
    from api.doctor import can_tune, examine

    findings = examine(_with_database(settings, database_url))
    console = Console()
    for line in report(findings):
        console.print(line, soft_wrap=True)
    ready = can_tune(findings)
    print("tuning can run here" if ready else "tuning cannot run here: see the lines marked !!")
    sys.exit(0 if ready else 1)


@cli.command()
@click.option("--host", help="Address to listen on; only loopback in this version [default: 127.0.0.1].")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on [default: 8710].")
@_database_option
@click.pass_obj
def serve(settings: Settings, host: str | None, port: int | None, database_url: str | None) -> None:
    """Serve the page and the REST interface."""
    import uvicorn

    from api.app import create_app
    from api.up import require_free_port

    settings = _at(_with_database(settings, database_url), host, port)
    require_free_port(settings)
    app = create_app(_stores(settings))
    uvicorn.run(app, host=settings.host, port=settings.port, log_level="warning")


@cli.command()
@_database_option
@click.pass_obj
def worker(settings: Settings, database_url: str | None) -> None:
    """Run queued jobs, one at a time, until told to stop: after the running window, at a second signal at once."""
    from api.worker import work

    stores = _stores(_with_database(settings, database_url))
    stop = threading.Event()
    signals = iter((stop.set, _interrupt))  # from the third on they change nothing: the end must not be cut short
    _on_signals(lambda: next(signals, lambda: None)())
    try:
        work(stores, settings, should_stop=stop)
    except KeyboardInterrupt:
        print("stopped at once; its job is back in the queue", file=sys.stderr)


@cli.command()
@click.option("--job", "job_files", type=click.Path(path_type=Path), multiple=True, metavar="JOB.yaml", help="Submit "
              "this job once (the same file again shows its result), follow it and print its front. May be given more "
              "than once; they run one after the other.")  # fmt: skip
@click.option("--exit", "should_exit", is_flag=True, help="Stop once the front is printed; the default without a "
              "terminal.")  # fmt: skip
@click.option("--open", "should_open", is_flag=True, help="Open the page in a browser, where there is a desktop.")
@click.option("--host", help="Address to listen on; only loopback in this version [default: 127.0.0.1].")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on [default: 8710].")
@_database_option
@click.pass_obj
def up(
    settings: Settings, job_files: tuple[Path, ...], should_exit: bool, should_open: bool, host: str | None,
    port: int | None, database_url: str | None,
) -> None:  # fmt: skip
    """Run service and worker on this machine until Ctrl-C."""
    from api.terminal import follow, print_total_time, submit_once
    from api.up import Supervisor, open_page, require_free_port

    settings = _at(_with_database(settings, database_url), host, port)
    require_free_port(settings)
    console = Console()
    stop = threading.Event()
    stores = _stores(settings)
    jobs = [submit_once(stores, settings, console, job_file) for job_file in job_files]
    _on_signals(stop.set)
    with Supervisor(settings) as supervisor:
        supervisor.wait_until_healthy()
        url = supervisor.url
        console.print(f"page: {url}", soft_wrap=True)
        if should_open and not should_exit:
            open_page(f"{url}/jobs/{jobs[0].id}" if len(jobs) == 1 else url)
        codes = [0]
        for job in jobs:
            codes.append(follow(stores, console, job, supervisor.watch, stop))
            console.print(f"page of this job: {url}/jobs/{job.id}", soft_wrap=True)
        if jobs:
            print_total_time(console)
        is_done = bool(jobs) and (should_exit or not sys.stdin.isatty())
        if not (is_done or stop.is_set()):
            print("Ctrl-C stops service and worker.", flush=True)
            supervisor.run(stop.is_set)
    sys.exit(max(codes))


for _command in (explain, watch, measure, guard, restore, calibrate):
    cli.add_command(_command)


def _stores(settings: Settings) -> Stores:
    return open_stores(settings.database_url, busy_timeout_s=settings.database_timeout_s)


def _with_database(settings: Settings, url: str | None) -> Settings:
    return settings.model_copy(update={"database_url": url}) if url else settings


def _at(settings: Settings, host: str | None, port: int | None) -> Settings:
    settings = settings.model_copy(
        update={"host": host or settings.host, "port": settings.port if port is None else port}
    )
    if settings.host not in ("127.0.0.1", "localhost", "::1"):
        raise UsageError(
            f"host is {settings.host!r}: this version has no API keys, so it listens on loopback only; "
            "use 127.0.0.1, and an SSH tunnel to reach it from elsewhere"
        )
    return settings


def _configure_logging(is_verbose: bool) -> None:
    level = 20 if is_verbose else 30  # INFO, WARNING
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _interrupt() -> None:
    raise KeyboardInterrupt


def _on_signals(action: Callable[[], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: action())


if __name__ == "__main__":
    main()
