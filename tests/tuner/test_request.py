"""A request refuses what cannot work, and says which field, which value and what to do instead."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuner.factories import make_request
from tuner.errors import EmptySpace, InvalidRequest, TunerError
from tuner.request import (
    LATENCY_METRICS,
    MAX_KNOB_VALUES,
    MAX_TOKENS,
    MAX_TRIALS,
    Budget,
    KnobRange,
    Limit,
    QualityGate,
    TuneRequest,
    WindowRule,
    WorkloadSpec,
)


class Refusal(NamedTuple):
    """What is refused, and what the message must name."""

    build: Callable[[], object]
    field: str
    value: str
    remedy: str


REFUSALS = {
    "no model": Refusal(lambda: make_request(model="  "), "model", "'  '", "name a model"),
    "unknown axis": Refusal(
        lambda: make_request(latency_metric="ttft_p42_ms"), "latency_metric", "'ttft_p42_ms'", "choose ttft|tpot"
    ),
    "long name": Refusal(lambda: make_request(name="n" * 201), "name", "nnn...", "at most 200"),
    "unknown metric": Refusal(
        lambda: Limit(metric="speed_p99_ms", bound_ms=1.0), "sla", "'speed_p99_ms'", "as in ttft_p99_ms"
    ),
    "bound of 0": Refusal(
        lambda: Limit(metric="ttft_p99_ms", bound_ms=0.0), "sla.ttft_p99_ms", "0.0", "positive number"
    ),
    "bound of NaN": Refusal(
        lambda: Limit(metric="ttft_p99_ms", bound_ms=math.nan), "sla.ttft_p99_ms", "nan", "positive number"
    ),
    "endless bound": Refusal(
        lambda: Limit(metric="itl_p50_ms", bound_ms=math.inf), "sla.itl_p50_ms", "inf", "positive number"
    ),
    "scenario": Refusal(lambda: WorkloadSpec(scenario="chaos"), "workload.scenario", "'chaos'", "choose closed"),
    "no prompt": Refusal(
        lambda: WorkloadSpec(prompt_tokens=(0, 4)), "workload.prompt_tokens", "'0..4'", "1 <= low <= high"
    ),
    "range backwards": Refusal(
        lambda: WorkloadSpec(output_tokens=(9, 8)), "workload.output_tokens", "'9..8'", "1 <= low <= high"
    ),
    "huge output": Refusal(
        lambda: WorkloadSpec(output_tokens=(1, MAX_TOKENS + 1)), "workload.output_tokens", "1000001", "<= 1000000"
    ),
    "no concurrency": Refusal(lambda: WorkloadSpec(concurrency=0), "workload.concurrency", "0", "1 to 100000"),
    "huge concurrency": Refusal(
        lambda: WorkloadSpec(concurrency=100_001), "workload.concurrency", "100001", "1 to 100000"
    ),
    "no rate": Refusal(lambda: WorkloadSpec(scenario="server"), "workload.rate_per_s", "None", "server needs it"),
    "a rate of 0": Refusal(
        lambda: WorkloadSpec(scenario="server", rate_per_s=0.0), "workload.rate_per_s", "0.0", "above 0"
    ),
    "a rate of NaN": Refusal(
        lambda: WorkloadSpec(scenario="interactive", rate_per_s=math.nan), "workload.rate_per_s", "nan", "above 0"
    ),
    "a rate of a closed load": Refusal(
        lambda: WorkloadSpec(rate_per_s=2.0), "workload.rate_per_s", "2.0", "only server and interactive have it"
    ),
    "a concurrency of arrivals": Refusal(
        lambda: WorkloadSpec(scenario="server", rate_per_s=2.0, concurrency=4),
        "workload.concurrency",
        "4",
        "only closed have it, not server",
    ),
    "no trace": Refusal(lambda: WorkloadSpec(scenario="trace"), "workload.trace_file", "None", "trace needs it"),
    "a stretched offline load": Refusal(
        lambda: WorkloadSpec(scenario="offline", trace_file="t.csv", time_scale=0.5),
        "workload.time_scale",
        "0.5",
        "only ",
    ),
    "half a ramp": Refusal(
        lambda: WorkloadSpec(scenario="server", rate_per_s=1.0, ramp_s=9.0),
        "workload.ramp_to_per_s",
        "None",
        "ramp_s needs",
    ),
    "time that stands still": Refusal(
        lambda: WorkloadSpec(scenario="trace", trace_file="t.csv", time_scale=0.0),
        "workload.time_scale",
        "0.0",
        "above 0",
    ),
    "no trials": Refusal(lambda: Budget(trials=0), "budget.trials", "0", "1 to 100000"),
    "too many trials": Refusal(lambda: Budget(trials=MAX_TRIALS + 1), "budget.trials", "100001", "1 to 100000"),
    "no minutes": Refusal(lambda: Budget(minutes=0.0), "budget.minutes", "0.0", "positive number of minutes"),
    "NaN minutes": Refusal(lambda: Budget(minutes=math.nan), "budget.minutes", "nan", "positive number of minutes"),
    "endless minutes": Refusal(lambda: Budget(minutes=math.inf), "budget.minutes", "inf", "positive number"),
    "no window": Refusal(lambda: WindowRule(window_s=0.0), "window.window_s", "0.0", "above 0"),
    "NaN warm-up": Refusal(lambda: WindowRule(warmup_s=math.nan), "window.warmup_s", "nan", "above 0"),
    "long window": Refusal(lambda: WindowRule(max_window_s=86_401.0), "window.max_window_s", "86401", "up to 86400"),
    "warm-up limit below warm-up": Refusal(
        lambda: WindowRule(warmup_s=9.0, max_warmup_s=8.0), "window.max_warmup_s", "8.0", "at least warmup_s (9.0)"
    ),
    "window limit below window": Refusal(
        lambda: WindowRule(window_s=9.0, max_window_s=8.0), "window.max_window_s", "8.0", "at least window_s (9.0)"
    ),
    "negative requests": Refusal(lambda: WindowRule(min_requests=-1), "window.min_requests", "-1", "give 0 to 1000000"),
    "gate below 1": Refusal(
        lambda: QualityGate(max_perplexity_ratio=0.99), "quality.max_perplexity_ratio", "0.99", "1.0 or more"
    ),
    "endless gate": Refusal(
        lambda: QualityGate(max_perplexity_ratio=math.inf), "quality.max_perplexity_ratio", "inf", "1.0 or more"
    ),
    "no divergence at all": Refusal(lambda: QualityGate(max_kl=0.0), "quality.max_kl", "0.0", "nats above 0"),
    "NaN divergence": Refusal(lambda: QualityGate(max_kl=math.nan), "quality.max_kl", "nan", "nats above 0"),
    "agreement in percent": Refusal(
        lambda: QualityGate(min_top1_agreement=99.0), "quality.min_top1_agreement", "99.0", "a share above 0 up to 1"
    ),
    "a perplexity below 1": Refusal(
        lambda: QualityGate(max_perplexity=0.9, text_file="t"), "quality.max_perplexity", "0.9", "above 1"
    ),
    "a perplexity of no text": Refusal(
        lambda: QualityGate(max_perplexity=20.0), "quality.max_perplexity", "20.0", "name the text it is measured on"
    ),
    "a text without a name": Refusal(
        lambda: QualityGate(text_file=" "), "quality.text_file", "' '", "give the path of a text file"
    ),
    "a task without a name": Refusal(
        lambda: QualityGate(tasks=("piqa", " ")), "quality.tasks", "' '", "name a task of lm-eval"
    ),
    "a task named twice": Refusal(lambda: QualityGate(tasks=("piqa", "piqa")), "quality.tasks", "'piqa'", "keep one"),
    "too many tasks": Refusal(
        lambda: QualityGate(tasks=tuple(map(str, range(101)))), "quality.tasks", "101 entries", "at most 100"
    ),
    "a share in percent": Refusal(
        lambda: QualityGate(min_task_share=99.0), "quality.min_task_share", "99.0", "a share above 0 up to 1"
    ),
    "a NaN share": Refusal(
        lambda: QualityGate(min_task_share=math.nan), "quality.min_task_share", "nan", "a share above 0 up to 1"
    ),
    "no documents": Refusal(lambda: QualityGate(task_limit=0), "quality.task_limit", "0", "give 1 to 100000"),
    "no values": Refusal(lambda: KnobRange(name="rate", values=()), "knobs.rate", "[]", "at least one value"),
    "repeated value": Refusal(
        lambda: KnobRange(name="rate", values=(8, 8.0)), "knobs.rate", "[8, 8.0]", "remove the repeated"
    ),
    "NaN value": Refusal(lambda: KnobRange(name="rate", values=(math.nan,)), "knobs.rate", "[nan]", "finite"),
    "numbers and words": Refusal(
        lambda: KnobRange(name="rate", values=(8, "auto")), "knobs.rate", "[8, 'auto']", "either numbers or words"
    ),
    "too many values": Refusal(
        lambda: KnobRange(name="rate", values=tuple(range(MAX_KNOB_VALUES + 1))), "knobs.rate", "1001", "at most 1000"
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_names_field_value_and_remedy(refusal: Refusal) -> None:
    """Whatever is refused, the message names the field, the value given and what to give instead."""
    with pytest.raises(InvalidRequest) as caught:
        refusal.build()
    assert refusal.field == caught.value.field
    assert refusal.value in repr(caught.value.value)
    assert refusal.remedy in caught.value.remedy
    assert f"{caught.value.field} is {caught.value.value!r}: {caught.value.remedy}" == str(caught.value)


def test_an_empty_knob_is_an_error_of_its_own() -> None:
    """A knob without values can be told from other mistakes, and is one of the tuner's errors."""
    with pytest.raises(EmptySpace) as caught:
        KnobRange(name="max_batch", values=())
    assert isinstance(caught.value, TunerError)


def test_the_defaults_are_a_request() -> None:
    """A model's name alone makes a request."""
    assert (
        (request := TuneRequest(model="m")).engine,
        request.device,
        request.sla,
        request.knobs,
    ) == ("embedded", "auto", (), ())


@pytest.mark.parametrize("edge", [1, MAX_TOKENS])
def test_the_edges_of_a_range_are_inside_it(edge: int) -> None:
    """The least and the greatest number that a message allows are taken."""
    assert (edge, edge) == WorkloadSpec(prompt_tokens=(edge, edge)).prompt_tokens


@pytest.mark.parametrize(
    "text", ["ttft_p99_ms<=500", "ttft_p99_ms=500", "  ttft_p99_ms <= 500.0  ", "ttft_p99_ms<=5e2"]
)
def test_a_limit_is_read_from_text(text: str) -> None:
    """A limit may be written with <= or =, with or without blanks."""
    assert Limit(metric="ttft_p99_ms", bound_ms=500.0) == Limit.parse(text)


@settings(deadline=None)
@given(metric=st.sampled_from(LATENCY_METRICS), bound_ms=st.floats(min_value=1e-6, max_value=1e9))
def test_every_limit_can_be_written_and_read(metric: str, bound_ms: float) -> None:
    """Reading what was written gives the same limit, for every metric and bound."""
    assert Limit(metric=metric, bound_ms=bound_ms) == Limit.parse(f"{metric}<={bound_ms!r}")


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("ttft_p99_ms", "sla", "ttft_p99_ms"),
        ("ttft_p99_ms<500", "sla", "ttft_p99_ms<500"),
        ("ttft_p99_ms>=500", "sla", "ttft_p99_ms>=500"),
        ("", "sla", ""),
        ("ttft_p99_ms<=fast", "sla.ttft_p99_ms", "fast"),
        ("ttft_p99_ms<=500ms", "sla.ttft_p99_ms", "500ms"),
        ("ttft_p99<=500", "sla", "ttft_p99"),
        ("ttft_p99_ms<=-1", "sla.ttft_p99_ms", "-1"),
        ("ttft_p99_ms<=nan", "sla.ttft_p99_ms", "nan"),
        ("ttft_p99_ms<=inf", "sla.ttft_p99_ms", "inf"),
    ],
)
def test_a_limit_that_cannot_be_read_is_refused(text: str, field: str, value: str) -> None:
    """Text that is no limit is refused with the part that is wrong."""
    with pytest.raises(InvalidRequest) as caught:
        Limit.parse(text)
    assert field == caught.value.field
    assert value in str(caught.value.value)


def test_two_limits_on_one_figure_are_refused() -> None:
    """Two bounds for one figure contradict each other, so the message shows both and asks for one."""
    twice = (Limit(metric="ttft_p99_ms", bound_ms=500.0), Limit(metric="ttft_p99_ms", bound_ms=200.0))
    with pytest.raises(InvalidRequest) as caught:
        make_request(sla=twice)
    assert str(caught.value) == "sla.ttft_p99_ms is '200 ms': it is already 500 ms; keep one of the two"


def test_a_knob_given_twice_is_refused() -> None:
    """Two lists for one knob contradict each other, so the message shows both."""
    twice = (KnobRange(name="max_batch", values=(8, 16)), KnobRange(name="max_batch", values=(32,)))
    with pytest.raises(InvalidRequest) as caught:
        make_request(knobs=twice)
    assert str(caught.value) == "knobs.max_batch is '[32]': it is already [8, 16]; keep one of the two"


def test_limits_on_different_figures_stand_together() -> None:
    """Limits on several percentiles of one latency are not a contradiction."""
    both = (Limit(metric="ttft_p99_ms", bound_ms=500.0), Limit(metric="ttft_p50_ms", bound_ms=200.0))
    assert both == make_request(sla=both).sla
