"""Ways of dying, with real processes: a guard, its workers, and a driver that remembers what was set.

The driver is the C library of tests/probes/native: what a process sets there outlives it, as on a GPU.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import structlog

from tests.probes.native import fixtures
from tests.probes.native.fake_library import FIRST_UUID, NativeGpu, NativeNvml

native_library = fixtures.native_library
native_nvml = fixtures.native_nvml

log = structlog.get_logger()

#: Locked clocks in MHz, and the limit in mW.
State = tuple[tuple[int, int] | None, int]

ROOT = Path(__file__).parents[3]
#: Far more than anything here takes.
LONGEST_S = 60.0
#: Short, and yet longer than a busy machine keeps a worker from running: heartbeats come four times as often.
LAPSE_S = 2.0
#: A lapse that no test lives to see: what is put back then was not put back for silence.
NEVER_S = 600.0
ADMIN_LIMIT_MW = 500_000
#: Nobody's, on Debian; any user but root will do.
NOBODY = 65534
NO_SUCH_USER = 54321
#: As found, and as the workers here set it.
FREE: State = (None, ADMIN_LIMIT_MW)
SET: State = ((210, 900), 400_000)

LOG_TO_STDERR = """
import sys
import structlog
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
"""

GUARD = (
    LOG_TO_STDERR
    + """
from pathlib import Path
from probes.control.guard import run_guard
from probes.control.guard_config import load_config
from probes.detect import Host
is_restored = run_guard(load_config(Path(sys.argv[1])), Host(), lambda: print("listening", flush=True))
sys.exit(0 if is_restored else 1)
"""
)

OPEN = (
    LOG_TO_STDERR
    + """
import os, signal
from pathlib import Path
from probes.control.opening import blocked, open_control, recover
from probes.detect import Host
from probes.errors import ProbeError
from probes.settings import DeviceSettings
socket, state_dir, uuid = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
def control():
    return open_control([uuid], host=Host(), state_dir=state_dir, guard_socket=socket, label="a job")
"""
)

#: Sets, then answers each line it is told.
WORKER = (
    OPEN
    + """
ours = control()
def tell(*words):
    print(*words, flush=True)
def attempt(call):
    try:
        return call()
    except ProbeError as error:
        return error.kind
tell(attempt(lambda: ours.apply(DeviceSettings(sm_clock_cap_mhz=900, power_cap_w=400))))
for line in sys.stdin:
    word = line.strip()
    if word == "problems":
        tell(*ours.problems())
    elif word == "restore":
        tell(attempt(ours.restore))
    elif word == "fork":
        if (child := os.fork()) == 0:
            tell(*ours.problems())
            ours.close()
            signal.pause()
        tell(child)
"""
)

#: Puts back at the end of the interpreter, whichever way that comes.
LOCAL_WORKER = (
    OPEN
    + """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
ours = control()
ours.apply(DeviceSettings(sm_clock_cap_mhz=900, power_cap_w=400))
print("None", flush=True)
while True:
    signal.pause()
"""
)

RECOVER = (
    OPEN
    + """
done = recover(host=Host(), state_dir=state_dir, guard_socket=socket)
print(*(recovery.outcome for recovery in done), *blocked(state_dir), flush=True)
"""
)

STRANGER = (
    OPEN
    + f"""
import probes.control.guard_client
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NO_SUCH_USER})
try:
    control()
except ProbeError as error:
    print(error.kind, error, flush=True)
"""
)


class Machine:
    """One fake GPU that an administrator limited to 500 W, and a place for guard and journal."""

    def __init__(self, nvml: NativeNvml, folder: Path, stack: ExitStack) -> None:
        self.nvml = nvml
        self.folder = folder
        self.socket = folder / "run/guard.sock"
        self.state_dir = folder / "state"
        self.config = folder / "guard.toml"
        self._stack = stack
        self.gpu.limit_mw = ADMIN_LIMIT_MW
        self.configure()

    @property
    def gpu(self) -> NativeGpu:
        return self.nvml.gpu()

    @property
    def state(self) -> State:
        return self.gpu.locked, self.gpu.limit_mw

    def configure(self, more: str = "", *, lapse_s: float = NEVER_S) -> None:
        lines = [f'socket = "{self.socket}"', f'state_dir = "{self.state_dir}"', f"lapse_s = {lapse_s}", more]
        self.config.write_text("\n".join(lines) + "\n")

    def start_guard(self) -> subprocess.Popen[str]:
        guard = self.start(GUARD, self.config)
        assert said_by(guard) == "listening"
        return guard

    def start_worker(self, script: str = WORKER, *, is_privileged: bool = False) -> subprocess.Popen[str]:
        """Start a worker that has set its cap."""
        worker = self.start(script, self.socket, self.state_dir, FIRST_UUID, is_privileged=is_privileged)
        assert said_by(worker) == "None"
        assert self.state == SET
        return worker

    def start(self, script: str, *arguments: object, is_privileged: bool = True) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            env=self.nvml.environ(is_privileged=is_privileged),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process

    def restored_after_s(self) -> float:
        """Wait until everything is as found; return how long that took."""
        began_s = time.monotonic()
        wait_until(lambda: self.state == FREE, what="clock and limit as they were found")
        return time.monotonic() - began_s


@pytest.fixture
def machine(native_nvml: NativeNvml) -> Iterator[Machine]:
    # Not in pytest's folders: they may use up a socket path's hundred letters, and are closed to other users.
    with tempfile.TemporaryDirectory(prefix="wattfront-", dir="/tmp") as folder, ExitStack() as stack:
        yield Machine(native_nvml, Path(folder), stack)


def said_by(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def asked(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    return said_by(process)


def wait_until(look: Callable[[], bool], *, what: str) -> None:
    deadline_s = time.monotonic() + LONGEST_S
    while not look():
        assert time.monotonic() < deadline_s, f"waited {LONGEST_S:g} s for {what}"
        time.sleep(0.01)


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    assert process.wait(LONGEST_S) == -signal.SIGKILL


def test_a_killed_worker_is_noticed_at_once(machine: Machine) -> None:
    """POWER-34: after SIGKILL of a worker the guard puts back its clock and the administrator's 500 W."""
    machine.start_guard()
    killed(machine.start_worker())
    log.info("restored", after="SIGKILL", seconds=machine.restored_after_s())
    wait_until(lambda: not list(machine.state_dir.glob("GPU-*")), what="an empty journal")


def test_a_stalled_worker_loses_its_lease(machine: Machine) -> None:
    """POWER-41: a worker that hangs loses its settings after the lapse, and learns it when it goes on."""
    machine.configure(lapse_s=LAPSE_S)
    machine.start_guard()
    worker = machine.start_worker()
    assert asked(worker, "problems") == ""
    worker.send_signal(signal.SIGSTOP)
    log.info("restored", after="SIGSTOP", seconds=machine.restored_after_s(), lapse_s=LAPSE_S)
    worker.send_signal(signal.SIGCONT)
    assert asked(worker, "problems") == "control_lease_lost"
    assert asked(worker, "restore") == "None"


def test_a_lease_outlives_its_lapse_while_heartbeats_come(machine: Machine) -> None:
    """POWER-41: a live worker that says nothing but heartbeats keeps its settings."""
    machine.configure(lapse_s=LAPSE_S)
    machine.start_guard()
    worker = machine.start_worker()
    until_s = time.monotonic() + 2 * LAPSE_S
    wait_until(lambda: machine.state != SET or time.monotonic() > until_s, what="two lapses")
    assert machine.state == SET
    assert asked(worker, "problems") == ""


def test_a_forked_child_does_not_keep_the_lease(machine: Machine) -> None:
    """POWER-34: after SIGKILL of a worker everything is put back although a child that it forked lives on."""
    machine.start_guard()
    worker = machine.start_worker()
    first = asked(worker, "fork")
    child = int(first or said_by(worker))
    try:
        killed(worker)
        machine.restored_after_s()
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_next_guard_puts_back_what_two_kills_left(machine: Machine) -> None:
    """POWER-34: with worker and guard killed the cap stays, until a guard starts: it restores before it listens."""
    guard, worker = machine.start_guard(), machine.start_worker()
    guard.send_signal(signal.SIGSTOP)
    killed(worker)
    killed(guard)
    assert machine.state == SET
    machine.start_guard()
    assert machine.state == FREE


def test_the_next_worker_puts_back_what_two_kills_left(machine: Machine) -> None:
    """POWER-34: with worker and guard killed the cap stays, until a worker with the privilege starts."""
    guard, worker = machine.start_guard(), machine.start_worker()
    guard.send_signal(signal.SIGSTOP)
    killed(worker)
    killed(guard)
    arguments = (machine.socket, machine.state_dir, FIRST_UUID)
    assert said_by(machine.start(RECOVER, *arguments, is_privileged=False)) == f"restore_failed {FIRST_UUID}"
    assert machine.state == SET
    assert said_by(machine.start(RECOVER, *arguments)) == "put_back"
    assert machine.state == FREE


def test_a_guard_that_was_killed_takes_back_what_a_live_worker_holds(machine: Machine) -> None:
    """A worker whose guard was killed learns it, and the next guard has put back everything when it listens."""
    guard, worker = machine.start_guard(), machine.start_worker()
    killed(guard)
    assert asked(worker, "problems") == "control_lease_lost"
    assert machine.state == SET
    machine.start_guard()
    assert machine.state == FREE
    assert asked(worker, "restore") == "None"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_guard_that_is_told_to_end_puts_back_first(machine: Machine, number: signal.Signals) -> None:
    """POWER-34: on SIGTERM, SIGINT or SIGHUP the guard restores, tells its worker, removes its socket, exits with 0."""
    guard, worker = machine.start_guard(), machine.start_worker()
    guard.send_signal(number)
    assert guard.wait(LONGEST_S) == 0
    assert machine.state == FREE
    assert not machine.socket.exists()
    assert asked(worker, "problems") == "control_lease_lost"


def test_without_the_privilege_only_the_guard_can_set(machine: Machine) -> None:
    """POWER-23: an unprivileged process is refused and nothing is set; through the guard it can."""
    arguments = (machine.socket, machine.state_dir, FIRST_UUID)
    assert said_by(machine.start(WORKER, *arguments, is_privileged=False)) == "uncontrolled"
    assert machine.state == FREE
    machine.start_guard()
    machine.start_worker(is_privileged=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_control_from_within_ends_with_its_process(machine: Machine, number: signal.Signals) -> None:
    """POWER-34: without a guard, a worker that SIGTERM or SIGINT ends puts back what it set."""
    worker = machine.start_worker(LOCAL_WORKER, is_privileged=True)
    worker.send_signal(number)
    worker.wait(LONGEST_S)
    assert machine.state == FREE
    assert list(machine.state_dir.glob("GPU-*")) == []


def test_control_from_within_is_recovered_after_a_kill(machine: Machine) -> None:
    """POWER-34: without a guard, what a killed worker set stays until the next one starts."""
    killed(machine.start_worker(LOCAL_WORKER, is_privileged=True))
    assert machine.state == SET
    assert said_by(machine.start(RECOVER, machine.socket, machine.state_dir, FIRST_UUID)) == "put_back"
    assert machine.state == FREE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_who_is_not_allowed_is_refused(machine: Machine) -> None:
    """The kernel's word counts: a user who can reach the socket but is not in the configuration is sent away."""
    machine.configure(f"group = {NOBODY}\nusers = [{NOBODY}]")
    machine.folder.chmod(0o711)
    machine.start_guard()
    stranger = machine.start(STRANGER, machine.socket, machine.state_dir, FIRST_UUID, is_privileged=False)
    said = said_by(stranger)
    assert said.startswith("guard_unavailable ")
    assert f"user {NO_SUCH_USER}" in said
