"""A job whose worker is killed again and again, in this process: what comes out is what would have."""

from __future__ import annotations

from functools import partial
from itertools import chain, repeat

import pytest

from api.heartbeat import LEASE_S
from api.job_run import Listener, run_job
from api.settings import Settings
from api.stores import Stores
from db.job import Job
from tests.api.scripted import claimed
from tests.tuner.simulated import make_simulated
from tuner.point import OperatingPoint
from tuner.request import Budget, KnobRange, RepeatRule, TuneRequest
from tuner.trial import Trial


class _Killed(BaseException):
    """Ends a worker as SIGKILL would: nothing that it could still do is done."""


def run_undisturbed(stores: Stores, settings: Settings, request: TuneRequest) -> Job:
    return run_job(stores, claimed(stores, request), settings)


def run_with_kills(stores: Stores, settings: Settings, request: TuneRequest, kills: tuple[int, ...]) -> Job:
    """Run a job whose worker is killed as each of these trials begins, and is stopped in order after one more."""
    claim = claimed(stores, request)
    for number in kills:

        def kill(begun: int, _: OperatingPoint, at: int = number) -> None:
            if begun == at:
                raise _Killed

        with pytest.raises(_Killed):
            run_job(stores, claim, settings, listener=Listener(on_trial_started=kill))
        stores.jobs.expire(lambda owner: True)
        claim = stores.jobs.claim(claim.job_id, "host:2:2", LEASE_S)
        run_job(stores, claim, settings, should_stop=partial(next, chain((False,), repeat(True))))
        claim = stores.jobs.claim(claim.job_id, "host:3:3", LEASE_S)
    return run_job(stores, claim, settings)


@pytest.mark.parametrize("windows", [1, 2], ids=["screening", "repeats"])
def test_a_killed_job_reaches_the_front_of_an_undisturbed_one(stores: Stores, settings: Settings, windows: int) -> None:
    """BUG-17: with the same seed a job killed twice and stopped twice has the same trials, figures and front.

    On a simulated device, whose chance hangs on seed and point alone; a real one would draw other noise. Figures agree
    but for rounding: a resumed device's clock starts anew, and a difference of two times loses other last bits.
    """
    request = make_simulated(
        allow_device_control=True,
        knobs=(
            KnobRange(name="max_batch", values=(4, 8, 16)),
            KnobRange(name="sm_clock_cap_mhz", values=(1200, 1500, 1980)),
        ),
        budget=Budget(trials=6),
        repeats=RepeatRule(windows=windows, finalists=2),
    )
    whole = run_undisturbed(stores, settings, request)
    resumed = run_with_kills(stores, settings, request, (2, 4))
    assert resumed.resume_count == 4
    one, other = (stores.trials.history(job.id) for job in (whole, resumed))
    assert [said_of(trial) for trial in one] == [said_of(trial) for trial in other]
    assert [figures_of(trial) for trial in one] == [pytest.approx(figures_of(trial), rel=1e-9) for trial in other]
    front, other_front = stores.front(whole), stores.front(resumed)
    assert front.trials
    assert [trial.number for trial in front.trials] == [trial.number for trial in other_front.trials]
    assert front.hypervolume == pytest.approx(other_front.hypervolume, rel=1e-9)


def said_of(trial: Trial) -> tuple[object, ...]:
    return trial.number, trial.point, trial.role, trial.state, trial.reason


def figures_of(trial: Trial) -> list[float | None]:
    """What a trial found, without the times that a resume moves."""
    measurement = trial.measurement
    assert measurement is not None
    estimates = [measurement.tok_per_j, measurement.output_tok_s, measurement.ttft.p99, measurement.tpot.p99]
    return [measurement.reading.energy_j, *(None if one is None else one.value for one in estimates)]
