"""Points that were found on servers: what no job set of them is claimed by no export."""

from __future__ import annotations

import pytest

from api.export.forms import FORMS, export
from api.export.recipe import NotExportable, Recipe, recipe_of
from api.recommend_words import run_commands
from tests.api.export.making import make_result
from tests.tuner.factories import make_request
from tuner.request import KnobValue


def recipe_on(engine: str, **knobs: KnobValue) -> Recipe:
    return recipe_of(make_request(engine=engine, model="org/chat"), make_result(knobs, engine=engine))


@pytest.mark.parametrize("form", ["vllm", "sglang", "trtllm", "dynamo"])
def test_a_precision_that_is_the_files_is_no_flag(form: str) -> None:
    """llama.cpp serves what its file has: an export to another server says no precision, as none was chosen."""
    content = export(recipe_on("llamacpp", max_batch=8, prefill_chunk=256), form).content.decode()
    assert "float32" not in content
    assert "dtype" not in content.replace("kv_cache_dtype", "").replace("--kv-cache-dtype", "")


@pytest.mark.parametrize("form", ["vllm", "sglang", "trtllm", "dynamo"])
def test_a_server_that_runs_already_has_no_launch_command(form: str) -> None:
    """Of a running server a job knows its load alone: no command could start it as it was measured."""
    recipe = recipe_on("openai", max_batch=8)
    with pytest.raises(NotExportable, match="a server that ran already: its flags are its operator's"):
        export(recipe, form)
    assert run_commands(recipe) == {}


def test_a_running_servers_point_is_data_all_the_same() -> None:
    """What was measured can be had as JSON and CSV."""
    for form in ("json", "csv"):
        assert form in FORMS
        assert export(recipe_on("openai", max_batch=8), form).content
