"""`wattfront guard` and `wattfront restore`: set devices under a lease, and put back by hand.

Knows how to say it; the work is `probes.control`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from api.errors import UsageError
from api.settings import Settings
from probes.control.actuator import Found
from probes.control.guard import run_guard
from probes.control.guard_answers import GuardStatus
from probes.control.guard_config import load_config
from probes.control.journal import Damaged, Entry, Journal
from probes.control.keeper import Outcome, Recovery
from probes.control.opening import guard_status, recover
from probes.detect import Host
from probes.errors import DeviceInUse

_DONE = {
    Outcome.PUT_BACK: "put back",
    Outcome.RESET: "reset: what was found is not known any more",
    Outcome.REBOOTED: "nothing to put back: the machine was restarted since",
    Outcome.DRIVER_RELOADED: "nothing to put back: the driver was loaded anew since",
    Outcome.FAILED: "could not be put back",
}


@click.command()
@click.option("--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="What may be set, and "
              "by whom (TOML); without it root and the group wattfront may set what the devices take.")  # fmt: skip
@click.option("--socket", type=click.Path(path_type=Path), metavar="PATH", help="Where to listen [default: the file's, "
              "else /run/wattfront/guard.sock].")  # fmt: skip
@click.option("--state-dir", type=click.Path(path_type=Path), metavar="DIR", help="Where to keep the journal of what "
              "was found [default: the file's, else /var/lib/wattfront].")  # fmt: skip
def guard(config_file: Path | None, socket: Path | None, state_dir: Path | None) -> None:
    """Set clocks and limits for unprivileged workers, and put them back when those end, however they end.

    Needs root. Ends on SIGTERM or Ctrl-C, after everything is put back; exit code 1 when something could not be.
    """
    config = load_config(config_file, socket=socket, state_dir=state_dir)
    is_restored = run_guard(config, Host(), lambda: click.echo(f"guard listens on {config.socket}"))
    sys.exit(0 if is_restored else 1)


@click.command()
@click.argument("device", required=False)
@click.option("--state-dir", type=click.Path(path_type=Path), metavar="DIR", help="Where that journal is [default: "
              "WATTFRONT_STATE_DIR, else /var/lib/wattfront where it is there, else your own].")  # fmt: skip
@click.pass_obj
def restore(settings: Settings, device: str | None, state_dir: Path | None) -> None:
    """Put back what was found on DEVICE (a UUID or the beginning of one), or on all, before it was set.

    The guard, where one answers, does it for all devices. Does nothing where nothing is set. A device that a live
    process holds is refused. Exit code 1 when something could not be put back.
    """
    journal = Journal((state_dir or settings.state_dir).absolute())
    before = _entries(journal, device)
    done = recover(
        host=Host(),
        state_dir=journal.folder,
        guard_socket=settings.guard_socket,
        prior_caps_mhz=settings.prior_sm_clock_caps_mhz,
        device_uuids=tuple(before),
    )
    for recovery in done:
        for line in _lines(recovery, before.get(recovery.device_uuid)):
            click.echo(line)
    status = guard_status(settings.guard_socket) or GuardStatus(held=(), failed={})
    failed = {recovery.device_uuid: recovery.detail for recovery in done if recovery.outcome is Outcome.FAILED}
    for uuid, detail in status.failed.items():
        if uuid not in failed:
            click.echo(f"{uuid}: {_DONE[Outcome.FAILED]} ({detail})")
    if any(_is_meant(uuid, device) for uuid in {*failed, *status.failed}):
        sys.exit(1)
    _refuse_held(before, journal, status, device)
    if not done:
        click.echo(f"nothing to put back{f' on {device}' if device else ''}: {journal.folder} has no entry")


def _entries(journal: Journal, device: str | None) -> Mapping[str, Entry | Damaged]:
    """Return the entries that are meant, by device; raise UsageError where `device` is not clear."""
    entries = {entry.device_uuid: entry for entry in journal.entries()}
    found = {uuid: entry for uuid, entry in entries.items() if _is_meant(uuid, device)}
    if device is not None and len(found) > 1:
        raise UsageError(f"DEVICE is {device!r}: the beginning of {', '.join(found)}; give more of one of them")
    return found


def _is_meant(uuid: str, device: str | None) -> bool:
    if device is None:
        return True
    wanted, uuid = device.lower(), uuid.lower()
    return bool(wanted) and (uuid.startswith(wanted) or uuid.partition("-")[2].startswith(wanted))


def _lines(recovery: Recovery, before: Entry | Damaged | None) -> list[str]:
    """Return a line for each knob, with what was found where that was put back."""
    uuid, said = recovery.device_uuid, _DONE[recovery.outcome]
    if not isinstance(before, Entry):
        return [f"{uuid}: {said} ({recovery.detail})"]
    is_put_back = recovery.outcome is Outcome.PUT_BACK
    lines = [f"{uuid}: {knob} {said}{_value(found) if is_put_back else ''}" for knob, found in before.found.items()]
    return [*lines, f"{uuid}: {recovery.detail}"] if recovery.is_alert else lines


def _value(found: Found | None) -> str:
    if not found:
        return " (none was known before: the lock is undone)"
    return f" ({', '.join(f'{name} {number}' for name, number in found.items())})"


def _refuse_held(
    before: Mapping[str, Entry | Damaged], journal: Journal, status: GuardStatus, device: str | None
) -> None:
    """Raise DeviceInUse for what is still set: its holder lives, or may, and will put it back itself."""
    held = {
        one.device_uuid: f"process {one.pid} ({one.label or f'user {one.uid}'}) through the guard"
        for one in status.held
        if _is_meant(one.device_uuid, device)
    }
    for uuid, entry in before.items():
        if isinstance(entry, Entry) and journal.entry(uuid) == entry and entry.holder.process.may_be_alive():
            place = " in another PID namespace (a container)" if entry.holder.process.is_elsewhere() else ""
            held[uuid] = f"{entry.holder}{place}"
    if held:
        said = "; ".join(f"{uuid} is set by {holder}" for uuid, holder in held.items())
        raise DeviceInUse(f"{said}; wait until it is done, or end it")
