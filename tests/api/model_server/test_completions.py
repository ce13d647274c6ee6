"""POST /v1/completions: prompts in every form, streams and whole answers, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.api.model_server.stage import Stage, stage

PATH = "/v1/completions"
GREEDY: dict[str, Any] = {"model": "tiny", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


def test_text_and_tokens_are_the_same_prompt(served: Stage) -> None:
    """A prompt as text, token ids, or a list of either is answered alike; usage counts every prompt."""
    ids = served.post("/tokenize", prompt="hello").json()["tokens"]
    forms: list[Any] = ["hello", ids, ["hello"], [ids]]
    answers = [served.post(PATH, prompt=form, **GREEDY).json() for form in forms]

    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    assert answers[0]["usage"] == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}
    assert answers[0]["choices"][0]["finish_reason"] == "length"
    assert answers[0]["object"] == "text_completion"


def test_several_prompts_are_answered_in_their_order(served: Stage) -> None:
    """Each prompt of a list has its choice by its index, in a stream as well as whole."""
    prompts = ["one", "two two", "three"]
    alone = [served.post(PATH, prompt=prompt, **GREEDY).json()["choices"][0]["text"] for prompt in prompts]

    whole = served.post(PATH, prompt=prompts, **GREEDY).json()
    chunks = served.chunks(PATH, prompt=prompts, stream_options={"include_usage": True}, **GREEDY)
    streamed = ["", "", ""]
    for chunk in chunks:
        for choice in chunk["choices"]:
            streamed[choice["index"]] += choice["text"]

    assert [choice["text"] for choice in whole["choices"]] == alone
    assert streamed == alone
    assert whole["usage"]["completion_tokens"] == 36
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], 36)


def test_a_stream_has_a_chunk_for_each_token(served: Stage) -> None:
    """With continuous usage each chunk counts one token more; the last one has the reason to end."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = served.chunks(PATH, prompt="hello", stream_options=options, **GREEDY)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk["choices"]]
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]

    assert counts == [*range(1, 13)]
    assert reasons == [None] * 11 + ["length"]


def test_stop_strings_end_an_answer_before_them(served: Stage) -> None:
    """BUG-37: the same text comes streamed and whole, without a part of the stop string, and the reason is `stop`."""
    text = served.post(PATH, prompt="hello", **GREEDY | {"max_tokens": 60}).json()["choices"][0]["text"]
    stop = text[20:23]
    asked = GREEDY | {"max_tokens": 60, "stop": stop}

    whole = served.post(PATH, prompt="hello", **asked).json()["choices"][0]
    chunks = served.chunks(PATH, prompt="hello", **asked)

    assert (whole["text"], whole["finish_reason"]) == (text[: text.index(stop)], "stop")
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["text"]


def test_a_seed_repeats_an_answer(served: Stage) -> None:
    """The same seed draws the same text; without one two answers differ."""
    asked = GREEDY | {"temperature": 1.0, "max_tokens": 40, "prompt": "hello"}
    seeded = {served.post(PATH, **asked, seed=7).json()["choices"][0]["text"] for _ in range(2)}
    free = {served.post(PATH, **asked).json()["choices"][0]["text"] for _ in range(2)}

    assert (len(seeded), len(free)) == (1, 2)


def test_echo_puts_the_prompt_first(served: Stage) -> None:
    """An echoed answer begins with the prompt; its tokens are not counted as output."""
    plain = served.post(PATH, prompt="hello", **GREEDY).json()["choices"][0]["text"]
    echoed = served.post(PATH, prompt="hello", echo=True, **GREEDY).json()

    assert echoed["choices"][0]["text"] == "hello" + plain
    assert echoed["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize(
    ("fields", "status", "param", "words"),
    [
        ({"n": 2}, 400, "n", "n is 2, which the embedded engine does not have; leave it out"),
        ({"logprobs": 1}, 400, "logprobs", "does not have"),
        ({"top_k": 40}, 400, "top_k", "does not have"),
        ({"colour": "red"}, 400, "colour", "colour is not a field of this endpoint"),
        ({"temperature": -1}, 400, "temperature", "temperature is -1"),
        ({"max_tokens": 0}, 400, "max_tokens", "max_tokens is 0"),
        ({"max_tokens": 252}, 400, "prompt", "5 prompt tokens and 252 of output are more than the context of 256"),
        ({"prompt": [256]}, 400, "prompt", "prompt has token 256; the vocabulary has 0 to 255"),
        ({"prompt": []}, 400, "prompt", "prompt is an empty list"),
        ({"prompt": ""}, 400, "prompt", "prompt is empty"),
        ({"prompt": {"a": 1}}, 400, "prompt", "give a text, a list of texts"),
        ({"priority": 2}, 400, "priority", "this server has no classes; leave it out, or start it with --policy"),
        ({"priority": 10}, 400, "priority", "priority is 10"),
        ({"min_tokens": 5, "ignore_eos": False}, 400, "min_tokens", "set that, too"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options", "stream is false"),
        ({"model": "gpt-4"}, 404, "model", "model is 'gpt-4', and this server has 'tiny'"),
    ],
)  # fmt: skip
def test_refusals_name_field_value_and_remedy(
    served: Stage, fields: dict[str, Any], status: int, param: str, words: str
) -> None:
    """What the engine lacks or cannot do is an error in OpenAI's shape, never ignored."""
    answer = served.post(PATH, **{"prompt": "hello", **GREEDY, **fields})
    error = answer.json()["error"]

    assert (answer.status_code, error["param"]) == (status, param)
    assert words in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_neutral_fields_of_other_servers_are_taken(served: Stage) -> None:
    """Clients that send every field they know, at the values that ask for nothing, are served."""
    answer = served.post(
        PATH, prompt="hello", n=1, best_of=1, logprobs=None, presence_penalty=0.0, repetition_penalty=1.0, top_k=-1,
        min_tokens=12, user="somebody", stop=None, **GREEDY,
    )  # fmt: skip

    assert answer.status_code == 200


def test_what_the_prefix_cache_held_is_in_usage_and_metrics(tiny_folder: Path) -> None:
    """A prompt asked twice is found up to its last block the second time, and both tell."""
    prompt = list(range(1, 41))  # two whole blocks of 16, and half of one
    with stage(tiny_folder, prefix_caching=True) as caching:
        usages = [caching.post(PATH, prompt=prompt, **GREEDY).json()["usage"] for _ in range(2)]
        chunks = caching.chunks(PATH, prompt=prompt, stream_options={"include_usage": True}, **GREEDY)
        figures = caching.client.get("/metrics").text

    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, 32]
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}
    assert 'vllm:prefix_cache_queries_total{model_name="tiny"} 120.0' in figures
    assert 'vllm:prefix_cache_hits_total{model_name="tiny"} 64.0' in figures
