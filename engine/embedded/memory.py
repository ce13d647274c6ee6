"""Whether a launch fits: the bytes it will take, told from shape, precision and batch before anything is allocated.

Pure arithmetic over what `free_memory` read; knows nothing of torch. What is counted is what has no file behind it:
the checkpoint's own pages are the kernel's to drop and to read again.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.embedded.config import ModelConfig
from engine.embedded.precision import kv_bytes_per_token, weight_bytes
from engine.errors import NotEnoughMemory
from engine.settings import EngineSettings

#: Holes in the heap until it is trimmed, and what libraries take for themselves (measured: docs/log.md, 2026-12-01).
_HEAP_BYTES = 128 * 2**20
#: Copies of hidden states and of the feed-forward's inner values that are alive at once in a layer.
_HIDDEN_COPIES, _INNER_COPIES = 4, 4
#: Copies of capped scores, which torch computes by steps: plain, capped, masked and as weights (measured, likewise).
_SCORE_COPIES = 4
#: Copies of the table, in fp32, while the head is packed: as read, the embedding, and the head in two or three layouts.
_TABLE_COPIES = 3
#: Copies of the logits: as the head gives them and, in fp32, as they are sampled from or scored.
_LOGIT_COPIES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Memory that a launch may fill."""

    num_bytes: int
    #: What sets that limit, as in `are free on this machine`.
    limit: str
    #: Share of what weights and steps leave that a KV cache of unstated size may take.
    kv_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes that a launch takes, by what takes them."""

    weight_bytes: int
    #: fp32 copies of a layer while it is read and packed; gone before the first step.
    loading_bytes: int
    #: Activations, masks, gathered keys and values, and logits of the largest step.
    step_bytes: int
    num_blocks: int
    kv_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes at the widest moment."""
        return self.weight_bytes + self.kv_bytes + max(self.loading_bytes, self.step_bytes)


def host_budget(available_bytes: int, group_bytes: int | None) -> Budget:
    """Return what a launch on the CPU may fill: what the machine has available, or less in a limited control group."""
    if group_bytes is not None and group_bytes < available_bytes:
        return Budget(num_bytes=group_bytes, limit="are left by the control group's limit", kv_share=0.5)
    # Half: the machine is shared with the database, the service and what its users run.
    return Budget(num_bytes=available_bytes, limit="are free on this machine", kv_share=0.5)


def gpu_budget(free_bytes: int, total_bytes: int, fraction: float) -> Budget:
    """Return what a launch may fill of a GPU: `fraction` of its memory less what others hold of it."""
    held_bytes = total_bytes - free_bytes
    return Budget(
        num_bytes=max(0, int(fraction * total_bytes) - held_bytes),
        limit=f"are left of {fraction:g} (gpu_memory_fraction) of the GPU's {_gib(total_bytes)}",
        kv_share=1.0,
    )


def predict(
    config: ModelConfig,
    settings: EngineSettings,
    *,
    max_context: int,
    hidden_bytes: int,
    kept_bytes: int,
    budget: Budget,
    has_graphs: bool = False,
) -> MemoryNeed:
    """Return what a launch will take.

    `hidden_bytes` is the size of one value of hidden states, `kept_bytes` of one of embedding, head and KV cache.
    Decode graphs (`has_graphs`) keep memory of their own for a step, and a block for their padding.

    A KV cache of unstated size has room for max_batch sequences of max_context, or for fewer if the budget says so,
    but always for one.
    """
    weights = _weight_bytes(config, settings, kept_bytes)
    step = _step_bytes(config, settings, max_context, hidden_bytes)
    block_bytes = settings.block_size * kv_bytes_per_token(config, settings.kv_precision, kept_bytes)
    if has_graphs:
        step = 2 * step + block_bytes
    per_sequence = -(-max_context // settings.block_size)
    loading = _loading_bytes(config, weights)
    left = budget.num_bytes - weights - max(loading, step)
    affordable = int(budget.kv_share * max(0, left)) // block_bytes
    wanted = max(per_sequence, min(settings.max_batch * per_sequence, affordable))
    num_blocks = wanted if settings.num_kv_blocks is None else settings.num_kv_blocks
    return MemoryNeed(
        weight_bytes=weights,
        loading_bytes=loading,
        step_bytes=step,
        num_blocks=num_blocks,
        kv_bytes=num_blocks * block_bytes,
    )


def require_room(need: MemoryNeed, budget: Budget, settings: EngineSettings) -> None:
    """Refuse what would drive the machine into swap, or a GPU over its share; raise NotEnoughMemory."""
    if need.total_bytes <= budget.num_bytes:
        return
    raise NotEnoughMemory(
        f"{settings.model} in {settings.precision} needs {_gib(need.total_bytes)}: {_gib(need.weight_bytes)} for "
        f"weights ({_gib(need.loading_bytes)} more while they are loaded), {_gib(need.kv_bytes)} for "
        f"{need.num_blocks} KV-cache blocks of {settings.block_size} tokens and {_gib(need.step_bytes)} for its "
        f"largest step; {_gib(budget.num_bytes)} {budget.limit}. {_remedy(need, budget)}"
    )


def _remedy(need: MemoryNeed, budget: Budget) -> str:
    """Name what would help: nothing but other weights where these alone are too much."""
    if need.weight_bytes + need.loading_bytes > budget.num_bytes:
        return "Choose a narrower precision or a smaller model"
    return "Choose a smaller max_context, max_batch, num_kv_blocks or prefill_chunk, or a narrower precision"


def _weight_bytes(config: ModelConfig, settings: EngineSettings, kept_bytes: int) -> int:
    """Bytes of embedding, head and layers: a tied head is a copy of its own, in its product's layout."""
    table = config.vocab_size * config.hidden_size
    layers = config.num_parameters - table * (1 if config.is_tied else 2)
    return 2 * table * kept_bytes + int(layers * weight_bytes(settings.precision, can_emulate=settings.can_emulate))


def _largest_linear(config: ModelConfig) -> int:
    """Weights of the largest fused layer."""
    heads = config.num_heads + 2 * config.num_kv_heads
    return config.hidden_size * max(2 * config.intermediate_size, heads * config.head_dim)


def _loading_bytes(config: ModelConfig, num_weight_bytes: int) -> int:
    """Bytes beside all weights: of a layer's projections apart, joined and while rounded, or of the head before those.

    The head comes first, before any layer is there: in a small model of a large vocabulary that is the widest moment.
    """
    table = 4 * config.vocab_size * config.hidden_size
    head = table * (_TABLE_COPIES if config.is_tied else _TABLE_COPIES + 1) - num_weight_bytes
    return _HEAP_BYTES + max(table + 16 * _largest_linear(config), head)


def _step_bytes(config: ModelConfig, settings: EngineSettings, max_context: int, hidden_bytes: int) -> int:
    num_prompt_tokens = min(settings.prefill_chunk, settings.max_batch * max_context)
    rows = num_prompt_tokens + settings.max_batch
    activations = rows * (_HIDDEN_COPIES * config.hidden_size + _INNER_COPIES * config.intermediate_size) * hidden_bytes
    # A mask for every row of a chunk, another one of local layers, and for one chunk at a time a copy for each query
    # head of a key head.
    chunk = min(settings.prefill_chunk, max_context)
    group = config.num_heads // config.num_kv_heads
    num_masks = 1 if config.sliding_window is None else 2
    masks = (num_masks * rows + group * chunk) * max_context * hidden_bytes
    gathered = settings.max_batch * max_context * config.kv_bytes_per_token(hidden_bytes) // config.num_layers
    num_queries = max(settings.max_batch, chunk)
    scores = 4 * _SCORE_COPIES * config.num_heads * num_queries * max_context if config.attention_softcap else 0
    logits = _LOGIT_COPIES * 4 * num_queries * config.vocab_size
    is_unpacked = weight_bytes(settings.precision, can_emulate=False) < hidden_bytes
    unpacked = 4 * _largest_linear(config) if is_unpacked else 0
    return max(activations + max(masks + gathered + scores, unpacked), logits)


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
