"""Which layers of a model are local and which have experts, as a config.json says or the family's rule has it."""

from __future__ import annotations

from dataclasses import dataclass

from engine.embedded.families import Family
from engine.embedded.fields import Fields

_LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """The mixture of experts that takes the MLP's place in some layers."""

    num_experts: int
    #: Experts that each token goes through.
    top_k: int
    intermediate_size: int
    #: Whether the chosen experts' probabilities are made to sum to 1.
    is_normalised: bool


def read_local_layers(fields: Fields, family: Family, num_layers: int) -> tuple[bool, ...]:
    """Tell which layers are local: as layer_types says, else by the family's rule."""
    by_rule = _local_by_rule(fields, family, num_layers)
    kinds = fields.raw.get("layer_types")
    if kinds is None:
        return by_rule
    if not isinstance(kinds, list) or set(kinds) - set(_LAYER_TYPES) or len(kinds) != num_layers:
        raise fields.refusal(
            "layer_types", kinds, f"give one of {', '.join(_LAYER_TYPES)} for each of {num_layers} layers"
        )
    local = tuple(kind == "sliding_attention" for kind in kinds)
    if family.local_layers in ("none", "all") and local != by_rule:
        raise fields.refusal("layer_types", kinds, "the layers of this architecture are all alike, by sliding_window")
    if any(local) and not _has_window(fields, family):
        raise fields.refusal("layer_types", kinds, "sliding_attention needs sliding_window (and use_sliding_window)")
    return local


def _local_by_rule(fields: Fields, family: Family, num_layers: int) -> tuple[bool, ...]:
    if family.local_layers == "pattern":
        period = fields.count("sliding_window_pattern")
        return tuple((layer + 1) % period != 0 for layer in range(num_layers))
    if family.local_layers == "none" or not _has_window(fields, family):
        return (False,) * num_layers
    first_local = int(fields.get("max_window_layers")) if family.local_layers == "tail" else 0
    return tuple(layer >= first_local for layer in range(num_layers))


def _has_window(fields: Fields, family: Family) -> bool:
    if "use_sliding_window" in family.defaults and not fields.flag("use_sliding_window"):
        return False
    return fields.get("sliding_window") is not None


def read_experts(fields: Fields, family: Family) -> ExpertsConfig | None:
    """Read the mixture of experts of a family that has one."""
    if "num_local_experts" not in family.defaults:
        return None
    # Earlier files of Qwen3 say num_experts for what transformers 5 calls num_local_experts.
    name = "num_experts" if "num_experts" in fields.raw else "num_local_experts"
    experts = ExpertsConfig(
        num_experts=fields.count(name),
        top_k=fields.count("num_experts_per_tok"),
        intermediate_size=fields.count(
            "intermediate_size" if fields.get("moe_intermediate_size") is None else "moe_intermediate_size"
        ),
        is_normalised=fields.flag("norm_topk_prob"),
    )
    if experts.top_k > experts.num_experts:
        raise fields.refusal("num_experts_per_tok", experts.top_k, f"there are {experts.num_experts} experts")
    return experts


def read_expert_layers(fields: Fields, experts: ExpertsConfig | None, num_layers: int) -> tuple[bool, ...]:
    """Tell which layers have the experts: all but those of mlp_only_layers and between decoder_sparse_step."""
    if experts is None:
        return (False,) * num_layers
    dense = fields.get("mlp_only_layers") or ()
    step = 1 if fields.get("decoder_sparse_step") is None else fields.count("decoder_sparse_step")
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers))
