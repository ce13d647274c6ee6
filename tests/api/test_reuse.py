"""What a job takes over from earlier ones, on simulated devices from end to end."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.job_run import run_job
from api.prepare import prepare
from api.reuse import EarlierResults, version_words
from api.server_launch import ServerLaunch
from api.settings import Settings, load_settings
from api.stores import Stores, open_stores
from db.job import Job
from engine.servers.profile import ServerProfile
from tests.api.commands import FinishedJob, simulated_flags
from tests.api.conftest import Main
from tests.tuner.simulated import make_simulated
from tuner import lm_tasks
from tuner.errors import InvalidRequest
from tuner.point import OperatingPoint
from tuner.request import Budget, KnobRange, Limit, QualityGate, ReuseRule, TuneRequest, WorkloadSpec
from tuner.trial import Trial, TrialState

BATCHES = KnobRange(name="max_batch", values=(4, 16))
CLOCKS = KnobRange(name="sm_clock_cap_mhz", values=(1200, 1980))
ONE_HOUR = ReuseRule(max_age_hours=1.0)
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,64,16\n2023-11-16 18:15:47.68,64,16\n"

Run = Callable[..., Job]


def asked(**changes: Any) -> TuneRequest:
    """A job of four points on a simulated GPU."""
    return make_simulated(**({"allow_device_control": True, "knobs": (BATCHES, CLOCKS)} | changes))


@pytest.fixture(scope="module")
def measured_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one job that measured its four points; copied for every test that asks for it."""
    path = tmp_path_factory.mktemp("measured") / "wattfront.db"
    stores = open_stores(f"sqlite:///{path}")
    run_job(stores, stores.jobs.create_claimed(asked(), "host:1:1", 60.0), load_settings())
    stores.database.dispose()
    return path


@pytest.fixture
def first(measured_file: Path, settings: Settings, stores: Stores) -> Job:
    """The job whose measurements are there to be taken over."""
    stores.database.dispose()
    path = Path(settings.database_url.removeprefix("sqlite:///"))
    for leftover in path.parent.iterdir():
        leftover.unlink()
    shutil.copy(measured_file, path)
    return stores.jobs.list(limit=1)[0]


@pytest.fixture
def run(stores: Stores, settings: Settings) -> Run:
    """Run a job to its end."""

    def run_to_its_end(request: TuneRequest, previous: Job | None = None) -> Job:
        claim = stores.jobs.create_claimed(
            request, "host:1:1", 60.0, previous_job_id=None if previous is None else previous.id
        )
        return run_job(stores, claim, settings)

    return run_to_its_end


def by_point(stores: Stores, job: Job) -> dict[OperatingPoint, Trial]:
    return {trial.point: trial for trial in stores.trials.history(job.id)}


def origins(stores: Stores, job: Job) -> set[str | None]:
    """Return the jobs that a job's measurements were made in; None stands for itself."""
    taken_from = [trial.reused_from for trial in stores.trials.history(job.id)]
    return {None if name is None else name.partition("/")[0] for name in taken_from}


def earlier_results(settings: Settings, stores: Stores, request: TuneRequest) -> EarlierResults:
    return EarlierResults(stores, prepare(request, settings, lambda what, share: None))


def test_the_same_job_again_measures_nothing(first: Job, run: Run, stores: Stores) -> None:
    """With reuse a second job has the first one's figures and front, by name, at no device time."""
    second = run(asked(reuse=ONE_HOUR))
    measured, taken = by_point(stores, first), by_point(stores, second)
    assert measured.keys() == taken.keys()
    for point, trial in taken.items():
        assert trial.reused_from == f"{first.id}/{measured[point].number}"
        assert (trial.measurement, trial.state) == (measured[point].measurement, TrialState.COMPLETE)
        assert (trial.device_s, trial.device_j) == (0.0, 0.0)
    assert stores.front(first).hypervolume == stores.front(second).hypervolume
    assert {trial.reused_from for trial in measured.values()} == {None}


def test_without_reuse_everything_is_measured(first: Job, run: Run, stores: Stores) -> None:
    """A job that does not ask for reuse measures every point, whatever there is."""
    assert origins(stores, run(asked())) == {None}


def test_the_verdict_is_that_of_the_job_which_takes_over(first: Job, run: Run, stores: Stores) -> None:
    """Points that were complete are infeasible under a limit that only the later job has, with the same figures."""
    second = run(asked(reuse=ONE_HOUR, sla=(Limit(metric="tpot_p99_ms", bound_ms=0.1),)))
    assert origins(stores, second) == {first.id}
    assert {trial.state for trial in stores.trials.history(second.id)} == {TrialState.INFEASIBLE}
    assert second.ended_because == "no_feasible_point"


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": WorkloadSpec(prompt_tokens=(32, 65), output_tokens=(16, 32))},
        {"device": "simulated:h200-sxm"},
        {"model": "qwen3-8b"},
        {"seed": 1},
    ],
    ids=["workload", "device", "model", "seed of the simulation"],
)
def test_under_other_conditions_nothing_is_taken_over(
    first: Job, stores: Stores, settings: Settings, changes: dict[str, Any]
) -> None:
    """POWER-62: another workload, device, model or simulation shares no measurement."""
    point = next(iter(by_point(stores, first)))
    same = earlier_results(settings, stores, asked(reuse=ONE_HOUR))
    other = earlier_results(settings, stores, asked(reuse=ONE_HOUR, **changes))
    assert same.stand_in(point) is not None
    assert other.stand_in(point) is None


def test_a_knob_that_is_not_searched_counts_at_its_value(run: Run, stores: Stores, settings: Settings) -> None:
    """A point that names a knob and one that leaves it at that value are the same measurement; else they are not."""
    named = KnobRange(name="prefill_chunk", values=(512, 1024, 2048, 8192))
    run(asked(knobs=(BATCHES,)))
    results = earlier_results(settings, stores, asked(reuse=ONE_HOUR, knobs=(BATCHES, named)))
    found = [
        results.stand_in(OperatingPoint.of({"max_batch": 4, "prefill_chunk": chunk})) is not None
        for chunk in named.values
    ]
    assert found.count(True) == 1


def test_what_is_too_old_is_measured_anew(first: Job, stores: Stores, settings: Settings) -> None:
    """A measurement older than the job allows stands in for nothing, though its front still says where to begin."""
    stale = earlier_results(settings, stores, asked(reuse=ReuseRule(max_age_hours=1e-9)))
    front = stores.front(first).trials
    assert [stale.stand_in(trial.point) for trial in front] == [None] * len(front)
    default = stores.trials.history(first.id)[0].point
    assert stale.first_points() == tuple(dict.fromkeys([default, *(trial.point for trial in front)]))


def test_a_text_that_is_moved_changes_nothing(first: Job, stores: Stores, settings: Settings, tmp_path: Path) -> None:
    """The text is hashed when the job begins, which is when it is read; that it goes away later ends no job."""
    text = tmp_path / "mine.txt"
    text.write_text("some words", encoding="utf-8")
    prepared = prepare(asked(), settings, lambda what, share: None)
    with_text = replace(prepared, request=asked(quality=QualityGate(text_file=str(text))))
    trial = stores.trials.history(first.id)[0]
    results = EarlierResults(stores, with_text)
    before = results.key_of(trial)
    text.unlink()
    assert before is not None
    assert before == results.key_of(trial)
    text.write_text("other words", encoding="utf-8")
    assert before != EarlierResults(stores, with_text).key_of(trial)


def test_tasks_are_part_of_the_key_where_quality_is_told(
    first: Job, stores: Stores, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job with tasks takes over nothing from one without; a simulated job has no quality, and needs no package."""
    trial = stores.trials.history(first.id)[0]
    prepared = prepare(asked(), settings, lambda what, share: None)
    named = replace(prepared, request=asked(quality=QualityGate(tasks=("facts",))))
    monkeypatch.setattr(lm_tasks, "PACKAGE", "no_such_package")
    assert EarlierResults(stores, prepared).key_of(trial) == EarlierResults(stores, named).key_of(trial)
    monkeypatch.setattr(lm_tasks, "PACKAGE", "structlog")  # stands for an installed package
    real = [EarlierResults(stores, replace(one, simulation=None)) for one in (prepared, named)]
    keys = [one.key_of(trial) for one in real]
    assert None not in keys
    assert keys[0] != keys[1]


def test_of_a_server_nothing_is_taken_over(first: Job, stores: Stores, settings: Settings) -> None:
    """Which version a server is, it tells when it runs: before that nothing says that a measurement is of the same."""
    prepared = prepare(asked(reuse=ONE_HOUR), settings, lambda what, share: None)
    trials = stores.trials.history(first.id)
    assert EarlierResults(stores, prepared).offered_by(trials)
    launch = ServerLaunch(profile=ServerProfile(kind="vllm"), model="m", model_hash="", tokenizer_folder=None)
    assert not EarlierResults(stores, replace(prepared, server=launch)).offered_by(trials)


def test_under_another_trace_nothing_is_kept_for_later(
    first: Job, stores: Stores, settings: Settings, tmp_path: Path
) -> None:
    """A window that may be of another trace than the job began with has no key, and losing the trace is no error."""
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE, encoding="utf-8")
    prepared = prepare(asked(), settings, lambda what, share: None)
    request = asked(workload=WorkloadSpec(scenario="trace", trace_file=str(trace)))
    trial = stores.trials.history(first.id)[0]
    results = EarlierResults(stores, replace(prepared, request=request))
    assert results.key_of(trial) is not None
    trace.write_text(TRACE.replace(",16", ",117"), encoding="utf-8")
    assert results.key_of(trial) is None
    trace.unlink()
    assert results.key_of(trial) is None


def test_an_engine_is_known_before_it_is_launched(finished_job: FinishedJob, settings: Settings) -> None:
    """What a real job would measure on is foretold as it was then measured: device, driver, energy, engine, model."""
    job = finished_job.stores.jobs.get(finished_job.id)
    trials = finished_job.stores.trials.history(job.id)
    results = earlier_results(settings, finished_job.stores, job.request)
    assert any(trial.measurement is not None for trial in trials)
    assert results.differences(trials) == []


class TestVersions:
    """A new version of a job: other lists of values, and what the old one measured."""

    @pytest.mark.parametrize(
        ("batches", "num_taken"),
        [((4, 16, 32), 4), ((16,), 2), ((16, 4), 4)],
        ids=["added", "removed", "reordered"],
    )
    def test_a_changed_list_goes_on_with_what_still_holds(
        self, first: Job, run: Run, stores: Stores, batches: tuple[int, ...], num_taken: int
    ) -> None:
        """BUG-14: values added, removed or reordered make a new job; old points that it has are not measured again."""
        second = run(asked(knobs=(KnobRange(name="max_batch", values=batches), CLOCKS)), first)
        taken = [trial for trial in stores.trials.history(second.id) if trial.reused_from is not None]
        assert (second.previous_job_id, second.ended_because) == (first.id, "exhausted")
        assert len(taken) == num_taken
        assert len(by_point(stores, second)) == 2 * len(batches)

    def test_a_version_of_a_version_has_everything(self, first: Job, run: Run, stores: Stores) -> None:
        """BUG-14: what the second version took over from the first is there for the third, by its first name."""
        second = run(asked(), first)
        third = run(asked(), second)
        assert origins(stores, second) == origins(stores, third) == {first.id}

    def test_going_on_with_other_values_is_refused_before_the_first_trial(
        self, stores: Stores, settings: Settings
    ) -> None:
        """BUG-14: if the device no longer offers last night's clocks, the job says which, and nothing is measured."""
        claim = stores.jobs.create_claimed(asked(budget=Budget(trials=4)), "host:1:1", 60.0)
        stores.jobs.set_space(claim, (BATCHES, KnobRange(name="sm_clock_cap_mhz", values=(1215, 1980))))
        with pytest.raises(InvalidRequest, match=r"sm_clock_cap_mhz: 1200 added, 1215 removed.* --after"):
            run_job(stores, claim, settings)
        assert stores.trials.list(claim.job_id) == []

    def test_the_command_line_says_what_changed(self, main_with: Main, stores: Stores) -> None:
        """BUG-14: --after names the knobs whose values changed, and how much of the old job is taken over."""
        flags = [flag for flag in simulated_flags() if "knob=" not in flag]
        caps = "--knob=sm_clock_cap_mhz=1200"
        assert main_with("tune", *flags, "--knob=max_batch=4,16", caps).code == 0
        (first,) = stores.jobs.list(limit=1)
        ended = main_with("tune", *flags, "--knob=max_batch=4,32", caps, "--after", first.id[:8])
        assert ended.code == 0
        assert f"a new version of job {first.id[:8]}: max_batch: 32 added, 16 removed\n" in ended.out
        assert "1 of its 2 measured points are taken over; they do not count against the budget\n" in ended.out
        assert ended.out.count(f"(taken over from job {first.id[:8]})") == 1

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"model": "qwen3-8b"}, "the model was llama-3.1-8b and is qwen3-8b"),
            (
                {"device": "simulated:h200-sxm"},
                "the device was SIM-H100-SXM-X1 and is SIM-H200-SXM-X1",
            ),
            (  # no point of before lies in the space
                {"knobs": (KnobRange(name="max_batch", values=(4, 16)),), "model": "qwen3-8b"},
                "the model was llama-3.1-8b and is qwen3-8b",
            ),
            ({"workload": WorkloadSpec(prompt_tokens=(32, 65), output_tokens=(16, 32))}, None),
        ],
        ids=["model", "device", "model and knobs", "workload"],
    )
    def test_it_says_why_nothing_is_taken_over(
        self, first: Job, stores: Stores, settings: Settings, changes: dict[str, Any], why: str | None
    ) -> None:
        """A version on another model or device is told which it was and which it is."""
        prepared = prepare(asked(**changes), settings, lambda what, share: None)
        words = version_words(stores, first, prepared)[1:]
        expected = ["0 of its 4 measured points are taken over; they do not count against the budget"]
        assert words == expected + ([f"figures of another model or device are not taken over: {why}"] if why else [])

    def test_a_job_is_resumed_or_followed_by_another(self, main_with: Main) -> None:
        """--resume and --after together are refused: the one changes nothing, the other begins anew."""
        ended = main_with("tune", "--resume", "abcd", "--after", "abcd")
        assert ended.code == 2
        assert "--after cannot be changed now" in ended.complaint
