"""Dynamo: a frontend and workers that find each other, with the flags of the engine that each worker has."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from engine.errors import InvalidSettings
from engine.servers.adapter import ADAPTERS
from engine.servers.profile import Command, ServerProfile
from engine.settings import EngineSettings
from tests.api.export.known_flags import SGLANG, VLLM, Known, parsed
from tests.engine.servers.making import GPUS, MODEL, VLLM_PLACE, commands_of, plain_settings, settings_of

#: As the parsers of ai-dynamo 1.6.1 take them.
PLANES = (
    Known(names=("--discovery-backend",), kind=str, choices=("kubernetes", "etcd", "file", "mem")),
    Known(names=("--request-plane",), kind=str, choices=("tcp", "nats", "http")),
    Known(names=("--event-plane",), kind=str, choices=("nats", "zmq")),
)
FRONTEND = (*PLANES, Known(names=("--http-host",), kind=str), Known(names=("--http-port",), kind=int))
MOCKER = (
    *PLANES,
    Known(names=("--model-path",), kind=str),
    Known(names=("--model-name",), kind=str),
    Known(names=("--max-num-seqs",), kind=int),
    Known(names=("--max-num-batched-tokens",), kind=int),
    Known(names=("--max-model-len",), kind=int),
    Known(names=("--num-gpu-blocks-override",), kind=int),
    Known(names=("--speedup-ratio",), kind=str),
)
TRTLLM_WORKER = (
    *PLANES,
    Known(names=("--model", "--model-path"), kind=str),
    Known(names=("--served-model-name",), kind=str),
    Known(names=("--max-batch-size",), kind=int),
    Known(names=("--max-num-tokens",), kind=int),
    Known(names=("--max-seq-len",), kind=int),
    Known(names=("--tensor-parallel-size",), kind=int),
    Known(names=("--pipeline-parallel-size",), kind=int),
    Known(names=("--expert-parallel-size",), kind=int),
    Known(names=("--override-engine-args",), kind=str),
)
VLLM_WORKER = (*PLANES, *VLLM, *VLLM_PLACE, Known(names=("--model",), kind=str))
SGLANG_WORKER = (*PLANES, *SGLANG, Known(names=("--context-length",), kind=int))


def launched(worker: str, chosen: EngineSettings, **profile: Any) -> tuple[Command, ...]:
    return commands_of(chosen, kind="dynamo", command=("python3", "-m", f"dynamo.{worker}"), **profile)


@given(chosen=settings_of(policy=False))
@settings(max_examples=40, deadline=None)
def test_replicas_are_workers(chosen: EngineSettings) -> None:
    """There is one frontend, and a worker for each replica unless experts are spread over them; flags say the rest."""
    frontend, *workers = launched("vllm", chosen)
    assert frontend.words[:3] == ("python3", "-m", "dynamo.frontend")
    assert parsed(FRONTEND, frontend.words[3:])["--http-port"] == 8100
    assert len(workers) == (1 if chosen.expert_parallel else chosen.data_parallel)
    for worker in workers:
        flags = parsed(VLLM_WORKER, worker.words[3:])
        assert (flags["--model"], flags["--max-num-seqs"]) == (MODEL, chosen.max_batch)
        assert flags.get("--max-model-len") == chosen.max_context


def test_all_find_each_other_and_share_the_gpus() -> None:
    """Frontend and workers have the same planes and folder; each worker sees its own share of the GPUs."""
    frontend, *workers = launched("vllm", plain_settings(device=GPUS, data_parallel=2))
    folders = {dict(one.env)["DYN_FILE_KV"] for one in (frontend, *workers)}
    assert folders == {"/run/launch/dynamo"}
    assert [dict(one.env)["CUDA_VISIBLE_DEVICES"] for one in workers] == GPUS.split(",")
    planes = [parsed(table, one.words[3:])["--discovery-backend"]
              for table, one in zip((FRONTEND, VLLM_WORKER), (frontend, workers[0]), strict=True)]  # fmt: skip
    assert planes == ["file", "file"]
    (_, alone) = launched("vllm", plain_settings())
    assert dict(alone.env)["CUDA_VISIBLE_DEVICES"] == ""


def test_each_worker_is_told_in_its_own_words() -> None:
    """SGLang's, TensorRT-LLM's and the mocker's parsers take their flags, and read batch and chunk out of them."""
    chosen = plain_settings(max_batch=8, prefill_chunk=100, max_context=2048, kv_precision="fp8")
    flags = parsed(SGLANG_WORKER, launched("sglang", chosen)[1].words[3:])
    assert (flags["--max-running-requests"], flags["--chunked-prefill-size"]) == (8, 100)
    flags = parsed(TRTLLM_WORKER, launched("trtllm", chosen)[1].words[3:])
    assert (flags["--max-batch-size"], flags["--max-num-tokens"], flags["--max-seq-len"]) == (8, 108, 2048)
    assert json.loads(str(flags["--override-engine-args"])) == {
        "enable_chunked_prefill": True, "dtype": "bfloat16", "kv_cache_config": {"dtype": "fp8"},
    }  # fmt: skip
    words = launched("mocker", chosen, served_model="m", extra_args=("--speedup-ratio", "2"))[1].words
    flags = parsed(MOCKER, words[3:])
    assert (flags["--max-num-seqs"], flags["--max-num-batched-tokens"], flags["--model-name"]) == (8, 108, "m")


def test_an_unknown_worker_is_refused() -> None:
    """A command that names no worker is refused with those there are, as is what its workers would serve otherwise."""
    with pytest.raises(InvalidSettings, match=r"it must name one of dynamo\.vllm, dynamo\.sglang"):
        launched("nothing", plain_settings())
    with pytest.raises(InvalidSettings, match=r"dynamo\.sglang cannot be started so: kv_precision int8"):
        launched("sglang", plain_settings(kv_precision="int8"))


def test_it_is_asked_with_fields_that_it_knows() -> None:
    """Completions take token ids and count in every piece; its metrics are the frontend's."""
    adapter = ADAPTERS["dynamo"]
    dialect = adapter.dialect(ServerProfile(kind="dynamo"))
    assert (dialect.takes_token_ids, dialect.extra_body) == (True, ())
    assert adapter.paths(ServerProfile(kind="dynamo")).reset is None
    assert adapter.metrics.running == ("dynamo_frontend_inflight_requests",)
