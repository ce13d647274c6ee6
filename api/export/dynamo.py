"""A point as a DynamoGraphDeployment (nvidia.com/v1beta1) of NVIDIA Dynamo 1.6, with vLLM as the engine.

The power limit of each GPU stands where Dynamo's Power Agent looks for it: an annotation of the worker's pods in whole
watts. Clocks have no such place. Replicas are Dynamo's own, unless experts are spread over them: then one pod has them
all.
"""

from __future__ import annotations

import re
from typing import Any

from api.export.command import comments
from api.export.recipe import Recipe, unsaid
from engine.servers import vllm
from engine.servers.flags import words_of
from engine.settings import EngineSettings

NAME = "dynamo"
POWER_ANNOTATION = "dynamo.nvidia.com/gpu-power-limit"
#: What the figures behind a deployment are, for whoever finds it in a cluster.
ORIGIN_ANNOTATION = "wattfront.io/figures"
IMAGE = "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.6.1"
#: Of a label in Kubernetes, less room for what the operator appends.
_MAX_NAME = 40
_PROMPTS = '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'


def render(recipe: Recipe) -> bytes:
    """Return the manifest, with what it cannot say as comments."""
    import yaml  # when it is needed: a service starts sooner

    notes = [
        "Before use: a secret hf-token-secret where the model is gated, and an image of the version you run.",
        *unsaid(gaps_of(recipe)),
    ]
    manifest = yaml.safe_dump(manifest_of(recipe), sort_keys=False, width=120)
    return (comments([*recipe.remarks(runs="vllm"), *notes]) + manifest).encode()


def manifest_of(recipe: Recipe) -> dict[str, Any]:
    """Return the deployment as plain data."""
    settings = recipe.settings
    workers = [_worker("decode" if settings.prefill_gpus else "worker", recipe, settings, _replicas(settings))]
    if settings.prefill_gpus:
        pools = settings.prefill_gpus // recipe.num_replica_gpus
        workers.append(_worker("prefill", recipe, settings, pools))
    origin = recipe.label or f"measured, energy scope {recipe.result.evidence.scope}"
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name_of(recipe), "annotations": {ORIGIN_ANNOTATION: origin}},
        "spec": {"components": [_frontend(), *workers]},
    }


def name_of(recipe: Recipe) -> str:
    """Return a name that Kubernetes takes: of the model's last part and the job."""
    model = re.sub(r"[^a-z0-9]+", "-", recipe.model.rsplit("/", 1)[-1].lower()).strip("-")
    return f"{model[:_MAX_NAME].strip('-') or 'model'}-{recipe.result.job_id[:8]}"


def gaps_of(recipe: Recipe) -> list[str]:
    """Return what of a point the manifest has no place for."""
    gaps = [str(gap) for gap in vllm.gaps_of(recipe.settings) if gap.knob != "prefill_gpus"]
    if recipe.device.sm_clock_cap_mhz is not None:
        gaps.append(
            f"sm_clock_cap_mhz {recipe.device.sm_clock_cap_mhz}: lock the clocks on the nodes, as the form `systemd`"
        )
    if recipe.device.cpu_clock_cap_mhz is not None:
        gaps.append(f"cpu_clock_cap_mhz {recipe.device.cpu_clock_cap_mhz}: set it on the nodes, as the form `systemd`")
    return gaps


def _replicas(settings: EngineSettings) -> int:
    return 1 if settings.expert_parallel else settings.data_parallel


def _frontend() -> dict[str, Any]:
    container = {**_container(["python3"], ["-m", "dynamo.frontend"])}
    return {
        "name": "Frontend",
        "podTemplate": {"spec": {"containers": [container]}},
        "replicas": 1,
        "type": "frontend",
    }


def _worker(kind: str, recipe: Recipe, settings: EngineSettings, replicas: int) -> dict[str, Any]:
    words = ["--model", recipe.model, *words_of(vllm.flags_of(settings, is_pool=True))]
    if kind != "worker":
        words += ["--disaggregation-mode", kind]
    if kind == "prefill":
        words += ["--kv-transfer-config", _PROMPTS]
    container = _container(["python3", "-m", "dynamo.vllm"], words)
    gpus = recipe.num_replica_gpus * (settings.data_parallel if settings.expert_parallel else 1)
    container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    template: dict[str, Any] = {"spec": {"containers": [container]}}
    if recipe.device.power_cap_w is not None:
        template = {"metadata": {"annotations": {POWER_ANNOTATION: str(recipe.device.power_cap_w)}}, **template}
    return {"name": kind, "podTemplate": template, "replicas": replicas, "type": kind}


def _container(words: list[str], arguments_: list[str]) -> dict[str, Any]:
    return {
        "name": "main",
        "image": IMAGE,
        "command": words,
        "args": arguments_,
        "envFrom": [{"secretRef": {"name": "hf-token-secret"}}],
    }
