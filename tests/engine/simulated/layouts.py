"""Tiny models counted by hand, and models laid out on a machine of 64 GPUs, for the tests of the work model."""

from __future__ import annotations

from typing import Any

from engine.settings import EngineSettings
from engine.simulated.layout import WorkModel
from engine.simulated.machine import MachineLimits
from engine.simulated.shapes import ModelShape, load_shape, shape_from_config
from engine.simulated.work import StepWork

HOPPER = frozenset({"bf16", "fp16", "fp8", "int8"})
BLACKWELL = HOPPER | {"nvfp4", "mxfp4"}
#: Per layer 128 weights of queries and outputs, 64 of keys and values, 384 of feed-forward, 16 of norms.
TINY = shape_from_config(
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 32,
        "max_position_embeddings": 64,
    },
    name="tiny",
)
#: Four experts of 3 x 8 x 4 weights in each of two layers, two of them per token; a window of 4 in the first layer.
TINY_MIXTURE = shape_from_config(
    {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": False,
        "hidden_size": 8,
        "intermediate_size": 4,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 4,
        "vocab_size": 32,
        "max_position_embeddings": 64,
    },
    name="tiny-mixture",
)


def make_model(
    shape: ModelShape | str = TINY, *, arithmetics: frozenset[str] = HOPPER, domain_size: int = 8, **settings: Any
) -> WorkModel:
    """Lay a model out on a machine of 64 GPUs."""
    limits = MachineLimits(num_gpus=64, memory_bytes=80e9, arithmetics=arithmetics, domain_size=domain_size)
    if isinstance(shape, str):
        shape = load_shape(shape)
    return WorkModel(shape, EngineSettings(**{"model": shape.name, "precision": "bf16"} | settings), limits)


def decode(model: WorkModel, num_decodes: int, context: int) -> StepWork:
    """Take a step of decodes that each attend to `context` tokens."""
    local = num_decodes * min(context, model.shape.window or 0)
    return model.step(
        num_decodes=num_decodes, decode_context=num_decodes * context, local_context=local, num_sampled=num_decodes
    )
