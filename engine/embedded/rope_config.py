"""Rotary embedding as a config.json states it, in the spelling of transformers 5 and in the earlier one.

What a family cannot do, or what would not be exact, is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.embedded.families import Family
from engine.embedded.fields import Fields

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "factors")
#: Scaling fields without which a rope type means nothing.
_ROPE_NEEDS: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "yarn": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor"),
    "factors": ("factors",),
}
_LAYER_KINDS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding and how it is stretched beyond the trained length."""

    #: How many of a head's values are rotated; the last ones are left alone.
    rotary_dim: int
    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    #: The trained length, from which on a scaling applies.
    original_max_context: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    #: Scale of cos and sin; None takes YaRN's own rule.
    attention_factor: float | None = None
    is_truncated: bool = True
    mscale: float | None = None
    mscale_all_dim: float | None = None
    #: Divisors of the rotary_dim / 2 frequencies: a GGUF's rope_freqs (kind `factors`), or LongRoPE's up to the
    #: trained length (kind `longrope`).
    factors: tuple[float, ...] = ()

    @property
    def usable_context(self) -> int | None:
        """Longest context within which cached keys stay right; None where nothing limits it.

        Dynamic NTK and LongRoPE change nothing up to the trained length, and beyond it would rotate every key anew,
        those in the cache included: the context ends there.
        """
        return self.original_max_context if self.kind in ("dynamic", "longrope") else None


def read_ropes(fields: Fields, family: Family, head_dim: int, max_context: int) -> tuple[RopeConfig, RopeConfig]:
    """Return the rotary embedding of global layers and that of local ones.

    Raises CheckpointError naming the field, its value and what is allowed.
    """
    # transformers 5 writes rope_parameters; earlier files have rope_theta and rope_scaling, which it lets win.
    stated = fields.raw.get("rope_scaling") or fields.raw.get("rope_parameters") or {}
    is_by_kind = any(kind in stated for kind in _LAYER_KINDS)
    if not family.has_local_rope:
        if is_by_kind:
            raise fields.refusal("rope_parameters", stated, "this architecture has one for all layers")
        shared = _read(fields, family, stated, "rope_theta", head_dim, max_context)
        return shared, shared
    if not is_by_kind:
        if stated and not fields.raw.get("rope_scaling"):
            raise fields.refusal("rope_parameters", stated, f"give it for each of {', '.join(_LAYER_KINDS)}")
        stated = {"full_attention": stated}
    full, local = (stated.get(kind) or {} for kind in _LAYER_KINDS)
    return (
        _read(fields, family, full, "rope_theta", head_dim, max_context),
        _read(fields, family, local, "rope_local_base_freq", head_dim, max_context),
    )


def _read(
    fields: Fields, family: Family, scaling: Mapping[str, Any], theta_field: str, head_dim: int, max_context: int
) -> RopeConfig:
    kind = _kind(fields, family, scaling)
    rotary_dim = _rotary_dim(fields, family, scaling, head_dim)
    original = _original_max_context(fields, family, scaling, kind, max_context)
    for name in _ROPE_NEEDS.get(kind, ()):
        if scaling.get(name) is None:
            raise fields.refusal(f"rope_scaling.{name}", None, f"rope type {kind} needs it")
    attention_factor, factors = scaling.get("attention_factor"), scaling.get("factors", ())
    if kind == "longrope":
        factors = scaling["short_factor"]
        if attention_factor is None:
            attention_factor = _longrope_scale(float(scaling.get("factor") or max_context / original), original)
    if kind in ("longrope", "factors") and len(factors) != rotary_dim // 2:
        name = "short_factor" if kind == "longrope" else "factors"
        raise fields.refusal(f"rope_scaling.{name}", factors, f"it must have {rotary_dim // 2} numbers")
    return RopeConfig(
        rotary_dim=rotary_dim,
        theta=float(scaling.get("rope_theta") or fields.positive(theta_field)),
        kind=kind,
        factor=float(scaling.get("factor") or 1.0),
        original_max_context=original,
        low_freq_factor=float(scaling.get("low_freq_factor") or 1.0),
        high_freq_factor=float(scaling.get("high_freq_factor") or 4.0),
        beta_fast=float(scaling.get("beta_fast") or 32.0),
        beta_slow=float(scaling.get("beta_slow") or 1.0),
        attention_factor=attention_factor,
        is_truncated=bool(scaling.get("truncate", True)),
        mscale=scaling.get("mscale"),
        mscale_all_dim=scaling.get("mscale_all_dim"),
        factors=tuple(float(value) for value in factors),
    )


def _kind(fields: Fields, family: Family, scaling: Mapping[str, Any]) -> str:
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    if family.model_type == "phi3" and kind in ("su", "yarn"):
        kind = "longrope"  # what Phi-3 called it before it had a name
    if kind not in ROPE_TYPES:
        raise fields.refusal("rope_scaling.rope_type", kind, f"choose one of {', '.join(ROPE_TYPES)}")
    return kind


def _rotary_dim(fields: Fields, family: Family, scaling: Mapping[str, Any], head_dim: int) -> int:
    share = scaling.get("partial_rotary_factor", fields.raw.get("partial_rotary_factor"))
    share = 1.0 if share is None else float(share)
    if share != 1.0 and not family.has_partial_rotary:
        raise fields.refusal("partial_rotary_factor", share, "only 1.0 is supported for this architecture")
    rotary_dim = int(head_dim * share)
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise fields.refusal(
            "partial_rotary_factor", share, f"it makes {rotary_dim} rotary values of head_dim {head_dim}; give an even"
        )
    return rotary_dim


def _original_max_context(
    fields: Fields, family: Family, scaling: Mapping[str, Any], kind: str, max_context: int
) -> int:
    """Return the trained length: Phi-3 states it beside the scaling, all others in it."""
    if family.model_type == "phi3" and kind == "longrope":
        return fields.count("original_max_position_embeddings")
    original = scaling.get("original_max_position_embeddings")
    return max_context if original is None else int(original)


def _longrope_scale(factor: float, original_max_context: int) -> float:
    """Return what cos and sin are multiplied by (LongRoPE: Ding et al., 2024; the rule of Phi-3's release)."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original_max_context))
