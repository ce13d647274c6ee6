"""The space of a job: what can be set is searched, what cannot is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.settings import AS_STORED, EngineSettings
from probes.device import DeviceKind, Method, PowerSource, Scope
from probes.settings import CPU_CLOCK_CAP, DEVICE_KNOBS, POWER_CAP, SM_CLOCK_CAP, DeviceSettings, Settable
from probes.simulated.names import open_simulated
from tests.tuner.factories import make_knob, make_request, make_space
from tests.tuner.scripted import ScriptedDevice
from tests.tuner.simulated import make_simulated
from tuner.errors import InvalidRequest
from tuner.point import OperatingPoint
from tuner.request import KnobRange, KnobValue, QualityGate, WorkloadSpec
from tuner.space import SearchSpace, capacity_of, device_settings_of, search_space, settings_of


def space_of(*knobs: KnobRange, kind: DeviceKind = DeviceKind.CPU, **changes: Any) -> SearchSpace:
    return search_space(make_request(knobs=knobs, **changes), ScriptedDevice(kind=kind))


def values_of(space: SearchSpace) -> dict[str, tuple[KnobValue, ...]]:
    return {knob.name: knob.values for knob in space.knobs}


def test_an_unknown_engine_is_refused() -> None:
    """An engine that this version lacks is refused with the list of those it has."""
    with pytest.raises(InvalidRequest, match="engine is 'tgi': this version has embedded, simulated, vllm"):
        space_of(engine="tgi")


def test_an_unknown_knob_is_refused() -> None:
    """A knob that the engine lacks is refused with the list of those it has."""
    with pytest.raises(InvalidRequest, match=r"knobs is 'rate': .* the engine has max_batch, precision, prefill_chunk"):
        space_of(KnobRange(name="rate", values=(1, 2)))


CLOCKS = Settable(name=SM_CLOCK_CAP, values=(210, 990, 1005, 1980))
LIMITS = Settable(name=POWER_CAP, values=(200, 700), is_range=True)
CPU_CLOCKS = Settable(name=CPU_CLOCK_CAP, values=(800, 3500), is_range=True)


def controlled(*knobs: KnobRange, device: ScriptedDevice | None = None) -> SearchSpace:
    device = device or ScriptedDevice(kind=DeviceKind.GPU, knobs=(CLOCKS, LIMITS))
    return search_space(make_request(knobs=knobs, allow_device_control=True), device)


@pytest.mark.parametrize("name", DEVICE_KNOBS)
def test_a_device_knob_is_refused_unless_the_job_allows_it(name: str) -> None:
    """A clock or power cap is refused where the job does not allow control: by its name, with the device's."""
    with pytest.raises(InvalidRequest) as caught:
        space_of(KnobRange(name=name, values=(900, 1200)))
    assert (f"knobs.{name}", [900, 1200]) == (caught.value.field, caught.value.value)
    assert "Scripted CPU is only observed" in caught.value.remedy


def test_a_knob_that_the_device_lacks_is_refused() -> None:
    """POWER-24: a knob that the device does not offer never reaches the search: the job is refused with its name."""
    with pytest.raises(InvalidRequest, match=r"knobs\.cpu_clock_cap_mhz is \[900\]: .* has no such knob"):
        controlled(KnobRange(name=CPU_CLOCK_CAP, values=(900,)))


def test_caps_are_snapped_down_to_what_the_device_takes() -> None:
    """BUG-49: 1000 MHz becomes the supported 990, and the point says 990; what falls on one value is tried once."""
    space = controlled(KnobRange(name=SM_CLOCK_CAP, values=(1000, 995, 1980, 5000)))
    assert values_of(space) == {SM_CLOCK_CAP: (990, 1980), "precision": ("bf16",)}
    assert space.default_point.as_dict() == {SM_CLOCK_CAP: 1980, "precision": "bf16"}


def test_a_power_cap_takes_any_whole_watt_of_its_range() -> None:
    """Fractions of a watt are cut, and more than the board allows is what the board allows."""
    space = controlled(KnobRange(name=POWER_CAP, values=(200, 450.9, 900)))
    assert values_of(space)[POWER_CAP] == (200, 450, 700)


@pytest.mark.parametrize("values", [(100,), (0,), (-5, 990)])
def test_a_cap_below_the_lowest_is_refused(values: tuple[int, ...]) -> None:
    """POWER-25: below the lowest value nothing can be promised, so the job is refused before it is stored."""
    with pytest.raises(InvalidRequest, match=r"knobs\.sm_clock_cap_mhz is .*: the lowest value of this device is 210"):
        controlled(KnobRange(name=SM_CLOCK_CAP, values=values))


def test_what_may_not_be_set_is_not_searched() -> None:
    """Where less may be set than the device offers, that bounds every value and gives the default."""
    device = ScriptedDevice(kind=DeviceKind.GPU, knobs=(CLOCKS,))
    request = make_request(knobs=(KnobRange(name=SM_CLOCK_CAP, values=(990, 1980)),), allow_device_control=True)
    space = search_space(request, device, settables=(CLOCKS.up_to(1500),))
    assert values_of(space)[SM_CLOCK_CAP] == (990, 1005)
    assert space.default_point[SM_CLOCK_CAP] == 1005


def test_a_cap_that_is_a_word_is_refused() -> None:
    """A cap takes numbers."""
    with pytest.raises(InvalidRequest, match=r"knobs\.power_cap_w is 'high': give numbers"):
        controlled(KnobRange(name=POWER_CAP, values=("high",)))


def test_clock_caps_are_searched_by_default_where_control_is_allowed() -> None:
    """A job that names no knob tries clock caps from half of the highest clock on, and leaves the power limit be."""
    device = ScriptedDevice(
        kind=DeviceKind.GPU, knobs=(Settable(name=SM_CLOCK_CAP, values=tuple(range(210, 1981, 15))), LIMITS)
    )
    values = values_of(controlled(device=device))
    assert values[SM_CLOCK_CAP] == (990, 1185, 1380, 1575, 1770, 1980)
    assert POWER_CAP not in values


def test_an_observed_device_adds_no_knob() -> None:
    """Without the job's permission the default space is the engine's alone."""
    device = ScriptedDevice(kind=DeviceKind.GPU, knobs=(CLOCKS, LIMITS))
    assert {"max_batch", "precision", "prefill_chunk"} == set(values_of(search_space(make_request(knobs=()), device)))


def test_an_estimate_cannot_judge_a_clock() -> None:
    """A CPU whose energy is estimated from CPU time has no clock knob: every cap would look like a loss."""
    source = PowerSource(scope=Scope.CPU_SHARE, method=Method.ESTIMATE, detail="a formula")
    device = ScriptedDevice(knobs=(CPU_CLOCKS,), source=source)
    assert CPU_CLOCK_CAP not in values_of(controlled(device=device))
    with pytest.raises(InvalidRequest, match="cannot see a clock"):
        controlled(KnobRange(name=CPU_CLOCK_CAP, values=(1200,)), device=device)


def test_a_point_tells_engine_and_device_apart() -> None:
    """The engine's settings come from its knobs, the device's from the device's, and neither sees the other's."""
    point = OperatingPoint.of({"max_batch": 4, SM_CLOCK_CAP: 990, POWER_CAP: 450})
    assert DeviceSettings(sm_clock_cap_mhz=990, power_cap_w=450) == device_settings_of(point)
    assert settings_of(make_request(), OperatingPoint.of({"max_batch": 4})) == settings_of(make_request(), point)


@pytest.mark.parametrize("precision", ["fp6", "FP32", "", 16])
def test_an_unknown_precision_is_refused(precision: KnobValue) -> None:
    """A precision that the engine lacks is refused with the list of those it has."""
    with pytest.raises(InvalidRequest, match=r"knobs\.precision is .*: choose from fp32, tf32, bf16"):
        space_of(KnobRange(name="precision", values=(precision,)))


@pytest.mark.parametrize("precision", ["tf32", "fp8", "nvfp4", "mxfp4"])
def test_what_only_a_gpu_computes_in_is_refused_on_a_cpu(precision: str) -> None:
    """A precision that a CPU lacks is refused with what it needs, before the job is stored; GPUs differ."""
    knob = KnobRange(name="precision", values=("fp32", precision))
    with pytest.raises(InvalidRequest, match=rf"knobs\.precision is '{precision}': .* needs an NVIDIA GPU of compute"):
        space_of(knob)
    assert values_of(space_of(knob, kind=DeviceKind.GPU)) == {"precision": ("fp32", precision)}


@pytest.mark.parametrize("value", [0, -1, 1.5, 2.0, "eight", True, 10**400])
@pytest.mark.parametrize("name", ["max_batch", "prefill_chunk"])
def test_a_value_that_the_engine_cannot_take_is_refused(name: str, value: KnobValue) -> None:
    """Zero, negative, fractional, enormous and non-numeric counts are refused before the job is stored, by name."""
    with pytest.raises(InvalidRequest, match=name):
        space_of(KnobRange(name=name, values=(value,)))


def test_a_bad_value_is_found_in_a_large_space() -> None:
    """One bad value among a million combinations is refused before the job is stored."""
    with pytest.raises(InvalidRequest, match="max_batch is 0"):
        space_of(
            KnobRange(name="max_batch", values=tuple(range(999, -1, -1))),
            KnobRange(name="prefill_chunk", values=tuple(range(1, 1001))),
        )


@pytest.mark.parametrize("kind", [DeviceKind.CPU, DeviceKind.GPU])
def test_a_request_without_knobs_searches_all_that_the_device_can_run(kind: DeviceKind) -> None:
    """Where no knob is named all of them are searched, and no default value is one that the device would refuse."""
    space = space_of(kind=kind)
    assert [knob.name for knob in space.knobs] == ["max_batch", "precision", "prefill_chunk"]
    assert ("int8" in values_of(space)["precision"]) == (kind is not DeviceKind.GPU)
    named = [KnobRange(name=name, values=values) for name, values in values_of(space).items()]
    assert space == space_of(*named, kind=kind)


def test_a_gpu_serves_in_bf16_unless_a_job_says_otherwise() -> None:
    """On a GPU the reference is bf16, also where precision is not searched; what a job names, it has."""
    batch = KnobRange(name="max_batch", values=(4, 8))
    wide, narrow = (KnobRange(name="precision", values=values) for values in (("fp32", "bf16"), ("fp16", "fp8")))
    spaces = [space_of(*knobs, kind=DeviceKind.GPU) for knobs in ((batch,), (batch, wide), (batch, narrow))]

    assert [space.default_point["precision"] for space in spaces] == ["bf16", "bf16", "fp16"]
    assert space_of(batch, wide).default_point["precision"] == "fp32"


def test_only_launch_knobs_need_a_launch() -> None:
    """Batch and precision take a new engine, the prefill chunk does not."""
    assert {knob.name: knob.needs_launch for knob in space_of().knobs} == {
        "max_batch": True,
        "precision": True,
        "prefill_chunk": False,
    }


@pytest.mark.parametrize(
    ("values", "nearest"),
    [((4, 8, 16), 8), ((16, 4), 4), ((1, 32), 1), ((9, 7), 9), ((512,), 512)],
)
def test_the_default_point_is_the_nearest_to_an_untuned_server(values: tuple[int, ...], nearest: int) -> None:
    """The default is the engine's own where the list has it, else the number nearest to it."""
    knob = make_knob(values=values, default=8)
    assert OperatingPoint.of({"max_batch": nearest}) == SearchSpace(knobs=(knob,)).default_point


@pytest.mark.parametrize(("values", "word"), [(("bf16", "fp32"), "fp32"), (("int8", "bf16"), "int8")])
def test_the_default_word_is_the_first_where_the_list_lacks_it(values: tuple[str, ...], word: str) -> None:
    """Words have no distance, so the first stands in for a default that is not in the list."""
    knob = make_knob("precision", values, default="fp32")
    assert OperatingPoint.of({"precision": word}) == SearchSpace(knobs=(knob,)).default_point


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_points_are_all_combinations_once(lengths: list[int]) -> None:
    """The points are as many as the size says, all different, all in the space, the default among them."""
    space = make_space(**{f"knob{i}": tuple(range(length)) for i, length in enumerate(lengths)})
    points = list(space.points())
    assert space.size == len(points) == len(set(points))
    assert all(point in space for point in points)
    assert space.default_point in points


def test_the_last_knob_changes_fastest() -> None:
    """Points come in an order in which launch knobs, named first, change least."""
    assert [(point["max_batch"], point["precision"]) for point in make_space().points()] == [
        (4, "fp32"),
        (4, "int8"),
        (8, "fp32"),
        (8, "int8"),
    ]


@pytest.mark.parametrize(
    "knobs",
    [
        {"max_batch": 4},
        {"max_batch": 5, "precision": "fp32"},
        {"max_batch": 4, "precision": "fp32", "rate": 1},
        {"max_batch": 4, "prefill_chunk": 32},
        {},
    ],
)
def test_a_point_with_other_knobs_is_not_in_the_space(knobs: dict[str, KnobValue]) -> None:
    """A point with a knob too few, a knob too many, or another value is none of the space's."""
    assert OperatingPoint.of(knobs) not in make_space()


def test_settings_hold_the_point_and_defaults_for_the_rest() -> None:
    """A point's knobs reach the engine, the others keep their defaults, the context fits the workload."""
    settings = settings_of(make_request(), OperatingPoint.of({"max_batch": 2, "precision": "int8"}))
    assert (
        settings.model,
        settings.max_batch,
        settings.precision,
        settings.prefill_chunk,
        settings.max_context,
    ) == ("smollm2-135m", 2, "int8", 256, 16 + 6)


def test_replicas_add_up() -> None:
    """So many requests run at once as all replicas of a layout take."""
    assert capacity_of(EngineSettings(model="m", max_batch=16, data_parallel=3)) == 48


@pytest.mark.parametrize("engine", ["embedded", "vllm"])
@pytest.mark.parametrize("scenario", ["offline", "server"])
def test_an_engine_that_computes_takes_every_scenario(engine: str, scenario: str) -> None:
    """Requests may come at their own times at every engine."""
    rate_per_s = 2.0 if scenario == "server" else None
    space = space_of(workload=WorkloadSpec(scenario=scenario, rate_per_s=rate_per_s), engine=engine)
    assert "max_batch" in values_of(space)


@pytest.mark.parametrize("engine", ["llamacpp", "openai"])
def test_a_precision_that_no_job_sets_is_the_models_own(engine: str) -> None:
    """An engine without a knob of precision runs what the model is stored in: no point claims another one."""
    request = make_request(engine=engine)
    assert settings_of(request, OperatingPoint.of({"max_batch": 8})).precision == AS_STORED


def test_only_a_server_has_a_profile() -> None:
    """A profile of a server says nothing of an engine of ours, and is refused by name."""
    with pytest.raises(InvalidRequest, match="server is 'prod': the embedded engine is no server"):
        space_of(server="prod")


@pytest.mark.parametrize("kind", [DeviceKind.CPU, DeviceKind.GPU])
def test_a_real_device_simulates_nothing(kind: DeviceKind) -> None:
    """The simulated engine on a real device is a contradiction, refused with both ways out."""
    with pytest.raises(InvalidRequest, match=r"engine is 'simulated': Scripted CPU is real; choose device 'simulated:"):
        space_of(engine="simulated", kind=kind)


def test_a_simulated_device_computes_nothing() -> None:
    """The embedded engine on a simulated device is a contradiction, refused by name."""
    with pytest.raises(InvalidRequest, match=r"engine is 'embedded': .* computes nothing; leave the engine out"):
        space_of(kind=DeviceKind.SIMULATED)


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        (QualityGate(max_perplexity_ratio=1.01), "quality.max_perplexity_ratio is 1.01"),
        (QualityGate(max_kl=0.01), "quality.max_kl is 0.01"),
        (QualityGate(min_top1_agreement=0.99), "quality.min_top1_agreement is 0.99"),
        (QualityGate(text_file="/t.txt", max_perplexity=9.0), "quality.text_file is '/t.txt'"),
    ],
)
def test_a_simulated_device_judges_no_answers(gate: QualityGate, words: str) -> None:
    """A limit of the quality gate is refused where no answer could miss it, with field, value and remedy."""
    request = make_simulated(quality=gate)
    with pytest.raises(InvalidRequest) as caught:
        search_space(request, open_simulated(request.device))
    assert str(caught.value).startswith(f"{words}: ")
    assert caught.value.remedy.endswith("computes no answers that could be judged; remove it, or tune a real device")


# Spaces of simulated devices


def simulated_space(*knobs: KnobRange, **changes: Any) -> SearchSpace:
    request = make_simulated(knobs=knobs, **changes)
    return search_space(request, open_simulated(request.device))


def test_a_simulated_device_is_searched_with_its_clocks() -> None:
    """Without a knob named, batch, chunk, the precisions at speed and clock caps are searched; nobody need allow it."""
    values = values_of(simulated_space())
    assert list(values) == ["max_batch", "precision", "prefill_chunk", SM_CLOCK_CAP]
    assert (values["precision"], len(values[SM_CLOCK_CAP])) == (("bf16", "fp8"), 6)
    assert simulated_space().default_point.as_dict() == {
        "max_batch": 256,
        "precision": "bf16",
        "prefill_chunk": 8192,
        SM_CLOCK_CAP: max(values[SM_CLOCK_CAP]),
    }


@pytest.mark.parametrize(
    ("device", "precisions"),
    [("a100-sxm-80", ("bf16",)), ("h200-sxm", ("bf16", "fp8")), ("b200", ("bf16", "fp8", "nvfp4"))],
)
def test_precisions_are_those_at_speed(device: str, precisions: tuple[str, ...]) -> None:
    """Of the precisions tried by default a device gets those it computes in."""
    assert values_of(simulated_space(device=f"simulated:{device}"))["precision"] == precisions


@pytest.mark.parametrize(
    ("device", "knob", "value"),
    [
        ("a100-sxm-80", "precision", "fp8"),
        ("h100-sxm", "precision", "nvfp4"),
        ("h100-sxm", "tensor_parallel", 2),
        ("h100-sxm:8", "tensor_parallel", 16),
        ("h100-sxm:8", "tensor_parallel", 3),
        ("h100-sxm", "expert_parallel", "on"),
    ],
)
def test_a_value_that_no_point_could_use_is_refused(device: str, knob: str, value: KnobValue) -> None:
    """What the device or the model lacks is refused by knob and value before the job is stored."""
    known: dict[str, KnobValue] = {"precision": "bf16", "tensor_parallel": 1, "expert_parallel": "off"}
    with pytest.raises(InvalidRequest) as refused:
        simulated_space(KnobRange(name=knob, values=(known[knob], value)), device=f"simulated:{device}")
    assert (f"knobs.{knob}", value) == (refused.value.field, refused.value.value)


@pytest.mark.parametrize("knob", ["precision", "kv_precision", "policy", "expert_parallel"])
def test_an_unknown_word_is_refused(knob: str) -> None:
    """A word that the engine does not know is refused with those it does."""
    with pytest.raises(InvalidRequest, match=rf"knobs\.{knob} is 'maybe': choose from "):
        simulated_space(KnobRange(name=knob, values=("maybe",)))


def test_several_gpus_have_a_layout() -> None:
    """Without a layout named, every point has the smallest that holds the model, with replicas on the other GPUs."""
    space = simulated_space(model="llama-3.1-70b", device="simulated:h100-sxm:8")
    assert (values_of(space)["tensor_parallel"], values_of(space)["data_parallel"]) == ((4,), (2,))
    settings = settings_of(make_simulated(model="llama-3.1-70b"), space.default_point, num_gpus=8)
    assert (settings.tensor_parallel, settings.data_parallel, settings.num_gpus) == (4, 2, 8)


def test_replicas_follow_a_layout_that_is_searched() -> None:
    """Where several tensor-parallel sizes are tried, each gets as many replicas as fit; the default stays."""
    sizes = KnobRange(name="tensor_parallel", values=(1, 2, 4, 8))
    space = simulated_space(sizes, model="llama-3.1-70b", device="simulated:h100-sxm:8")
    assert "data_parallel" not in values_of(space)
    assert space.default_point["tensor_parallel"] == 4
    request = make_simulated(model="llama-3.1-70b", device="simulated:h100-sxm:8")
    replicas = [settings_of(request, point, num_gpus=8).data_parallel for point in space.points()]
    assert replicas == [8, 4, 2, 1]


def test_prompts_on_gpus_of_their_own_leave_fewer_for_replicas() -> None:
    """GPUs for prompts are not counted again for replicas."""
    space = simulated_space(
        KnobRange(name="prefill_gpus", values=(0, 4)),
        KnobRange(name="tensor_parallel", values=(2,)),
        device="simulated:h100-sxm:8",
    )
    request = make_simulated()
    assert [settings_of(request, point, num_gpus=8).num_gpus for point in space.points()] == [8, 8]


def test_a_model_is_served_as_it_is_published() -> None:
    """A model whose weights are published in fp8 has that for its default, where the device computes in it."""
    space = simulated_space(model="deepseek-r1", device="simulated:h200-sxm:8")
    assert space.default_point["precision"] == "fp8"
    named = simulated_space(KnobRange(name="max_batch", values=(8,)), model="deepseek-r1", device="simulated:b200:8")
    assert values_of(named)["precision"] == ("fp8",)


def test_shares_and_switches_are_knobs_of_the_embedded_engine() -> None:
    """A job may name a share of a step, a policy and the prefix cache; each becomes the engine's own setting."""
    names: dict[str, KnobValue] = {"max_prefill_fraction": 0.5, "policy": "prefill_first", "prefix_caching": "on"}
    knobs = tuple(KnobRange(name=name, values=(value,)) for name, value in names.items())
    request = make_request(knobs=knobs)

    found = settings_of(request, search_space(request, ScriptedDevice()).default_point)

    assert (found.max_prefill_fraction, found.policy, found.prefix_caching) == (0.5, "prefill_first", True)
    assert settings_of(make_request(), OperatingPoint.of({"max_batch": 2})).prefix_caching is False


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_prefill_fraction", 0.0, "give a share above 0"),
        ("max_prefill_fraction", "half", "give numbers"),
        ("policy", "priority", "choose from decode_first, prefill_first"),
        ("prefix_caching", "yes", "choose from off, on"),
    ],
)
def test_what_no_share_or_switch_can_be_is_refused(name: str, value: KnobValue, words: str) -> None:
    """A share outside its range, a word for a number, and classes that no load's request has are refused by name."""
    with pytest.raises(InvalidRequest, match=words):
        search_space(make_request(knobs=(KnobRange(name=name, values=(value,)),)), ScriptedDevice())
