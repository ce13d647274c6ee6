"""CPU time of the engine and of everybody else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from probes.cpu.processes import (
    HostLoad,
    HostLoadReader,
    HostWatch,
    foreign_share,
    judge_load,
    parse_process,
    read_processes,
)
from probes.validity import Note, Reason
from tests.probes.fake_clock import FakeClock
from tests.probes.fake_host import FakeProc

ENGINE, CHILD, GRANDCHILD, STRANGER = 100, 101, 102, 200


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    """An engine with a child and its child, below this process, and a stranger."""
    proc = FakeProc(tmp_path / "proc")
    proc.write_process(os.getpid(), cpu_s=5.0)
    proc.write_process(ENGINE, ppid=os.getpid(), cpu_s=10.0)
    proc.write_process(CHILD, ppid=ENGINE, cpu_s=2.0)
    proc.write_process(GRANDCHILD, ppid=CHILD, cpu_s=1.0)
    proc.write_process(STRANGER, cpu_s=70.0)
    return proc


def make_reader(proc: FakeProc, *pids: int) -> HostLoadReader:
    return HostLoadReader(pids, proc=proc.root, cores=range(2))


def make_load(*, engine_s: float = 0.0, known_s: float = 0.0, busy_s: float = 0.0) -> HostLoad:
    return HostLoad(engine_s=engine_s, known_s=known_s, busy_s=busy_s, gone_pids=())


def test_descendants_belong_to_the_engine(proc: FakeProc) -> None:
    """The engine's time includes its children's and theirs; the known time includes our own too."""
    load = make_reader(proc, ENGINE).read()
    assert pytest.approx(13.0) == load.engine_s
    assert pytest.approx(18.0) == load.known_s
    assert load.gone_pids == ()


def test_a_child_that_ended_is_not_lost(proc: FakeProc) -> None:
    """When a child ends, its parent has waited for it and carries its time on."""
    reader = make_reader(proc, ENGINE)
    before = reader.read()
    proc.end_process(GRANDCHILD)
    proc.write_process(CHILD, ppid=ENGINE, cpu_s=3.0)
    assert pytest.approx(before.engine_s) == reader.read().engine_s


def test_only_the_usable_cores_count(proc: FakeProc) -> None:
    """Work on cores that this process may not use is not counted as load."""
    proc.work(8.0)
    assert pytest.approx(4.0) == HostLoadReader([], proc=proc.root, cores=[1]).read().busy_s


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_process_that_ended_is_gone(proc: FakeProc, state: str) -> None:
    """A zombie is gone although it is still in the table."""
    reader = make_reader(proc, ENGINE)
    proc.write_process(ENGINE, cpu_s=10.0, state=state)
    assert reader.read().gone_pids == (ENGINE,)


def test_a_process_missing_from_the_table_is_gone(proc: FakeProc) -> None:
    """A process that was reaped is gone."""
    reader = make_reader(proc, ENGINE)
    proc.end_process(ENGINE)
    assert reader.read().gone_pids == (ENGINE,)


def test_a_pid_used_again_is_another_process(proc: FakeProc) -> None:
    """A process of the same pid that started later is not the engine."""
    reader = make_reader(proc, ENGINE)
    proc.write_process(ENGINE, cpu_s=0.0, started=999)
    assert reader.read().gone_pids == (ENGINE,)


def test_a_pid_that_never_was_is_gone(proc: FakeProc) -> None:
    """A wrong pid is reported, not measured as idle."""
    assert make_reader(proc, 4242).read().gone_pids == (4242,)


def test_names_may_hold_spaces_and_brackets() -> None:
    """The process name cannot shift the fields after it."""
    row = parse_process("7 (a) b (c)) R 3 7 7 0 -1 0 0 0 0 0 10 20 30 40 20 0 1 0 555 0 0")
    assert (row.ppid, row.has_ended, row.ticks, row.started) == (3, False, 100, 555)


def test_a_real_process_table_can_be_read() -> None:
    """This process is in the kernel's own table, started by the parent it says."""
    assert os.getppid() == read_processes(Path("/proc"))[os.getpid()].ppid


def test_a_real_child_that_ends_is_noticed() -> None:
    """A child process that exits is gone at the next look."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        reader = HostLoadReader([child.pid], proc=Path("/proc"), cores=os.sched_getaffinity(0))
        assert reader.read().gone_pids == ()
        child.communicate(b"\n")
        assert (child.pid,) == reader.read().gone_pids


@pytest.mark.parametrize(
    ("foreign_s", "reasons", "notes"),
    [
        (2.0, (), ()),
        (6.0, (), (f"{Note.FOREIGN_CPU_LOAD}:0.30",)),
        (12.0, (Reason.FOREIGN_CPU_LOAD,), (f"{Note.FOREIGN_CPU_LOAD}:0.60",)),
    ],
)
def test_foreign_load_is_noted_and_then_refused(
    foreign_s: float, reasons: tuple[str, ...], notes: tuple[str, ...]
) -> None:
    """Above a quarter of the cores others are noted, above half they make the window invalid."""
    after = make_load(known_s=5.0, busy_s=5.0 + foreign_s)
    assert (reasons, notes) == judge_load(make_load(), after, cores_s=20.0)


@pytest.mark.parametrize(("known_s", "busy_s", "expected"), [(9.0, 5.0, 0.0), (-3.0, 5.0, 0.25), (0.0, 99.0, 1.0)])
def test_a_share_is_between_nothing_and_all(known_s: float, busy_s: float, expected: float) -> None:
    """Ticks that do not add up never give a negative share or more than all."""
    after = make_load(known_s=known_s, busy_s=busy_s)
    assert expected == foreign_share(make_load(), after, cores_s=20.0)


def test_a_watch_judges_the_time_between_start_and_stop(proc: FakeProc, clock: FakeClock) -> None:
    """Strangers that use 60 % of two cores for 10 s are found out; our own work is not held against us."""
    watch = HostWatch(make_reader(proc, ENGINE), num_cores=2, clock=clock)
    watch.start()
    clock.advance(10.0)
    proc.work(12.0 + 6.0)
    proc.write_process(ENGINE, ppid=os.getpid(), cpu_s=16.0)
    assert ((Reason.FOREIGN_CPU_LOAD,), (f"{Note.FOREIGN_CPU_LOAD}:0.60",)) == watch.stop()


def test_a_watch_that_never_started_has_nothing_to_say(proc: FakeProc, clock: FakeClock) -> None:
    """Stop without start finds nothing."""
    assert HostWatch(make_reader(proc), num_cores=2, clock=clock).stop() == ((), ())
