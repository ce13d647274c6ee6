"""A draft of an MLPerf Endpoints point: files where its checker looks, no results, refused for open loads."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace

import pytest
import yaml

from api.export.mlperf import concurrency_of, is_hugging_face_id, render, slug
from api.export.recipe import NotExportable, Recipe
from tests.api.export.making import make_recipe
from tuner.request import WorkloadSpec


def under(workload: WorkloadSpec) -> Recipe:
    recipe = make_recipe(data_parallel=2)
    evidence = replace(recipe.result.evidence, workload=workload)
    return replace(recipe, result=replace(recipe.result, evidence=evidence))


def test_the_bundle_says_how_to_run_and_gives_no_result() -> None:
    """Point and scripts lie in the folder of their concurrency; no file claims a result, and the label is there."""
    archive = zipfile.ZipFile(io.BytesIO(render(under(WorkloadSpec(concurrency=24)))))
    folder = "results/simulated_h100-sxm_8/Llama-3_1-8B-Instruct/r24"
    assert sorted(archive.namelist()) == sorted(
        [
            "README.md",
            f"{folder}/point.yaml",
            *(f"{folder}/server_configs/{one}.sh" for one in ("vllm", "sglang", "trtllm")),
        ]
    )
    text = archive.read(f"{folder}/point.yaml").decode()
    point = yaml.safe_load(text)
    assert (point["concurrency"], point["runtime_settings"]["min_duration_ms"]) == (24, 600_000)
    assert (point["division"], point["model_precision"]) == (None, "bf16")
    assert "SIMULATED" in text
    assert "A draft, not a result" in archive.read("README.md").decode()


def test_concurrency_is_that_of_the_load_or_of_the_batch() -> None:
    """A closed load without a number keeps as many requests as all replicas run; more than 32 ask for 20 minutes."""
    recipe = under(WorkloadSpec())
    assert concurrency_of(recipe) == 128
    archive = zipfile.ZipFile(io.BytesIO(render(recipe)))
    (name,) = [one for one in archive.namelist() if one.endswith("point.yaml")]
    assert yaml.safe_load(archive.read(name))["runtime_settings"]["min_duration_ms"] == 1_200_000


def test_an_open_load_has_no_point() -> None:
    """A point under Poisson arrivals is of no fixed concurrency and is refused."""
    with pytest.raises(NotExportable, match="server load"):
        render(under(WorkloadSpec(scenario="server", rate_per_s=4.0)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a/llama3.1-8b", "llama3_1-8b"),
        ("../..", "unnamed"),
        ("/m/..", "unnamed"),
        ("", "unnamed"),
        ("x" * 99, "x" * 64),
    ],
)
def test_names_of_folders_are_plain(name: str, expected: str) -> None:
    """Whatever a model or device is called, its folder is one plain name."""
    assert slug(name) == expected


@pytest.mark.parametrize(("name", "expected"), [("Qwen/Qwen3-8B", True), ("/models/x", False), ("a/b/c", False)])
def test_only_ids_are_linked(name: str, expected: bool) -> None:
    """Paths of a machine are no links to a model."""
    assert is_hugging_face_id(name) is expected
