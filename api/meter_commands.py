"""The commands `watch` and `measure`: a device's power now, and the energy of any command. Need no database.

What they report goes to standard error where standard output belongs to the command that is measured.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from api.settings import Settings

if TYPE_CHECKING:  # what a command needs is imported when it runs
    from rich.console import Console

    from api import schemas
    from api.measure import Measured
    from api.watch import View
    from probes.detect import Host
    from probes.device import Device


@click.command()
@click.argument("device", default="auto")
@click.option("--interval", "interval_s", type=float, default=1.0, show_default=True, metavar="S",
              help="Seconds between looks, 0.05 to 60.")  # fmt: skip
@click.option("--count", "num_looks", type=click.IntRange(min=1), metavar="N", help="Looks to take [default: until "
              "Ctrl-C].")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object a look.")
@click.pass_obj
def watch(settings: Settings, device: str, interval_s: float, num_looks: int | None, as_json: bool) -> None:
    """Show power, clocks, temperature and limits of a device until Ctrl-C.

    DEVICE is auto, cpu, gpu, cuda:N or a UUID; see wattfront doctor. It may run beside a job.
    """
    from rich.console import Console

    from api.prepare import probe_host
    from api.stores import utc_now
    from api.watch import Watch, require_interval

    require_interval(interval_s)
    host = probe_host(settings)
    console, notes = Console(), Console(stderr=True) if as_json else Console()
    found = _found(device, host)
    watching = Watch(found, interval_s=interval_s, clock=host.clock, now=utc_now)
    for line in _missing(device, found, host):
        notes.print(line, soft_wrap=True, markup=False, highlight=False)
    view = _view(console, as_json)
    try:
        watching.run(view, num_looks)
    except KeyboardInterrupt:
        pass  # the usual end
    finally:
        view.close()
        notes.print(watching.summary, soft_wrap=True, markup=False, highlight=False)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND [ARGS]...")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, gpu, cuda:N or a UUID.")
@click.option("--repeats", "num_repeats", type=click.IntRange(1, 10_000), default=1, show_default=True, metavar="N",
              help="Runs, each begun after a random delay; their mean has a 95 % interval.")  # fmt: skip
@click.option("--idle", "idle_s", type=click.FloatRange(0, 3600), default=0.0, metavar="S", help="Measure the device "
              "for so long before; reported apart, subtracted from nothing.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the delays.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object on standard output after the command's.")
@click.pass_obj
def measure(
    settings: Settings, command: tuple[str, ...], device: str, num_repeats: int, idle_s: float, seed: int, as_json: bool
) -> None:  # fmt: skip
    """Measure the energy of any command; its exit code is ours, its input and output are left alone.

    127 when it cannot be started. On a CPU without energy counters the figure is a labelled estimate from CPU time.
    """
    from api.measure import CannotStart
    from api.measure import measure as run_measured
    from api.meter_words import measured_lines, run_words
    from api.prepare import probe_host
    from probes.holder import hold

    host = probe_host(settings)
    found = _found(device, host)
    for line in _missing(device, found, host):
        _tell(line)
    try:
        with hold(found.info.uuid):
            measured = run_measured(
                found, command, clock=host.clock, num_repeats=num_repeats, idle_s=idle_s, seed=seed,
                on_run=lambda run: _tell(run_words(run)) if num_repeats > 1 else None,
            )  # fmt: skip
    except CannotStart as error:
        _tell(str(error))
        sys.exit(127)
    if as_json:
        click.echo(_measured_out(measured).model_dump_json(indent=2))
    else:
        for line in measured_lines(measured):
            _tell(line)
    sys.exit(measured.exit_code)


def _view(console: Console, as_json: bool) -> View:
    from api.watch import JsonView, LineView, LiveView

    if as_json:
        return JsonView(sys.stdout)
    return LiveView(console) if console.is_terminal else LineView(console)


def _found(name: str, host: Host) -> Device:
    """Find a device; where there is none of that name, say also why there are no others."""
    from probes.detect import diagnose, find_device, list_devices
    from probes.errors import UnknownDevice

    devices = list_devices(host)
    try:
        return find_device(name, devices)
    except UnknownDevice as error:
        theirs = {one.name for device in devices for one in device.capabilities()}
        gone = [one.reason for one in diagnose(host) if not one.is_available and one.name not in theirs]
        raise UnknownDevice("; ".join([str(error), *gone])) from error


def _missing(name: str, device: Device, host: Host) -> list[str]:
    """Return which better sources of power are not there, and what is used instead; nothing beside a counter."""
    from api.meter_words import source_words
    from probes.detect import diagnose
    from probes.device import DeviceKind, Method
    from probes.settings import DEVICE_KNOBS

    source = device.power_source
    is_fallback = name == "auto" and device.info.kind is DeviceKind.CPU
    if source is not None and source.method is Method.COUNTER and not is_fallback:
        return []
    asked = diagnose(host) if is_fallback else device.capabilities()
    gone = [one for one in asked if not one.is_available and not one.name.endswith(DEVICE_KNOBS)]
    lines = [
        f"missing: {one.reason}" if one.reason.startswith(one.name) else f"missing: {one.name}: {one.reason}"
        for one in gone
    ]
    return [*lines, f"used instead: {device.info.name}, {source_words(source)}"]


def _measured_out(measured: Measured) -> schemas.MeasuredOut:
    from api import schemas
    from api.records import energy_out, estimate_out

    return schemas.MeasuredOut(
        command=list(measured.command),
        device_uuid=measured.device.uuid,
        device_name=measured.device.name,
        num_repeats=measured.num_repeats,
        exit_code=measured.exit_code,
        is_valid=measured.is_valid,
        energy_j=estimate_out(measured.energy_j()),
        mean_power_w=estimate_out(measured.mean_power_w()),
        duration_s=estimate_out(measured.duration_s()),
        runs=[schemas.RunOut(exit_code=run.exit_code, energy=energy_out(run.reading)) for run in measured.runs],
        idle=None if measured.idle is None else energy_out(measured.idle),
    )


def _tell(line: str) -> None:
    click.echo(f"wattfront: {line}", err=True)
