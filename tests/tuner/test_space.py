"""The space of a job: what can be set is searched, what cannot is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.device import DeviceKind
from tests.tuner.factories import make_knob, make_request, make_space
from tests.tuner.scripted import ScriptedDevice
from tuner.errors import InvalidRequest
from tuner.point import OperatingPoint
from tuner.request import KnobRange, KnobValue, WorkloadSpec
from tuner.space import DEVICE_KNOBS, SearchSpace, concurrency_of, search_space, settings_of


def space_of(*knobs: KnobRange, kind: DeviceKind = DeviceKind.CPU, **changes: Any) -> SearchSpace:
    return search_space(make_request(knobs=knobs, **changes), ScriptedDevice(kind=kind))


def values_of(space: SearchSpace) -> dict[str, tuple[KnobValue, ...]]:
    return {knob.name: knob.values for knob in space.knobs}


def test_an_unknown_engine_is_refused() -> None:
    """An engine that this version lacks is refused with the list of those it has."""
    with pytest.raises(InvalidRequest, match="engine is 'vllm': this version has embedded"):
        space_of(engine="vllm")


def test_an_unknown_knob_is_refused() -> None:
    """A knob that the engine lacks is refused with the list of those it has."""
    with pytest.raises(InvalidRequest, match=r"knobs is 'rate': .* it has max_batch, precision, prefill_chunk"):
        space_of(KnobRange(name="rate", values=(1, 2)))


@pytest.mark.parametrize("name", DEVICE_KNOBS)
def test_a_device_knob_is_refused_by_name(name: str) -> None:
    """A clock or power cap is refused where the device is only observed: by its name, with the device's."""
    with pytest.raises(InvalidRequest) as caught:
        space_of(KnobRange(name=name, values=(900, 1200)))
    assert (f"knobs.{name}", [900, 1200]) == (caught.value.field, caught.value.value)
    assert "Scripted CPU is only observed" in caught.value.remedy


@pytest.mark.parametrize("precision", ["fp8", "FP32", "", 16])
def test_an_unknown_precision_is_refused(precision: KnobValue) -> None:
    """A precision that the engine lacks is refused with the list of those it has."""
    with pytest.raises(InvalidRequest, match=r"knobs\.precision is .*: choose from fp32, bf16, fp16, int8"):
        space_of(KnobRange(name="precision", values=(precision,)))


def test_int8_is_refused_on_a_gpu_only() -> None:
    """The precision that only CPUs run is refused for a GPU and taken for a CPU."""
    int8 = KnobRange(name="precision", values=("int8",))
    assert values_of(space_of(int8)) == {"precision": ("int8",)}
    with pytest.raises(InvalidRequest, match=r"knobs\.precision is 'int8'"):
        space_of(int8, kind=DeviceKind.GPU)


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


@pytest.mark.parametrize("kind", DeviceKind)
def test_a_request_without_knobs_searches_all_that_the_device_can_run(kind: DeviceKind) -> None:
    """Where no knob is named all of them are searched, and no default value is one that the device would refuse."""
    space = space_of(kind=kind)
    assert [knob.name for knob in space.knobs] == ["max_batch", "precision", "prefill_chunk"]
    assert ("int8" in values_of(space)["precision"]) == (kind is not DeviceKind.GPU)
    named = [KnobRange(name=name, values=values) for name, values in values_of(space).items()]
    assert space == space_of(*named, kind=kind)


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


@pytest.mark.parametrize(("concurrency", "offered"), [(None, 16), (3, 3), (64, 64)])
def test_the_load_follows_the_batch_unless_it_is_given(concurrency: int | None, offered: int) -> None:
    """Without a concurrency as many requests are in flight as the engine runs at once."""
    request = make_request(workload=WorkloadSpec(concurrency=concurrency))
    assert offered == concurrency_of(request, OperatingPoint.of({"max_batch": 16}))
