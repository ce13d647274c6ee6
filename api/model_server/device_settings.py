"""Clocks and power limits for as long as a model is served, and whether they hold.

Knows nothing of what is served.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from api.model_server.choice import Choice
from api.settings import Settings
from probes.control.opening import open_control
from probes.control.seam import DeviceControl
from probes.errors import ProbeError
from probes.metering.group import member_uuids

log = structlog.get_logger()

#: How often it is looked whether what was set still holds.
LOOK_S = 10.0


class Holding:
    """Looks now and then whether what was set is in force."""

    def __init__(self, problems: Callable[[], tuple[str, ...]], *, look_s: float = LOOK_S) -> None:
        self._problems = problems
        self._look_s = look_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="device-settings", daemon=True)
        #: Whether it was so at the last look.
        self.is_in_force = True

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._is_over.set()
        self._thread.join()

    def look(self) -> None:
        """Look once; a change is logged."""
        try:
            problems = self._problems()
        except ProbeError as error:
            problems = (str(error),)
        if self.is_in_force and problems:
            log.warning("device_settings_lost", reasons=problems)
        elif not self.is_in_force and not problems:
            log.info("device_settings_back")
        self.is_in_force = not problems

    def _run(self) -> None:
        while not self._is_over.wait(self._look_s):
            self.look()


@contextmanager
def applied(choice: Choice, settings: Settings) -> Iterator[Holding | None]:
    """Set what the choice asks of the device and put back what was found after it; None where nothing is asked.

    Raises what `DeviceControl.apply` and `close` raise; where it cannot be set, nothing is served under its name.
    """
    if choice.device_settings.is_empty:
        yield None
        return
    control = _control(choice, settings)
    try:
        control.apply(choice.device_settings)
        holding = Holding(control.problems)
        holding.start()
        try:
            yield holding
        finally:
            holding.stop()
    finally:
        control.close()


def _control(choice: Choice, settings: Settings) -> DeviceControl:
    return open_control(
        member_uuids(choice.device.info.uuid),
        host=choice.host,
        state_dir=settings.state_dir,
        guard_socket=settings.guard_socket,
        prior_caps_mhz=settings.prior_sm_clock_caps_mhz,
        label=f"serve-model on {choice.device.info.name}",
    )
