"""How a model's weights and cached values spread over GPUs, and which layouts are impossible.

Counts bytes per GPU; knows nothing of steps. Layers are taken to be spread so that stages do equal work.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import InvalidSettings
from engine.settings import EngineSettings
from engine.simulated.machine import Limits
from engine.simulated.parts import Attention, LatentAttention, Mamba, Matrices
from engine.simulated.precision import WEIGHT_BYTES, unquantized_bytes
from engine.simulated.shapes import ModelShape
from engine.simulated.traffic import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Bytes on, and multiplications of, one GPU; means over the stages unless said."""

    #: Read in every step: all but embedding, output matrix and routed experts.
    dense_bytes: float
    #: Multiply-adds per token of the GPU's replica, without routed experts and output matrix.
    dense_macs: float
    head_bytes: float
    head_macs: float
    #: One expert of one layer, as far as it lies on one GPU.
    expert_bytes: float
    #: Multiply-adds of the routed experts per token of the whole engine.
    expert_macs: float
    #: Everything that stays in memory of the fullest GPU.
    resident_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Values that sequences keep on one GPU of their replica, and work on them; means over the stages."""

    #: Per token of context.
    global_values: float
    #: Per token of context inside the window.
    local_values: float
    #: Per sequence, whatever its length, in bytes.
    state_bytes: float
    #: Operations of a decoded token per token it attends to.
    decode_flops: float
    #: Operations of a prompt token per token it attends to.
    prompt_flops: float
    local_flops: float
    #: Operations of recurrent layers per token.
    state_flops: float
    #: Multiply-adds to unfold one cached token for a later chunk of its prompt (latent attention).
    unfold_macs: float


def make_grid(shape: ModelShape, settings: EngineSettings, limits: Limits) -> Grid:
    """Check the layout and return it.

    Raises InvalidSettings naming field, value and remedy.
    """
    if settings.num_gpus > limits.num_gpus:
        raise InvalidSettings(
            f"tensor_parallel x pipeline_parallel x data_parallel + prefill_gpus is {settings.num_gpus}, but the "
            f"machine has {limits.num_gpus} GPUs; lower one of them"
        )
    if settings.pipeline_parallel > shape.num_layers:
        raise InvalidSettings(
            f"pipeline_parallel is {settings.pipeline_parallel}, but {shape.name} has {shape.num_layers} layers; "
            "give no more stages than that"
        )
    _check_tensor_parallel(shape, settings.tensor_parallel)
    return Grid(
        tensor=settings.tensor_parallel,
        pipeline=settings.pipeline_parallel,
        data=settings.data_parallel,
        experts_over=_expert_group(shape, settings),
        domain_size=limits.domain_size,
    )


def _check_tensor_parallel(shape: ModelShape, tensor: int) -> None:
    for layer in shape.layers:
        mixer = layer.mixer
        if mixer is None:
            continue
        if mixer.num_heads % tensor:
            raise InvalidSettings(
                f"tensor_parallel is {tensor}, which does not divide the {mixer.num_heads} heads of {shape.name}; "
                "choose a divisor"
            )
        if isinstance(mixer, Attention) and mixer.num_kv_heads % tensor and tensor % mixer.num_kv_heads:
            raise InvalidSettings(
                f"tensor_parallel is {tensor}, which neither divides the {mixer.num_kv_heads} key-value heads of "
                f"{shape.name} nor is a multiple of them; choose one that does"
            )


def _expert_group(shape: ModelShape, settings: EngineSettings) -> int:
    if not settings.expert_parallel:
        return 1
    experts = shape.experts
    if experts is None:
        raise InvalidSettings(f"expert_parallel is on, but {shape.name} has no experts; turn it off")
    group = settings.tensor_parallel * settings.data_parallel
    if group > experts.num_experts:
        raise InvalidSettings(
            f"expert_parallel spreads {experts.num_experts} experts over tensor_parallel x data_parallel = {group} "
            "GPUs; lower one of these or turn it off"
        )
    return group


def spread_weights(shape: ModelShape, precision: str, grid: Grid) -> Weights:
    """Count what one GPU holds, reads and multiplies.

    Published MXFP4 experts stay as they are in every precision; `mxfp4` then leaves the rest of the model in 16 bit.
    """
    plain_bytes = unquantized_bytes(precision)
    has_mxfp4 = shape.has_native_mxfp4_experts
    dense_width = plain_bytes if has_mxfp4 and precision == "mxfp4" else WEIGHT_BYTES[precision]
    dense_bytes, dense_macs = _dense(shape, grid, dense_width, plain_bytes)
    head = shape.embedding_weights / grid.tensor
    expert_bytes, num_resident, expert_macs = 0.0, 0.0, 0.0
    if (experts := shape.experts) is not None:
        weights = experts.expert_weights(shape.hidden_size)
        width = WEIGHT_BYTES["mxfp4" if has_mxfp4 else precision]
        cut = 1 if grid.experts_over > 1 else grid.tensor
        expert_bytes = (weights * width + experts.num_biases * plain_bytes) / cut
        num_resident = -(-experts.num_experts // grid.experts_over) * shape.num_expert_layers
        expert_macs = weights * experts.top_k * shape.num_expert_layers / grid.num_gpus
    embeddings = head * plain_bytes * (1 if shape.is_tied or grid.pipeline > 1 else 2)
    return Weights(
        dense_bytes=dense_bytes / grid.pipeline,
        dense_macs=dense_macs / grid.pipeline,
        head_bytes=head * plain_bytes / grid.pipeline,
        head_macs=head / grid.pipeline,
        expert_bytes=expert_bytes,
        expert_macs=expert_macs,
        resident_bytes=(dense_bytes + num_resident * expert_bytes) * fullest_share(shape, grid) + embeddings,
    )


def fullest_share(shape: ModelShape, grid: Grid) -> float:
    """Share of all layers that the fullest stage has."""
    return -(-shape.num_layers // grid.pipeline) / shape.num_layers


def _dense(shape: ModelShape, grid: Grid, width: float, plain_bytes: float) -> tuple[float, float]:
    """Bytes and multiply-adds per token of all layers on one GPU, without routed experts."""
    num_bytes, num_macs = 0.0, 0.0
    for layer in shape.layers:
        matrices: Matrices = layer.matrices(shape.hidden_size)
        kv_cut = min(grid.tensor, layer.mixer.num_kv_heads) if isinstance(layer.mixer, Attention) else 1
        weights = matrices.cut / grid.tensor + matrices.cut_by_kv_head / kv_cut + matrices.whole
        num_bytes += weights * width + matrices.unquantized * plain_bytes
        num_macs += weights
    return num_bytes, num_macs


def spread_cache(shape: ModelShape, grid: Grid) -> Cache:
    """Count what sequences keep on one GPU. A key-value head is never cut, and latent vectors are held by all."""
    sums = dict.fromkeys(Cache.__dataclass_fields__, 0.0)
    for layer in shape.layers:
        for name, value in _mixer_cache(layer.mixer, grid.tensor).items():
            sums[name] += value / grid.pipeline
    return Cache(**sums)


def _mixer_cache(mixer: Attention | LatentAttention | Mamba | None, tensor: int) -> dict[str, float]:
    match mixer:
        case Attention():
            values = mixer.kv_values_per_token / min(tensor, mixer.num_kv_heads)
            flops = mixer.flops_per_pair / tensor
            if mixer.is_local:
                return {"local_values": values, "local_flops": flops}
            return {"global_values": values, "decode_flops": flops, "prompt_flops": flops}
        case LatentAttention():
            return {
                "global_values": float(mixer.kv_values_per_token),
                "decode_flops": mixer.flops_per_pair / tensor,
                "prompt_flops": mixer.prompt_flops_per_pair / tensor,
                "unfold_macs": mixer.unfolding_weights / tensor,
            }
        case Mamba():
            return {"state_bytes": mixer.state_bytes / tensor, "state_flops": mixer.flops_per_token / tensor}
        case None:
            return {}
