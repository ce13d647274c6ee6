"""What figures must share to be compared, and to stand in for each other."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from engine.settings import EngineSettings
from probes.device import DeviceInfo, DeviceKind, Method, Scope, Status
from probes.errors import DeviceLost
from probes.settings import DeviceSettings
from tests.db.factories import make_engine_info, make_measurement, make_reading, make_request
from tests.tuner.scripted import ScriptedDevice
from tuner.fingerprint import Origin, details_of, fingerprint, origin_of, settings_key
from tuner.request import Budget, Limit, QualityGate, RepeatRule, ReuseRule, TuneRequest, WindowRule, WorkloadSpec

REQUEST = make_request()
ORIGIN = origin_of(make_measurement(driver="580.65.06"))
OTHER_ORIGINS: dict[str, Any] = {
    "device_uuids": ("GPU-2",),
    "driver": "590.10",
    "scope": Scope.MODULE,
    "method": Method.INTEGRATED,
    "engine": "vllm",
    "version": "2",
    "model_hash": "cd" * 32,
}
OTHER_WORKLOADS: dict[str, Any] = {
    "scenario": "offline",
    "prompt_tokens": (8, 17),
    "output_tokens": (3, 8),
    "concurrency": 3,
    "rate_per_s": 2.0,
    "time_scale": 0.5,
    "seed": 8,
}


def other_workload(field: str) -> WorkloadSpec:
    """The job's workload with one field changed, and whatever else that takes to be one."""
    change = {field: OTHER_WORKLOADS[field]}
    if field == "rate_per_s":
        return replace(REQUEST.workload, scenario="server", concurrency=None, **change)
    if field == "time_scale":
        return replace(REQUEST.workload, scenario="trace", concurrency=None, trace_file="/t.csv", **change)
    return replace(REQUEST.workload, **({"concurrency": None} | change if field == "scenario" else change))


def asked(**changes: Any) -> TuneRequest:
    return replace(REQUEST, **changes)


class TestOrigin:
    """What was measured, with what."""

    def test_it_comes_from_the_measurement_alone(self) -> None:
        """Device, driver, scope and method are those of the reading, engine and model those that served."""
        measurement = make_measurement(driver="580.65.06", engine=make_engine_info(version="7", model_hash="ef"))
        assert origin_of(measurement) == Origin(
            device_uuids=("GPU-1",),
            driver="580.65.06",
            scope=Scope.GPU,
            method=Method.COUNTER,
            engine=measurement.engine.engine,
            version="7",
            model_hash="ef",
        )

    @pytest.mark.parametrize("field", [field.name for field in fields(Origin)])
    def test_another_one_is_told_by_its_field(self, field: str) -> None:
        """Each field that differs is named, and no other."""
        other = replace(ORIGIN, **{field: OTHER_ORIGINS[field]})
        assert [field] == ORIGIN.differences(other)
        assert ORIGIN.differences(ORIGIN) == []

    @pytest.mark.parametrize("field", sorted(OTHER_ORIGINS.keys() - {"method"}))
    def test_figures_of_another_origin_are_no_family(self, field: str) -> None:
        """POWER-62: figures of another device, driver, scope, engine, version or model are not compared."""
        assert ORIGIN.family != replace(ORIGIN, **{field: OTHER_ORIGINS[field]}).family

    def test_energy_read_in_two_ways_compares_and_an_estimate_does_not(self) -> None:
        """A counter and an integral of the same scope may be compared; what nobody measured compares with neither."""
        integrated = make_measurement(driver="580.65.06", reading=make_reading(method=Method.INTEGRATED))
        assert ORIGIN.family == origin_of(integrated).family
        assert ORIGIN.family != replace(ORIGIN, method=Method.ESTIMATE).family


class TestFingerprint:
    """What a measurement depends on beside its settings."""

    def test_it_is_the_same_on_every_machine_and_in_every_run(self) -> None:
        """The hash depends on values alone: those that are equal give the same, be they written 30 or 30.0."""
        window = WindowRule(window_s=30)
        assert fingerprint(ORIGIN, REQUEST) == fingerprint(replace(ORIGIN), asked(window=window))
        assert len(fingerprint(ORIGIN, REQUEST)) == 64

    @pytest.mark.parametrize("field", sorted(OTHER_ORIGINS))
    def test_it_knows_the_origin(self, field: str) -> None:
        """POWER-62: another device, driver, scope, method, engine, version or model is another fingerprint."""
        assert fingerprint(ORIGIN, REQUEST) != fingerprint(replace(ORIGIN, **{field: OTHER_ORIGINS[field]}), REQUEST)

    @pytest.mark.parametrize("field", sorted(OTHER_WORKLOADS))
    def test_it_knows_the_workload(self, field: str) -> None:
        """Every field of the workload counts."""
        assert fingerprint(ORIGIN, REQUEST) != fingerprint(ORIGIN, asked(workload=other_workload(field)))

    def test_of_a_file_it_knows_the_content_and_not_the_place(self) -> None:
        """A trace that was moved is the same workload; one that was edited is another, and so is the quality text."""
        here, there = (
            asked(workload=WorkloadSpec(scenario="trace", trace_file=place)) for place in ("/a.csv", "/b/a.csv")
        )
        assert fingerprint(ORIGIN, here, trace_sha256="1") == fingerprint(ORIGIN, there, trace_sha256="1")
        assert fingerprint(ORIGIN, here, trace_sha256="1") != fingerprint(ORIGIN, here, trace_sha256="2")
        assert fingerprint(ORIGIN, here, text_sha256="1") != fingerprint(ORIGIN, here, text_sha256="2")

    @pytest.mark.parametrize(
        "window",
        [
            WindowRule(warmup_s=11.0),
            WindowRule(max_warmup_s=121.0),
            WindowRule(window_s=31.0),
            WindowRule(min_requests=21),
            WindowRule(max_window_s=121.0),
        ],
    )
    def test_it_knows_the_protocol(self, window: WindowRule) -> None:
        """Every length of the window counts."""
        assert fingerprint(ORIGIN, REQUEST) != fingerprint(ORIGIN, asked(window=window))

    @pytest.mark.parametrize(
        "changes",
        [
            {"window": WindowRule(idle_s=0.0, stops_early=False)},
            {"sla": (Limit(metric="ttft_p99_ms", bound_ms=9.0),), "latency_metric": "e2e_p50_ms"},
            {"knobs": (), "budget": Budget(trials=99), "name": "other", "sampler": "random"},
            {"repeats": RepeatRule(windows=3), "reuse": ReuseRule(max_age_hours=1.0)},
            {"quality": QualityGate(max_perplexity_ratio=1.5)},
        ],
    )
    def test_what_moves_no_figure_is_not_in_it(self, changes: dict[str, Any]) -> None:
        """Limits, knob lists, budgets and idle power may differ: the measurement is the same."""
        assert fingerprint(ORIGIN, REQUEST) == fingerprint(ORIGIN, asked(**changes))

    def test_it_knows_the_device_and_not_its_slot(self) -> None:
        """Another power limit is another fingerprint; another slot or ordinal is not, nor another order of details."""
        details = (("power_limit_w", "700"), ("vbios", "96.00"), ("pci_id", "01:00.0"), ("cuda_ordinal", "0"))
        moved = (("vbios", "96.00"), ("power_limit_w", "700"), ("pci_id", "02:00.0"))
        limited = (("vbios", "96.00"), ("power_limit_w", "500"))
        assert fingerprint(ORIGIN, REQUEST, details=details) == fingerprint(ORIGIN, REQUEST, details=moved)
        assert fingerprint(ORIGIN, REQUEST, details=details) != fingerprint(ORIGIN, REQUEST, details=limited)


class TestSettingsKey:
    """All settings of a point, searched or not."""

    @pytest.mark.parametrize(
        ("engine", "device"),
        [
            ({"max_batch": 16}, {}),
            ({"prefill_chunk": 512}, {}),
            ({"kv_precision": "fp8"}, {}),
            ({"max_context": 64}, {}),
            ({}, {"sm_clock_cap_mhz": 1395}),
            ({}, {"power_cap_w": 500}),
        ],
    )
    def test_every_setting_counts(self, engine: dict[str, Any], device: dict[str, Any]) -> None:
        """Another value of any setting is another key, also of one that is left as it is found."""
        plain = settings_key(EngineSettings(model="m"), DeviceSettings())
        assert plain != settings_key(EngineSettings(model="m", **engine), DeviceSettings(**device))

    def test_the_name_of_the_model_does_not(self) -> None:
        """A folder and a name that mean the same weights are the same: the fingerprint has the weights' hash."""
        keys = {settings_key(EngineSettings(model=model), DeviceSettings()) for model in ("m", "/models/m")}
        assert len(keys) == 1


class LimitedDevice(ScriptedDevice):
    """A device whose driver tells its power limit only as it is looked at."""

    def __init__(self, limit_w: float | None, details: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__()
        self._limit_w, self._details = limit_w, details

    @property
    def info(self) -> DeviceInfo:
        """A card with the details that were given."""
        return DeviceInfo(uuid="GPU-1", name="a card", kind=DeviceKind.GPU, driver="6.12", details=self._details)

    def status(self) -> Status:
        """Tell the limit, or that the device is gone where there is none."""
        if self._limit_w is None:
            raise DeviceLost("GPU-1 does not answer")
        return Status(time_s=0.0, power_limit_w=self._limit_w)


class TestDetails:
    """What is particular about a device, its power limit included, whoever made it."""

    def test_a_limit_that_the_details_lack_is_looked_up(self) -> None:
        """AMD's boards at 550 and at 750 W are told apart, as NVIDIA's are by their details."""
        vendor = (("vendor", "amd"),)
        assert details_of(LimitedDevice(550.0, vendor)) == (*vendor, ("power_limit_w", "550.0"))
        keys = {
            fingerprint(ORIGIN, REQUEST, details=details_of(LimitedDevice(limit_w, vendor)))
            for limit_w in (550.0, 750.0)
        }
        assert len(keys) == 2

    @pytest.mark.parametrize("name", ["power_limit_w", "GPU-1 power_limit_w"])
    def test_a_limit_among_the_details_is_enough(self, name: str) -> None:
        """One card's or a group's member's: nothing is added to it, so that stored figures keep their fingerprint."""
        assert details_of(LimitedDevice(700.0, ((name, "700.0"),))) == ((name, "700.0"),)

    def test_a_device_that_does_not_answer_adds_nothing(self) -> None:
        """A limit that nobody told is none of the details."""
        assert details_of(LimitedDevice(None)) == ()
