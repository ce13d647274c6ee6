"""What surrounds an answer: models, health, figures, keys, hanging up, too many at once, and the engine's death."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from api.model_server.vocabulary import Vocabulary
from tests.api.model_server.stage import Stage, stage, until

LONG: dict[str, Any] = {"prompt": "hello", "max_tokens": 250, "temperature": 0, "ignore_eos": True}


def figures(served: Stage) -> dict[str, float]:
    text = served.client.get("/metrics").text
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}


def test_the_model_is_named_with_its_context(served: Stage) -> None:
    """GET /v1/models has one model and its longest context; /health is empty, /version has ours."""
    models = served.client.get("/v1/models").json()["data"]

    assert [(model["id"], model["max_model_len"]) for model in models] == [("tiny", 256)]
    assert (served.client.get("/health").status_code, served.client.get("/health").content) == (200, b"")
    assert "version" in served.client.get("/version").json()


def test_figures_count_what_was_served(served: Stage) -> None:
    """Tokens, times and ends go up by what a request had, under vLLM's names; no gap is counted for the first token."""
    before = figures(served)
    served.post("/v1/completions", prompt="hello", max_tokens=7, temperature=0, ignore_eos=True)
    grown = {name: value - before.get(name, 0.0) for name, value in figures(served).items()}

    assert grown["vllm:prompt_tokens_total"] == 5
    assert grown["vllm:generation_tokens_total"] == 7
    assert grown["vllm:time_to_first_token_seconds_count"] == 1
    assert grown["vllm:inter_token_latency_seconds_count"] == 6
    assert grown["vllm:e2e_request_latency_seconds_count"] == 1
    assert grown["vllm:request_success_total"] == 1
    until(lambda: figures(served)["vllm:num_requests_running"] == 0)


def test_texts_and_tokens_go_both_ways(served: Stage, tiny_folder: Path) -> None:
    """/tokenize takes a text or a chat, /detokenize gives it back."""
    text = "grün"
    asked = served.post("/tokenize", prompt=text, return_token_strs=True).json()
    chat = served.post("/tokenize", messages=[{"role": "user", "content": "hi"}]).json()

    assert (asked["count"], asked["tokens"], len(asked["token_strs"])) == (
        5,
        list(Vocabulary(tiny_folder).encode(text, adds_special=False)),
        5,
    )
    assert served.post("/detokenize", tokens=asked["tokens"]).json() == {"prompt": text}
    assert served.post("/detokenize", tokens=chat["tokens"]).json() == {"prompt": "user: hi\nme:"}
    assert served.post("/tokenize").status_code == 400


def test_wrong_paths_methods_and_bodies_are_openai_errors(served: Stage) -> None:
    """Whatever goes wrong is an error object, not a page."""
    answers = [
        served.client.get("/v2/models"),
        served.client.get("/v1/completions"),
        served.client.post("/v1/completions", content=b"{"),
        served.client.post("/v1/completions", content=b"[1]"),
        served.client.post("/v1/completions", content=b" " * (16 * 2**20 + 1)),
    ]

    assert [answer.status_code for answer in answers] == [404, 405, 400, 400, 413]
    assert all(answer.json()["error"]["message"] for answer in answers)


def test_who_hangs_up_is_cancelled(served: Stage) -> None:
    """A client that leaves ends its request, streamed or not, and the engine does not go on for it."""
    served.engine.ended.clear()
    with served.client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as answer:
        next(answer.iter_lines())
        served.engine.may_step.clear()
    until(lambda: served.thread.num_open == 0)
    served.engine.may_step.set()
    until(lambda: len(served.engine.ended) == 1)

    served.engine.may_step.clear()
    try:
        served.client.post("/v1/completions", json=LONG, timeout=0.3)
    except httpx.ReadTimeout:
        until(lambda: served.thread.num_open == 0)
    served.engine.may_step.set()

    until(lambda: served.engine.num_in_flight == 0)
    assert all(len(record.token_ids) < 250 for record in served.engine.ended)


def test_more_than_may_wait_are_turned_away(tiny_folder: Path) -> None:
    """A request beyond those that may run and wait gets 503 and when to come back; the others are answered."""
    with stage(tiny_folder, max_open=3) as full:
        refused = full.post("/v1/completions", **LONG | {"prompt": ["a", "b", "c", "d"]})
        served = full.post("/v1/completions", **LONG | {"prompt": ["a", "b", "c"], "max_tokens": 2})

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["code"] == "overloaded"
    assert served.status_code == 200


def test_a_dead_engine_is_a_named_500(tiny_folder: Path) -> None:
    """A request under way gets one error with the reason, whole or inside its stream; later ones and /health say so."""
    with stage(tiny_folder) as opened:
        with opened.client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            opened.engine.has_to_die = True
            last = [line for line in lines if line][-1]
        later = opened.post("/v1/completions", **LONG)
        health = opened.client.get("/health")

    assert json.loads(last.removeprefix("data: "))["error"]["message"].startswith("engine_died: engine process 1 ended")
    assert (later.status_code, later.json()["error"]["code"]) == (500, "engine_died")
    assert health.status_code == 503


def test_a_key_guards_everything_but_health(tiny_folder: Path) -> None:
    """With a key a request without it, or with another one, is answered 401; the health check needs none."""
    with stage(tiny_folder, api_key="s3cret") as guarded:
        without = guarded.client.get("/v1/models")
        wrong = guarded.client.get("/metrics", headers={"Authorization": "Bearer other"})
        right = guarded.client.get("/v1/models", headers={"Authorization": "Bearer s3cret"})
        health = guarded.client.get("/health")

    assert [answer.status_code for answer in (without, wrong, right, health)] == [401, 401, 200, 200]
