"""The command line, and the only composition root: settings are read here and passed down.

Commands import what they need when they run: `serve` must load neither torch nor optuna, and lists must be quick.

Exit codes: 0 done, 1 the job failed, 2 bad input (the message names field, value and remedy), 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from api.calibrate_commands import calibrate
from api.errors import BAD_INPUT, UsageError
from api.explain_commands import explain
from api.export_commands import export, index, recommend
from api.guard_commands import guard, restore
from api.import_commands import import_files, imports
from api.job_commands import cancel, front, jobs
from api.keys_commands import audit, keys
from api.logs import configure_logs
from api.max_rate_command import max_rate
from api.meter_commands import measure, watch
from api.mlperf_command import loadgen
from api.place import use_server
from api.schedule_commands import schedules
from api.serve_model_command import serve_model
from api.settings import Settings, load_settings
from api.store_commands import backup, notify, prune
from api.stores import Stores, open_stores
from api.tune_command import tune
from api.workload_commands import workload

#: Commands that `--server` can stand before.
_REMOTE_COMMANDS = ("tune", "jobs", "front", "cancel", "explain", "recommend", "export", "schedules")


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
@click.option("--server", metavar="URL", help="Ask a Wattfront server instead of this machine's database. Its API key "
              "comes from WATTFRONT_API_KEY, --key-env or --key-file: a command line can be read by everybody on this "
              "machine.")  # fmt: skip
@click.option("--key-env", metavar="NAME", help="Environment variable with the server's API key.")
@click.option("--key-file", type=click.Path(path_type=Path), metavar="FILE", help="File with the server's API key.")
@click.option("-v", "--verbose", is_flag=True, help="Log what happens to standard error.")
@click.pass_context
def cli(
    context: click.Context, database: str | None, server: str | None, key_env: str | None, key_file: Path | None,
    verbose: bool,
) -> None:  # fmt: skip
    """Find, keep and serve the operating points at which an LLM server gives the most tokens per watt inside a
    latency SLA.
    """  # noqa: D205 - this text is the command's help
    settings = load_settings()
    configure_logs(settings.log_format, is_verbose=verbose)
    context.obj = settings.model_copy(update={"database_url": database}) if database else settings
    if server is not None:
        _use_server(context, server, key_env, key_file, database)
    elif key_env is not None or key_file is not None:
        raise UsageError("an API key is for a server: give --server URL too, or leave out --key-env and --key-file")


def _use_server(
    context: click.Context, url: str, key_env: str | None, key_file: Path | None, database: str | None
) -> None:
    """Let the command ask a server; refuse commands that are about this machine."""
    from api.remote import is_readable_on_the_way, key_from

    command = context.invoked_subcommand
    if command not in _REMOTE_COMMANDS:
        raise UsageError(
            f"--server is {url!r}, but `{command}` works on this machine alone; leave --server out. What can be asked "
            f"of a server: {', '.join(_REMOTE_COMMANDS)}"
        )
    if database is not None:
        raise UsageError(f"--database is {database!r}: a server has its own; leave out --database or --server")
    key = key_from(key_env, key_file)
    if key is not None and is_readable_on_the_way(url):
        print(f"warning: the key goes to {url} readable by everybody on the way; use https://", file=sys.stderr)
    use_server(context, url, key)


def _database_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--database", "database_url", metavar="URL", help="SQLAlchemy URL of the store.")(command)


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
@click.option("--host", help="Address to listen on; others than loopback need API keys [default: 127.0.0.1].")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on [default: 8710].")
@_database_option
@click.pass_obj
def serve(settings: Settings, host: str | None, port: int | None, database_url: str | None) -> None:
    """Serve the page and the REST interface."""
    gc.disable()  # what is loaded from here on stays: looking through it again and again takes a tenth of the start
    from api.access import require_keys
    from api.app import create_app
    from api.garbage import look_seldom
    from api.serving import serve_until_stopped
    from api.up import require_free_port, url_of

    settings = _at(_with_database(settings, database_url), host, port)
    stores = _stores(settings)
    require_keys(stores.keys, settings)
    require_free_port(settings)
    app = create_app(stores, settings)
    look_seldom()
    _say(f"serving at {url_of(settings)}; Ctrl-C stops")
    serve_until_stopped(app, settings)


@cli.command()
@click.option("--takes", multiple=True, metavar="NAME", help="Take only jobs of this device, named as jobs name it; "
              "simulated:* takes all simulated ones. May be given more than once [default: every job].")  # fmt: skip
@_database_option
@click.pass_obj
def worker(settings: Settings, takes: tuple[str, ...], database_url: str | None) -> None:
    """Run queued jobs, one at a time, until told to stop: after the running window, at a second signal at once."""
    from api.tracing import open_tracer
    from api.worker import work

    tracer = open_tracer("worker")
    stores = _stores(_with_database(settings, database_url))
    stop = threading.Event()
    _say(f"waiting for jobs on {', '.join(takes) or 'every device'}; Ctrl-C stops after the running window")
    signals = iter((stop.set, _interrupt))  # from the third on they change nothing: the end must not be cut short
    _on_signals(lambda: next(signals, lambda: None)())
    try:
        work(stores, settings, should_stop=stop, takes=takes or None, tracer=tracer)
    except KeyboardInterrupt:
        print("stopped at once; its job is back in the queue", file=sys.stderr)


@cli.command()
@click.option("--job", "job_files", type=click.Path(path_type=Path), multiple=True, metavar="JOB.yaml", help="Submit "
              "this job once (the same file again shows its result), follow it and print its front. May be given more "
              "than once; they run one after the other.")  # fmt: skip
@click.option("--exit", "should_exit", is_flag=True, help="Stop once the front is printed; the default without a "
              "terminal.")  # fmt: skip
@click.option("--open", "should_open", is_flag=True, help="Open the page in a browser, where there is a desktop.")
@click.option("--host", help="Address to listen on; others than loopback need API keys [default: 127.0.0.1].")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on [default: 8710].")
@_database_option
@click.pass_obj
def up(
    settings: Settings, job_files: tuple[Path, ...], should_exit: bool, should_open: bool, host: str | None,
    port: int | None, database_url: str | None,
) -> None:  # fmt: skip
    """Run service and worker on this machine until Ctrl-C."""
    from api.access import require_keys
    from api.terminal import follow, print_total_time, submit_once
    from api.up import Supervisor, open_page, require_free_port

    settings = _at(_with_database(settings, database_url), host, port)
    console = Console()
    stop = threading.Event()
    stores = _stores(settings)
    require_keys(stores.keys, settings)
    require_free_port(settings)
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


for _command in (
    tune,
    front,
    jobs,
    cancel,
    explain,
    watch,
    measure,
    max_rate,
    loadgen,
    guard,
    restore,
    calibrate,
    keys,
    audit,
    recommend,
    export,
    index,
    schedules,
    import_files,
    imports,
    backup,
    prune,
    notify,
    serve_model,
    workload,
):
    cli.add_command(_command)


def _stores(settings: Settings) -> Stores:
    return open_stores(settings.database_url, busy_timeout_s=settings.database_timeout_s)


def _with_database(settings: Settings, url: str | None) -> Settings:
    return settings.model_copy(update={"database_url": url}) if url else settings


def _at(settings: Settings, host: str | None, port: int | None) -> Settings:
    return settings.model_copy(update={"host": host or settings.host, "port": settings.port if port is None else port})


def _say(words: str) -> None:
    """Tell whoever sits at a terminal that the process runs; elsewhere `-v` logs what happens."""
    if sys.stderr.isatty():
        print(words, file=sys.stderr, flush=True)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _on_signals(action: Callable[[], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: action())


if __name__ == "__main__":
    main()
