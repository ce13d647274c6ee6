"""A DynamoGraphDeployment: valid YAML, the power cap where the Power Agent looks, workers' flags that vLLM takes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from api.export.dynamo import ORIGIN_ANNOTATION, POWER_ANNOTATION, render
from api.export.recipe import Recipe
from tests.api.export.known_flags import VLLM, Known, parsed
from tests.api.export.making import comments_of, make_recipe, recipes

#: As `dynamo.vllm`'s parser of ai-dynamo 1.6.1 takes them, beside vLLM's own.
WORKER = (
    *VLLM,
    Known(names=("--model",), kind=str),
    Known(names=("--disaggregation-mode",), kind=str, choices=("agg", "prefill", "decode", "encode", "pd")),
    Known(names=("--kv-transfer-config",), kind=str),
)


def workers_of(recipe: Recipe) -> list[dict[str, Any]]:
    manifest = yaml.safe_load(render(recipe))
    return [one for one in manifest["spec"]["components"] if one["type"] != "frontend"]


def gpus_of(worker: dict[str, Any]) -> int:
    limits = worker["podTemplate"]["spec"]["containers"][0]["resources"]["limits"]
    return int(limits["nvidia.com/gpu"]) * int(worker["replicas"])


@given(recipe=recipes)
@settings(max_examples=40, deadline=None)
def test_pods_have_the_gpus_flags_and_the_cap_of_the_point(recipe: Recipe) -> None:
    """All pods together take the GPUs of the layout; each worker's flags give its knobs back, and each has the cap."""
    workers = workers_of(recipe)
    pools = recipe.settings.prefill_gpus // recipe.num_replica_gpus * recipe.num_replica_gpus
    per_pool = recipe.settings.num_gpus - recipe.settings.prefill_gpus
    if not recipe.settings.expert_parallel:
        assert sum(map(gpus_of, workers)) == per_pool + pools
    for worker in workers:
        words = worker["podTemplate"]["spec"]["containers"][0]["args"]
        flags = parsed(WORKER, words)
        assert flags["--max-num-seqs"] == recipe.settings.max_batch
        assert flags["--tensor-parallel-size"] == recipe.settings.tensor_parallel
        cap = worker["podTemplate"]["metadata"]["annotations"][POWER_ANNOTATION]
        assert (cap, int(cap)) == (str(recipe.device.power_cap_w), recipe.device.power_cap_w)
    assert [one["type"] for one in workers] == (["decode", "prefill"] if recipe.settings.prefill_gpus else ["worker"])
    assert f"sm_clock_cap_mhz {recipe.device.sm_clock_cap_mhz}" in comments_of(render(recipe))


def test_a_point_without_a_cap_has_no_annotation() -> None:
    """Where the point leaves the power limit alone, nothing is told to the Power Agent."""
    assert POWER_ANNOTATION not in render(make_recipe()).decode()


def test_the_manifest_says_that_nothing_was_measured() -> None:
    """Comments and an annotation of the deployment itself label simulated figures."""
    manifest = render(make_recipe())
    assert "SIMULATED" in comments_of(manifest)
    assert "SIMULATED" in yaml.safe_load(manifest)["metadata"]["annotations"][ORIGIN_ANNOTATION]


@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "/models/..weird  Näme--", "x" * 300, "---a", "/"])
def test_the_name_is_one_that_kubernetes_takes(model: str) -> None:
    """Whatever the model is called, the deployment's name is a short DNS label."""
    if model.startswith("-"):
        model = f"/{model}"
    name = yaml.safe_load(render(make_recipe(engine="embedded", precision="fp32", model=model)))["metadata"]["name"]
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)
