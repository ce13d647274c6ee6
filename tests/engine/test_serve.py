"""How requests get to an engine of ours: at their times, when there is something to do, and when there is not."""

from __future__ import annotations

from queue import SimpleQueue

from hypothesis import given
from hypothesis import strategies as st

from engine.load import LiveLoad, OpenLoad, Progress, TimedRequest
from engine.request import FinishReason, Request
from engine.serve import serve
from tests.engine.requests import make_request
from tests.engine.stepping import LONGEST_PROMPT, SteppingEngine


def live(*requests: Request, is_ended: bool = True) -> LiveLoad:
    inbox: SimpleQueue[Request | None] = SimpleQueue()
    for item in (*requests, None) if is_ended else requests:
        inbox.put(item)
    return LiveLoad(inbox=inbox)


@given(
    offsets=st.lists(st.floats(0, 20, allow_subnormal=False), max_size=8), longest_wait_s=st.sampled_from([0.3, 1e9])
)
def test_open_requests_come_at_their_times(offsets: list[float], longest_wait_s: float) -> None:
    """Each request is due at its offset and let in within a step of it, never before, however the engine waits."""
    stepper = SteppingEngine(longest_wait_s=longest_wait_s)
    timed = [
        TimedRequest(offset_s=offset, request=make_request(request_id=f"r{i}", max_tokens=3))
        for i, offset in enumerate(sorted(offsets))
    ]

    records = serve(stepper, OpenLoad(requests=iter(timed)), lambda _: True)

    assert [due_s for _, due_s, _ in stepper.let_in] == sorted(offsets)
    assert all(0 <= at_s - due_s <= stepper.step_s + 1e-9 for _, due_s, at_s in stepper.let_in)
    assert {record.request_id for record in records} == {one.request.request_id for one in timed}


def test_an_observer_is_asked_while_nothing_is_due() -> None:
    """A load may be stopped in the gap before its next request; what it is told then is no step."""
    stepper = SteppingEngine(longest_wait_s=0.5)
    late = TimedRequest(offset_s=1000.0, request=make_request())
    seen: list[Progress] = []

    def observe(progress: Progress) -> bool:
        seen.append(progress)
        return len(seen) < 3

    assert serve(stepper, OpenLoad(requests=iter([late])), observe) == []
    assert [(progress.time_s, progress.num_steps) for progress in seen] == [(0.5, 0), (1.0, 0), (1.5, 0)]


def test_live_requests_are_served_until_none() -> None:
    """Whatever is put in is served, and None ends the load; what is put in meanwhile by the observer, too."""
    load = live(make_request(request_id="a"), is_ended=False)

    def add_more(progress: Progress) -> bool:
        for record in progress.finished:
            load.inbox.put(make_request(request_id="b") if record.request_id == "a" else None)
        return True

    records = serve(SteppingEngine(), load, add_more)

    assert [(record.request_id, record.finish_reason) for record in records] == [("a", "length"), ("b", "length")]


def test_a_refused_live_request_ends_alone() -> None:
    """A live request that the engine refuses has a record with the error; the others are served."""
    load = live(make_request([1] * (LONGEST_PROMPT + 1), request_id="long"), make_request(request_id="short"))

    records = {record.request_id: record for record in serve(SteppingEngine(), load, lambda _: True)}

    assert records["short"].finish_reason is FinishReason.LENGTH
    assert records["long"].error == "request_refused: request long: too long"
