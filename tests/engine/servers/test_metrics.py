"""Metrics: Prometheus' text of real servers to figures under one name, and two readings to what lies between."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from engine.servers.adapter import ADAPTERS
from engine.servers.metrics import ServerCounters, change, counters_of, label_of, samples_of

#: As vLLM 0.32 answers, shortened.
VLLM = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="smol"} 16.0
vllm:num_requests_waiting{engine="0",model_name="smol"} 8.0
vllm:kv_cache_usage_perc{engine="0",model_name="smol"} 0.044
vllm:num_preemptions_total{engine="0",model_name="smol"} 2.0
vllm:num_preemptions_created{engine="0",model_name="smol"} 1.796e+09
vllm:prefix_cache_queries_total{engine="0",model_name="smol"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="smol"} 250.0
vllm:prompt_tokens_total{engine="0",model_name="smol"} 1000.0
vllm:generation_tokens_total{engine="0",model_name="smol"} 64.0
"""
DYNAMO = """
dynamo_frontend_inflight_requests{model="smol"} 3
dynamo_frontend_queued_requests{model="smol"} 1
dynamo_frontend_cached_tokens_sum{model="smol"} 448
dynamo_frontend_input_sequence_tokens_sum{model="smol"} 512
dynamo_frontend_output_tokens_total{model="smol"} 16
"""


def read(text: str, kind: str) -> ServerCounters:
    return counters_of(samples_of(text), ADAPTERS[kind].metrics)


def test_vllms_figures_are_read() -> None:
    """Each figure of vLLM comes under its name; when a counter was created is none of them."""
    assert read(VLLM, "vllm") == ServerCounters(
        running=16.0,
        waiting=8.0,
        kv_use=0.044,
        preemptions=2.0,
        prefix_hits=250.0,
        prefix_queries=1000.0,
        prompt_tokens=1000.0,
        generated_tokens=64.0,
    )


def test_replicas_are_added_up() -> None:
    """Counts of several engines are added; of the share of the cache the mean is told."""
    second = VLLM.replace('engine="0"', 'engine="1"').replace("0.044", "0.156")
    both = read(VLLM + second, "vllm")
    assert (both.running, both.prompt_tokens) == (32.0, 2000.0)
    assert both.kv_use == pytest.approx(0.1)


def test_old_names_are_read_where_the_new_are_not() -> None:
    """The cache's share under its older name is the same figure."""
    assert read("vllm:gpu_cache_usage_perc 0.5", "vllm").kv_use == 0.5


def test_what_a_server_does_not_tell_is_not_known() -> None:
    """Dynamo's frontend has no cache of its own, and its sums are those of its histograms."""
    told = read(DYNAMO, "dynamo")
    assert (told.running, told.waiting, told.kv_use, told.preemptions) == (3.0, 1.0, None, None)
    assert (told.prefix_hits, told.prefix_queries, told.generated_tokens) == (448.0, 512.0, 16.0)
    assert read("", "vllm") == ServerCounters()


def test_a_figure_may_be_a_sum() -> None:
    """Computed and cached prompt tokens together are those that were looked for; of one alone nobody knows."""
    computed, cached = "llamacpp:prompt_tokens_total 300", "llamacpp:prompt_tokens_cached_total 100"
    told = read(f"{computed}\n{cached}", "llamacpp")
    assert (told.prefix_hits, told.prefix_queries, told.prompt_tokens) == (100.0, 400.0, 300.0)
    assert read(computed, "llamacpp").prefix_queries is None


def test_what_lies_between_two_readings() -> None:
    """Hits of those tokens that were looked for meanwhile, not since the server began."""
    before = ServerCounters(prefix_hits=250.0, prefix_queries=1000.0, preemptions=2.0, generated_tokens=64.0)
    after = ServerCounters(prefix_hits=260.0, prefix_queries=1100.0, preemptions=5.0, generated_tokens=100.0)
    told = change(before, after)
    assert (told.prefix_hit_share, told.num_preemptions, told.num_generated_tokens) == (0.1, 3, 36)
    assert (told.num_prompt_tokens, told.has_restarted) == (None, False)
    assert change(before, before).prefix_hit_share is None


@pytest.mark.parametrize("field", ["preemptions", "prefix_hits", "prefix_queries", "prompt_tokens", "generated_tokens"])
def test_a_counter_that_goes_down_is_a_restart(field: str) -> None:
    """BUG-11: any counter that is lower than before, or gone, says that the server began anew; no figure is told."""
    before = ServerCounters(**{field: 100.0})
    for after in (ServerCounters(**{field: 99.0}), ServerCounters()):
        told = change(before, after)
        assert (told.has_restarted, told.prefix_hit_share, told.num_preemptions) == (True, None, None)


def test_a_counter_that_appears_began_at_nothing() -> None:
    """Counters with labels are there from their first event on."""
    assert change(ServerCounters(), ServerCounters(preemptions=2.0)).num_preemptions == 2


def test_lines_that_are_none_are_passed_over() -> None:
    """Comments, broken lines and values that are no finite numbers leave the rest as it is."""
    samples = samples_of('# a\nnonsense\na{x="1"\nb NaN\nc +Inf\nd 1e3 1700000000\ne{} 2\n<html>\n')
    assert [(one.name, one.value) for one in samples] == [("d", 1000.0), ("e", 2.0)]


@given(
    value=st.floats(0, 1e15),
    label=st.text(st.characters(codec="utf-8"), max_size=20),
)
def test_what_prometheus_client_writes_is_read(value: float, label: str) -> None:
    """Names, labels with any text in them and values of the common Python exporter come back."""
    registry = CollectorRegistry()
    Counter("a:count", "words", ["who"], registry=registry).labels(label).inc(value)
    Gauge("b", "words", registry=registry).set(-value)
    samples = samples_of(generate_latest(registry).decode())
    found = {one.name: one.value for one in samples}
    assert math.isclose(found["a:count_total"], value)
    assert math.isclose(found["b"], -value)
    assert label_of(samples, "a:count_total", "who") == label
