"""Jobs on simulated devices, from the command line and from a worker to the answers of the service."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from api.app import create_app
from api.job_run import run_job
from api.logs import LogFormat, configure_logs
from api.prepare import prepare
from api.settings import Settings
from api.stores import Stores
from api.tracing import Tracer
from api.worker import work
from db.device import ControlState
from db.job import JobState
from probes.errors import UnknownDevice
from probes.holder import hold
from tests.api.commands import simulated_flags, wait_until
from tests.api.conftest import Main
from tests.api.scripted import claimed
from tests.tuner.simulated import make_simulated
from tuner.errors import InvalidRequest
from tuner.request import Budget, KnobRange, TuneRequest

UUID = "SIM-H100-SXM-X1"
KNOBS = (
    KnobRange(name="max_batch", values=(4, 16)),
    KnobRange(name="sm_clock_cap_mhz", values=(1200, 1980)),
)


def short(**changes: object) -> TuneRequest:
    return make_simulated(knobs=KNOBS, budget=Budget(trials=4), **changes)


def figures_of(stores: Stores, job_id: str) -> list[object]:
    """Return what a job's trials showed, but for the instants of their windows: a resumed device begins at 0."""
    measured = [trial.measurement for trial in stores.trials.history(job_id) if trial.measurement is not None]
    assert len(measured) == 4
    return [(one.tok_per_j, one.output_tok_s, one.ttft, one.tpot, one.reading.energy_j) for one in measured]


@contextmanager
def service(stores: Stores) -> Iterator[TestClient]:
    with TestClient(create_app(stores), base_url="http://127.0.0.1") as client:
        yield client


def test_a_job_runs_from_the_command_line(main_with: Main, stores: Stores) -> None:
    """Clock caps are searched without any permission, limits come by comma, and the front says it is simulated."""
    ended = main_with("tune", *simulated_flags(), "--sla=ttft_p99_ms=500,tpot_p99_ms=30")
    assert (ended.code, ended.err) == (0, "")
    job = stores.jobs.list(limit=1)[0]
    assert (job.state, job.request.engine, job.device_uuid) == (JobState.FINISHED, "simulated", UUID)
    assert {limit.metric for limit in job.request.sla} == {"ttft_p99_ms", "tpot_p99_ms"}
    assert [trial.state.value for trial in stores.trials.list(job.id)] == ["complete"] * 4
    assert "method simulated" in ended.out
    assert "nothing was measured" in ended.out


def test_a_worker_runs_it_and_the_service_labels_it(stores: Stores, settings: Settings) -> None:
    """A queued job is taken by a worker; every answer and the page say that its figures are simulated."""
    job = stores.jobs.create(short())
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stores, settings), kwargs={"should_stop": stop, "poll_s": 0.05})
    thread.start()
    try:
        wait_until(lambda: stores.jobs.get(job.id).has_ended, what="the end of the job")
    finally:
        stop.set()
        thread.join()
    with service(stores) as client:
        front = client.get(f"/v1/jobs/{job.id}/front").json()
        trials = client.get(f"/v1/jobs/{job.id}/trials").json()["items"]
        device = client.get(f"/v1/devices/{UUID}").json()
        page = client.get(f"/jobs/{job.id}").text
    assert {(point["energy_method"], point["is_estimate"]) for point in front["points"]} == {("simulated", True)}
    assert {trial["measurement"]["engine"]["engine"] for trial in trials} == {"simulated"}
    assert {json.dumps(trial["measurement"]["quality"]) for trial in trials} == {"null"}
    assert (device["kind"], device["control_state"]) == ("simulated", ControlState.OBSERVED)
    assert "simulated" in page


def test_a_resumed_job_has_the_figures_of_an_undisturbed_one(stores: Stores, settings: Settings) -> None:
    """A job stopped after two trials and gone on with gives the same trials as one that ran through."""
    through = run_job(stores, claimed(stores, short()), settings)
    stops = iter([False, False, True])
    stopped = run_job(stores, claimed(stores, short()), settings, should_stop=lambda: next(stops))
    assert len(stores.trials.history(stopped.id)) == 2
    run_job(stores, stores.jobs.claim(stopped.id, "host:1:1", 60.0), settings)
    assert figures_of(stores, through.id) == figures_of(stores, stopped.id)


def test_nobody_holds_a_simulated_device(stores: Stores, settings: Settings) -> None:
    """A job runs though another process simulates the same device: each has its own."""
    with hold(UUID):
        assert run_job(stores, claimed(stores, short()), settings).state is JobState.FINISHED


def test_a_job_where_every_layout_fails_says_why(stores: Stores, settings: Settings) -> None:
    """Points without room are trials that failed by name, and the job says so at its end."""
    request = make_simulated(model="llama-3.1-70b", knobs=(KnobRange(name="max_batch", values=(4, 8)),))
    job = run_job(stores, claimed(stores, request), settings)
    assert (job.state, job.ended_because) == (JobState.FAILED, "no_usable_trial")
    assert job.message == "no trial gave a usable measurement (out_of_memory)"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--device=simulated:h1000",), "there is no simulated 'h1000'; choose one of a100-sxm-80, "),
        (("--device=simulated:h100-sxm", "--engine=embedded"), "engine is 'embedded': "),
        (("--device=cpu", "--engine=simulated"), "engine is 'simulated': "),
        (("--device=simulated:h100-sxm", "--workload=server"), "workload.rate_per_s is None: server needs it"),
        (("--device=cpu", "--profile=prod"), "server is 'prod': the embedded engine is no server"),
        (("--device=simulated:h100-sxm:2", "--knob=tensor_parallel=4"), "knobs.tensor_parallel is 4: the layout takes"),
        (("--device=simulated:a100-sxm-80", "--knob=precision=fp8"), "knobs.precision is 'fp8': "),
    ],
)
def test_contradictions_are_refused_before_anything_is_stored(
    main_with: Main, stores: Stores, flags: tuple[str, ...], words: str
) -> None:
    """What device, engine, load and layout cannot be together is refused in one sentence with exit code 2."""
    ended = main_with("tune", "--model=llama-3.1-8b", *flags)
    assert ended.code == 2
    assert ended.complaint.startswith(words)
    assert stores.jobs.list(limit=1) == []


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: make_simulated(device="simulated:"), UnknownDevice),
        (lambda: make_simulated(device="simulated:h100-sxm:0"), UnknownDevice),
        (lambda: make_simulated(engine="embedded"), InvalidRequest),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    settings: Settings, make: Callable[[], TuneRequest], error: type[Exception]
) -> None:
    """A device that there is not and an engine that does not fit are refused by whoever prepares the job."""
    with pytest.raises(error):
        prepare(make(), settings, lambda what, share: None)


@pytest.mark.usefixtures("logs_as_before")
def test_a_job_is_a_span_around_those_of_its_trials(
    stores: Stores, settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each trial's span lies in its job's and tells its knobs and how it ended; log lines carry job and trial."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    configure_logs(LogFormat.JSON, is_verbose=True)
    job = run_job(stores, claimed(stores, short()), settings, tracer=Tracer(provider.get_tracer("test")))
    *of_trials, of_job = exporter.get_finished_spans()
    assert {"wattfront.job": job.id, "wattfront.state": "finished"}.items() <= dict(of_job.attributes or {}).items()
    trials = stores.trials.history(job.id)
    assert len(trials) == len(of_trials)
    for trial, span in zip(trials, of_trials, strict=True):
        assert span.parent is not None
        assert span.parent.span_id == of_job.context.span_id
        told = {f"wattfront.knob.{name}": value for name, value in trial.point.as_dict().items()}
        told |= {"wattfront.trial": trial.number, "wattfront.state": trial.state.value}
        assert told.items() <= dict(span.attributes or {}).items()
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert {job.id} == {line["job"] for line in lines}
    assert {"job_started", "trial_finished", "job_ended"} <= {line["event"] for line in lines}
