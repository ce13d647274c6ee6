"""Laws of setting and giving back, whatever fails and wherever the process dies."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.errors import RestoreFailed, Uncontrolled
from probes.settings import DeviceSettings
from tests.probes.control.kept_gpus import (
    BOTH,
    GET_LIMIT,
    NO_PERMISSION,
    RESET_CLOCK,
    SET_CLOCK,
    SET_LIMIT,
    UNKNOWN_ERROR,
    KeptGpus,
    make_kept_gpus,
)
from tests.probes.fake_gpu import FakeGpu

FREE = [(None, 700_000), (None, 500_000)]


class Crash(BaseException):
    """The process dies here."""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptGpus:
    return make_kept_gpus(tmp_path, monkeypatch)


@contextmanager
def new_machine() -> Iterator[KeptGpus]:
    """Return a machine of its own to each example."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        yield make_kept_gpus(Path(folder), patch)


SETTINGS = st.builds(
    DeviceSettings,
    sm_clock_cap_mhz=st.none() | st.sampled_from([210, 1005, 1980]),
    power_cap_w=st.none() | st.sampled_from([200, 400, 600, 700]),
)

CALLS = (
    SET_CLOCK,
    RESET_CLOCK,
    SET_LIMIT,
    GET_LIMIT,
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetSupportedGraphicsClocks",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetUUID",
)

TIMEOUT = 10

#: Mostly no error; a timeout stands for a write that took effect all the same.
CODES = st.sampled_from([0, 0, 0, 0, 0, 2, 3, NO_PERMISSION, TIMEOUT, UNKNOWN_ERROR])


def script(gpu: FakeGpu, codes: Iterator[int]) -> None:
    """Let every call of a GPU fail by the next code."""

    def answer(name: str) -> Callable[[], int]:
        def code() -> int:
            number = next(codes, 0)
            if number == TIMEOUT and name == SET_CLOCK:
                gpu.locked = (210, 210)
            elif number == TIMEOUT and name == SET_LIMIT:
                gpu.limit_mw = 250_000
            elif number == TIMEOUT and name == RESET_CLOCK:
                gpu.locked = None
            return number

        return code

    for name in CALLS:
        gpu.refusals[name] = answer(name)


@settings(deadline=None, max_examples=150)
@given(steps=st.lists(st.tuples(SETTINGS, st.lists(CODES, max_size=40)), min_size=1, max_size=4))
def test_a_failed_apply_leaves_everything_as_found_or_on_record(
    steps: list[tuple[DeviceSettings, list[int]]],
) -> None:
    """POWER-32: whatever calls fail, settings are all in force, or all gone, or the failure is in the journal."""
    with new_machine() as machine:
        keeper, holder = machine.keeper(), machine.holder()
        for chosen, codes in steps:
            shared = iter(codes)
            for gpu in machine.gpus:
                script(gpu, shared)
            try:
                keeper.apply(BOTH, chosen, holder)
            except Uncontrolled:
                assert machine.state() == FREE
                assert machine.journal.entries() == ()
            except RestoreFailed:
                assert keeper.failed()
            else:
                for gpu, free in zip(machine.gpus, FREE, strict=True):
                    cap_mhz, limit_w = chosen.sm_clock_cap_mhz, chosen.power_cap_w
                    assert gpu.locked == (None if cap_mhz is None else (210, cap_mhz))
                    assert gpu.limit_mw == (free[1] if limit_w is None else limit_w * 1000)
        for gpu in machine.gpus:
            gpu.refusals.clear()
        keeper.restore(BOTH)
        assert machine.state() == FREE
        assert machine.journal.entries() == ()


@settings(deadline=None, max_examples=100)
@given(chosen=SETTINGS, codes=st.lists(CODES, max_size=30))
def test_a_restore_that_succeeds_has_put_everything_back(chosen: DeviceSettings, codes: list[int]) -> None:
    """POWER-35: success means that all is as found; failure means that it is on record, and repeats until done."""
    with new_machine() as machine:
        keeper = machine.keeper()
        keeper.apply(BOTH, chosen, machine.holder())
        shared = iter(codes)
        for gpu in machine.gpus:
            script(gpu, shared)
        for _ in range(len(codes) + 1):
            try:
                keeper.restore(BOTH)
            except RestoreFailed:
                assert keeper.failed()
            else:
                break
        assert machine.state() == FREE
        assert machine.journal.entries() == ()


@settings(deadline=None, max_examples=100)
@given(former=SETTINGS, chosen=SETTINGS, dies_after=st.integers(min_value=0, max_value=40))
def test_a_process_may_die_at_any_call(former: DeviceSettings, chosen: DeviceSettings, dies_after: int) -> None:
    """POWER-34: wherever a process dies between two driver calls, its successor finds all that it must put back."""
    with new_machine() as machine:
        holder = machine.holder()
        keeper = machine.keeper()
        keeper.apply(BOTH, former, holder)
        asked = 0

        def die() -> int:
            nonlocal asked
            asked += 1
            if asked > dies_after:
                raise Crash
            return 0

        for gpu in machine.gpus:
            gpu.refusals.update(dict.fromkeys(CALLS, die))
        with suppress(Crash):
            keeper.apply(BOTH, chosen, holder)
        for gpu in machine.gpus:
            gpu.refusals.clear()
        machine.kill(holder)
        machine.keeper().recover()
        assert machine.state() == FREE
        assert machine.journal.entries() == ()
