"""What every DeviceControl must do, whoever sets. A test module gives `machine` and `control` as fixtures."""

from __future__ import annotations

import os
import signal
from types import FrameType

import pytest

from probes.control.seam import DeviceControl
from probes.errors import RestoreFailed
from tests.probes.control.kept_gpus import CAPPED, RESET_CLOCK, UNKNOWN_ERROR, KeptGpus

FREE = [(None, 700_000), (None, 500_000)]
SET = [((210, 1005), 400_000), ((210, 1005), 400_000)]


class ControlContract:
    """Tests of the seam, over two GPUs of which an administrator limited one to 500 W."""

    def test_settings_come_and_go(self, machine: KeptGpus, control: DeviceControl) -> None:
        """What is applied holds until it is restored, then all is as found; restoring again changes nothing."""
        control.apply(CAPPED)
        assert machine.state() == SET
        assert control.problems() == ()
        control.restore()
        control.restore()
        assert machine.state() == FREE

    def test_closing_restores(self, machine: KeptGpus, control: DeviceControl) -> None:
        """Close gives everything back, and can be repeated."""
        control.apply(CAPPED)
        control.close()
        control.close()
        assert machine.state() == FREE

    def test_a_failed_restore_is_tried_again(self, machine: KeptGpus, control: DeviceControl) -> None:
        """Restore raises every time while a device does not take back what was found; closing succeeds once it does."""
        control.apply(CAPPED)
        machine.gpus[0].refusals[RESET_CLOCK] = UNKNOWN_ERROR
        for _ in range(2):
            with pytest.raises(RestoreFailed, match="sm_clock_cap_mhz"):
                control.restore()
        assert FREE[1] == machine.state()[1]
        machine.gpus[0].refusals.clear()
        control.close()
        assert machine.state() == FREE

    def test_a_signal_does_not_interrupt_a_restore(self, machine: KeptGpus, control: DeviceControl) -> None:
        """POWER-33: a SIGTERM that arrives between two writes of a restore is handled after the last of them."""
        heard: list[list[tuple[tuple[int, int] | None, int]]] = []

        def hear(_number: int, _frame: FrameType | None) -> None:
            heard.append(machine.state())
            raise SystemExit(1)

        def interrupt() -> int:
            os.kill(os.getpid(), signal.SIGTERM)
            return 0

        control.apply(CAPPED)
        machine.gpus[0].refusals[RESET_CLOCK] = interrupt
        former = signal.signal(signal.SIGTERM, hear)
        try:
            with pytest.raises(SystemExit):
                control.restore()
        finally:
            signal.signal(signal.SIGTERM, former)
        assert heard == [FREE]
