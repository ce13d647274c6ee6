"""The guard's answers on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from probes.control.guard_answers import (
    GuardStatus,
    Held,
    Offer,
    Welcome,
    body_of,
    problems_of,
    recoveries_of,
    status_of,
    welcome_of,
)
from probes.control.guard_wire import MAX_LINE_BYTES, Fault, WireError, decode_answer, encode_answer
from probes.control.keeper import Outcome, Recovery
from probes.settings import POWER_CAP, SM_CLOCK_CAP, DeviceSettings, Settable

WELCOME = Welcome(
    guard_pid=4_194_304,
    lease="4f1d",
    lapse_s=10.0,
    state_dir="/var/lib/wattfront",
    offers=(
        Offer(
            device_uuid="GPU-1",
            knobs=(
                Settable(name=SM_CLOCK_CAP, values=(210, 225, 1980)),
                Settable(name=POWER_CAP, values=(300, 700), is_range=True),
            ),
        ),
        Offer(device_uuid="CPU-1", knobs=()),
    ),
)
STATUS = GuardStatus(
    held=(
        Held(
            device_uuid="GPU-1", lease="4f1d", pid=7, uid=1000, label="a job", settings=DeviceSettings(power_cap_w=400)
        ),
    ),
    failed={"GPU-2": "it does not answer"},
)
RECOVERIES = (Recovery(device_uuid="GPU-1", outcome=Outcome.PUT_BACK, detail="process 7 left it set"),)


def sent(body: Any) -> Any:
    return decode_answer(encode_answer(body))


def test_answers_arrive_as_they_were_sent() -> None:
    """Welcome, status, recoveries and problems survive the line."""
    assert welcome_of(sent(body_of(WELCOME))) == WELCOME
    assert status_of(sent(body_of(STATUS))) == STATUS
    assert recoveries_of(sent(body_of(RECOVERIES))) == RECOVERIES
    assert recoveries_of(sent(body_of(()))) == ()
    assert problems_of(sent(["external_change"])) == ("external_change",)


def test_a_machine_full_of_gpus_fits_in_a_line() -> None:
    """Sixteen GPUs with hundreds of clocks each are told in one line."""
    clocks = Settable(name=SM_CLOCK_CAP, values=tuple(range(210, 3210, 7)))
    offers = tuple(Offer(device_uuid=f"GPU-{number:036d}", knobs=(clocks,)) for number in range(16))
    welcome = Welcome(guard_pid=1, lease="4f1d", lapse_s=10, state_dir="/var/lib/wattfront", offers=offers)
    assert len(encode_answer(body_of(welcome))) < MAX_LINE_BYTES


@pytest.mark.parametrize(
    ("read", "answer"),
    [
        (welcome_of, None),
        (welcome_of, {"guard_pid": 1}),
        (welcome_of, body_of(WELCOME) | {"lapse_s": 0}),
        (welcome_of, body_of(WELCOME) | {"lapse_s": "10"}),
        (welcome_of, body_of(WELCOME) | {"lease": 7}),
        (welcome_of, body_of(WELCOME) | {"offers": [{"device_uuid": "GPU-1"}]}),
        (status_of, body_of(STATUS) | {"failed": {"GPU-2": 3}}),
        (status_of, body_of(STATUS) | {"held": [{}]}),
        (recoveries_of, [{"device_uuid": "GPU-1", "outcome": "lucky", "detail": ""}]),
        (recoveries_of, [{"device_uuid": "GPU-1", "outcome": ["put_back"], "detail": ""}]),
        (problems_of, [1]),
        (problems_of, "external_change"),
    ],
)
def test_what_is_not_as_agreed_is_refused(read: Any, answer: Any) -> None:
    """An answer of another shape is a named fault, not a guess."""
    with pytest.raises(WireError) as caught:
        read(answer)
    assert caught.value.fault is Fault.BAD_FIELD
