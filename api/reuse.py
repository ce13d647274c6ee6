"""What a job takes over from earlier ones instead of measuring it anew, and the points that it begins with.

Knows what a measurement will be made on before it is made, from device, engine and model as they are prepared. Knows
nothing of the search, which cannot tell what was taken over but by the trial's own word.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from api.prepare import Prepared
from api.stores import Stores, utc_now
from db.job import Job
from db.reuse import Found
from engine.errors import EngineError, InvalidSettings, NativeKernelsMissing
from engine.settings import EngineSettings
from probes.device import PowerSource
from tuner.bench import engine_device
from tuner.errors import InvalidRequest
from tuner.fingerprint import Origin, ReuseKey, details_of, fingerprint, origin_of, settings_key
from tuner.knobs import EMBEDDED
from tuner.layout import limits_of
from tuner.lm_tasks import tasks_sha256
from tuner.measurement import Measurement
from tuner.objectives import Verdict
from tuner.point import OperatingPoint
from tuner.quality import read_text
from tuner.simulation import Simulation, open_simulation
from tuner.space import device_settings_of, settings_of
from tuner.takeover import judged_anew
from tuner.trial import Trial
from tuner.versions import changes, ranges_of
from tuner.workload import trace_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """A measurement in place of one not made, and what it means under the job's own limits."""

    measurement: Measurement
    verdict: Verdict
    #: JOB/NUMBER.
    reused_from: str


class EarlierResults:
    """What earlier jobs measured, as far as one job may take it over.

    `max_age_hours` says how old it may be; what the previous job has counts whatever its age, unless one is given.
    """

    def __init__(
        self, stores: Stores, prepared: Prepared, *, job_id: str = "", previous_job_id: str | None = None
    ) -> None:
        """Hash the job's files. Raises InvalidRequest when one cannot be read."""
        self._stores = stores
        self._prepared = prepared
        self._request = prepared.request
        self._job_id = job_id
        self._previous_job_id = previous_job_id
        limits = limits_of(prepared.device)
        self._num_gpus = 1 if limits is None else limits.num_gpus
        #: As they are before the job sets anything.
        device = prepared.device
        self._own_details = details_of(device) if prepared.simulation is None else device.info.details
        #: Of the job's files as they are when it begins.
        self._trace_sha256 = self._read_trace()
        self._text_sha256 = self._read_scored()
        #: Of its own, so that asking an engine who it is leaves no trace on the one that measures.
        self._simulation: Simulation | None = None

    def stand_in(self, point: OperatingPoint) -> StandIn | None:
        """Return an earlier measurement of a point that this job may use; None when it has to be measured."""
        if not self._request.reuse.max_age_hours and self._previous_job_id is None:
            return None
        expected = self._expected_origin(point)
        if expected is None:
            return None
        for earlier in self._found(self._key(point, expected)):
            judged = judged_anew(self._request, earlier)
            if judged is not None and earlier.trial.measurement is not None:
                return StandIn(measurement=earlier.trial.measurement, verdict=judged, reused_from=earlier.name)
        return None

    def key_of(self, trial: Trial) -> ReuseKey | None:
        """Return under which key a trial's measurement is to be found; None when there is none to be taken over."""
        if trial.measurement is None or not trial.measurement.is_valid or self._is_trace_another():
            return None
        return self._key(trial.point, origin_of(trial.measurement))

    def first_points(self) -> tuple[OperatingPoint, ...]:
        """Return the points to begin with: those that the previous job has to offer, then the last front's.

        The default point is before them, as in every job: gains are told against the first trial.
        """
        points: list[OperatingPoint] = []
        if self._previous_job_id is not None:
            points += self.offered_by(self._stores.trials.history(self._previous_job_id))
        if self._request.reuse.max_age_hours:
            uuid = self._prepared.device.info.uuid
            points += self._stores.reuse.last_front(self._prepared.asked, uuid, except_job=self._job_id)
        space = self._prepared.space
        known = [point for point in points if point in space]
        return tuple(dict.fromkeys([space.default_point, *known])) if known else ()

    def offered_by(self, trials: Sequence[Trial]) -> list[OperatingPoint]:
        """Return the points of trials that lie in the space and need not be measured again, each once."""
        points = dict.fromkeys(trial.point for trial in trials if trial.point in self._prepared.space)
        return [point for point in points if self.stand_in(point) is not None]

    def differences(self, trials: Sequence[Trial]) -> list[str]:
        """Return in what the newest measured trial's origin differs from what this job would measure on."""
        for trial in reversed(trials):
            if trial.measurement is not None and trial.point in self._prepared.space:
                expected = self._expected_origin(trial.point)
                return [] if expected is None else origin_of(trial.measurement).differences(expected)
        return []

    def _read_scored(self) -> str | None:
        """Hash what quality is told from beside the prompts: text file and tasks; None without them."""
        gate = self._request.quality
        text = None if gate.text_file is None else hashlib.sha256(read_text(gate.text_file).encode()).hexdigest()
        tasks = None if self._prepared.simulation else tasks_sha256(gate.tasks, gate.task_limit)
        return text if tasks is None else f"{text}+{tasks}"

    def _read_trace(self) -> str | None:
        workload = self._request.workload
        return None if workload.trace_file is None else trace_of(workload).sha256

    def _is_trace_another(self) -> bool:
        """Whether a trace whose hash was not noted at submission is no longer what it was when the job began."""
        try:
            return self._read_trace() != self._trace_sha256
        except InvalidRequest:
            return True

    def _found(self, key: ReuseKey) -> Found:
        hours = self._request.reuse.max_age_hours
        if hours:
            since = utc_now() - timedelta(hours=hours)
            return self._stores.reuse.find(key, since=since, except_job=self._job_id)
        assert self._previous_job_id is not None
        return self._stores.reuse.find_in(key, self._previous_job_id)

    def _key(self, point: OperatingPoint, origin: Origin) -> ReuseKey:
        return ReuseKey(
            fingerprint=fingerprint(
                origin,
                self._request,
                details=self._details(),
                trace_sha256=self._trace_sha256,
                text_sha256=self._text_sha256,
            ),
            settings=settings_key(self._settings(point), device_settings_of(point)),
        )

    def _details(self) -> tuple[tuple[str, str], ...]:
        """Return what is particular about the device; of a simulated one that is every figure of it."""
        simulation = self._prepared.simulation
        if simulation is None:
            return self._own_details
        return (*self._own_details, ("figures", repr(simulation.device.accelerator)))

    def _settings(self, point: OperatingPoint) -> EngineSettings:
        settings = settings_of(self._request, point, num_gpus=self._num_gpus)
        return dataclasses.replace(settings, device=engine_device(self._prepared.device))

    def _expected_origin(self, point: OperatingPoint) -> Origin | None:
        """Return what a measurement of a point would be made on; None where no engine could serve the point."""
        source, served_by = self._prepared.device.power_source, self._engine(point)
        if source is None or served_by is None:
            return None
        return self._origin(source, *served_by)

    def _origin(self, source: PowerSource, engine: str, version: str, model_hash: str) -> Origin:
        return Origin(
            device_uuids=self._prepared.device_uuids,
            driver=self._prepared.device.info.driver,
            scope=source.scope,
            method=source.method,
            engine=engine,
            version=version,
            model_hash=model_hash,
        )

    def _engine(self, point: OperatingPoint) -> tuple[str, str, str] | None:
        """Return name, version and model hash of the engine that would serve a point.

        None of a server: which version it is, it tells when it runs, so that nothing measured on one is taken over.
        """
        if self._prepared.server is not None:
            return None
        files = self._prepared.files
        if files is None:
            return self._simulated_engine(point)
        from engine.embedded.loop import version_on  # brings torch, as preparing the model has done already

        try:
            return EMBEDDED, version_on(engine_device(self._prepared.device)), files.model_hash
        except NativeKernelsMissing:
            return None

    def _simulated_engine(self, point: OperatingPoint) -> tuple[str, str, str] | None:
        if self._simulation is None:
            self._simulation = open_simulation(self._request)
        try:
            info = self._simulation.open_engine(self._settings(point)).info
        except (EngineError, InvalidSettings, InvalidRequest):
            return None
        return info.engine, info.version, info.model_hash


def version_words(stores: Stores, previous: Job, prepared: Prepared) -> list[str]:
    """Return in sentences what a job would take over from a previous one, and which lists of values changed."""
    earlier = EarlierResults(stores, prepared, previous_job_id=previous.id)
    trials = [trial for trial in stores.trials.history(previous.id) if trial.measurement is not None]
    num_points = len({trial.point for trial in trials})
    num_offered = len(earlier.offered_by(trials))
    before = previous.request.knobs if previous.space is None else previous.space
    changed = changes(before, ranges_of(prepared.space))
    words = [
        f"a new version of job {previous.id[:8]}: {'; '.join(changed) or 'the same values of every knob'}",
        f"{num_offered} of its {num_points} measured points are taken over; they do not count against the budget",
    ]
    if num_points and not num_offered and (others := _others(previous, prepared)):
        words.append(f"figures of another model or device are not taken over: {'; '.join(others)}")
    elif num_offered < num_points and (differences := earlier.differences(trials)):
        words.append(f"the others were measured under other conditions ({', '.join(differences)})")
    return words


def _others(previous: Job, prepared: Prepared) -> list[str]:
    """Return in words whether a previous job's model or device is another one."""
    model, uuid = prepared.asked.model, prepared.device.info.uuid
    others = [] if previous.request.model == model else [f"the model was {previous.request.model} and is {model}"]
    if previous.device_uuid != uuid:
        others.append(f"the device was {previous.device_uuid} and is {uuid}")
    return others
