"""What one step of a batch asks of each GPU: bytes, FLOPs and messages, from a model's shape and a layout.

Weights are read once a step, of the experts only those that some token is routed to. Knows nothing of how long any of
it takes. Left out: activations in memory, the embedding's rows, padding, CUDA graphs, the arithmetic of norms and
softmax; the output matrix counts in the arithmetic of the others although it stays in 16 bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.settings import EngineSettings
from engine.simulated.machine import Limits
from engine.simulated.precision import arithmetic_of, kv_value_bytes
from engine.simulated.shapes import ModelShape
from engine.simulated.sharding import fullest_share, make_grid, spread_cache, spread_weights
from engine.simulated.traffic import per_sampled, per_token
from engine.simulated.work import StepWork

#: Arithmetics whose tokens travel to experts in 8 bit (DeepEP's low-precision dispatch).
_NARROW_DISPATCH = ("fp8", "nvfp4", "mxfp4")


class WorkModel:
    """A model laid out over GPUs. All counts that do not change from step to step are taken once."""

    def __init__(self, shape: ModelShape, settings: EngineSettings, limits: Limits) -> None:
        """Lay the model out.

        Raises InvalidSettings naming field, value and remedy when the layout is impossible, or the machine lacks the
        arithmetic. Whether all of it fits the memory is for the caller to say.
        """
        self.shape = shape
        self.arithmetic = arithmetic_of(settings, limits.arithmetics)
        self._kv_bytes = kv_value_bytes(settings, limits.arithmetics)
        self.grid = make_grid(shape, settings, limits)
        self._weights = spread_weights(shape, settings.precision, self.grid)
        self._cache = spread_cache(shape, self.grid)
        self._window = shape.window or 0
        # Two blocks count as one layer, so that hybrids, whose layers have one block, compare with transformers.
        self._num_layers = max(1, -(-shape.num_blocks // (2 * self.grid.pipeline)))
        self._set_decode_rates()
        self._set_expert_rates()
        self._set_traffic_rates()

    def _set_decode_rates(self) -> None:
        """What one token and one token of context cost, for the whole engine's counts."""
        replicas, cache, weights = self.grid.data, self._cache, self._weights
        self._dense_flops_per_token = 2 * weights.dense_macs
        self._expert_flops_per_token = 2 * weights.expert_macs
        self._flops_per_sampled = 2 * weights.head_macs / replicas
        self._attention_per_token = cache.state_flops / replicas
        self._attention_per_context = cache.decode_flops / replicas
        self._attention_per_local = cache.local_flops / replicas
        self._attention_per_prompt_pair = cache.prompt_flops / replicas
        self._unfold_per_context = 2 * cache.unfold_macs / replicas
        self._kv_per_context = cache.global_values * self._kv_bytes / replicas
        self._kv_per_local = cache.local_values * self._kv_bytes / replicas
        # A token writes its own keys and values; a sequence's state is read and written once a step.
        self._kv_per_token = self._kv_per_context + self._kv_per_local
        self._kv_per_sequence = 2 * cache.state_bytes / replicas

    def _set_expert_rates(self) -> None:
        shape, grid = self.shape, self.grid
        experts = shape.experts
        self._has_experts = experts is not None
        self._miss_chance = 0.0
        self._experts_per_gpu = 0.0
        self._expert_tokens_share = 1.0
        if experts is None:
            return
        self._miss_chance = experts.miss_chance
        self._experts_per_gpu = experts.num_experts * shape.num_expert_layers / (grid.pipeline * grid.experts_over)
        if grid.experts_over == 1:
            self._expert_tokens_share = 1 / grid.data

    def _set_traffic_rates(self) -> None:
        dispatch_bytes = 1.0 if self.arithmetic in _NARROW_DISPATCH else 2.0
        token = per_token(self.shape, self.grid, dispatch_bytes=dispatch_bytes)
        sampled = per_sampled(self.shape, self.grid)
        replicas = self.grid.data
        self._up_per_token, self._out_per_token = token.up_bytes / replicas, token.out_bytes / replicas
        self._up_per_sampled, self._out_per_sampled = sampled.up_bytes / replicas, sampled.out_bytes / replicas
        self._num_up, self._num_out = token.num_up, token.num_out
        self._num_up_sampled, self._num_out_sampled = sampled.num_up, sampled.num_out

    @property
    def num_gpus(self) -> int:
        """GPUs that take a step together."""
        return self.grid.num_gpus

    @property
    def weight_bytes_resident(self) -> float:
        """Bytes of weights on the fullest GPU."""
        return self._weights.resident_bytes

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that one token of context takes on each GPU of its replica, in layers that see all of it."""
        return self._stored(self._cache.global_values * self._kv_bytes)

    @property
    def kv_bytes_per_local_token(self) -> float:
        """Bytes that one token of context takes besides, as long as it is inside the window of local layers."""
        return self._stored(self._cache.local_values * self._kv_bytes)

    @property
    def kv_bytes_fixed_per_sequence(self) -> float:
        """Bytes that a sequence takes on each GPU of its replica whatever its length: full windows and states.

        A sequence shorter than the window takes less; `sequence_bytes` says how much.
        """
        return self._window * self.kv_bytes_per_local_token + self._stored(self._cache.state_bytes)

    def sequence_bytes(self, num_tokens: int) -> float:
        """Bytes that a sequence of `num_tokens` takes on each GPU of its replica."""
        in_window = min(num_tokens, self._window)
        states = self._stored(self._cache.state_bytes)
        return num_tokens * self.kv_bytes_per_token + in_window * self.kv_bytes_per_local_token + states

    def handover_bytes(self, num_tokens: int) -> float:
        """Bytes that each GPU of a prefill replica sends when it hands a sequence of `num_tokens` on."""
        cache = self._cache
        in_window = min(num_tokens, self._window)
        return (num_tokens * cache.global_values + in_window * cache.local_values) * self._kv_bytes + cache.state_bytes

    def _stored(self, mean_bytes: float) -> float:
        """Turn a mean over the stages into what the fullest has."""
        return mean_bytes * self.grid.pipeline * fullest_share(self.shape, self.grid)

    def step(
        self,
        *,
        num_decodes: int,
        decode_context: float,
        num_sampled: int,
        local_context: int = 0,
        chunks: Sequence[tuple[int, int]] = (),
    ) -> StepWork:
        """Count one step of the whole engine; of several replicas, what the fullest does, since all wait for it.

        `decode_context` is the sum over decodes of the tokens they attend to, `local_context` the same with each no
        more than the window (0 for shapes without one). `chunks` are the prompt slices: tokens computed before, and
        tokens computed now. A sequence is in one replica: one prompt is not computed by eight.
        """
        weights, replicas = self._weights, self.grid.data
        # How much more the fullest replica has than an even share.
        uneven = -(-num_decodes // replicas) * replicas / num_decodes if replicas > 1 and num_decodes else 1.0
        num_tokens = num_decodes
        tokens_in_one = uneven * num_decodes / replicas
        attention = self._attention_per_context * decode_context + self._attention_per_local * local_context
        kv_bytes = (
            self._kv_per_context * decode_context
            + self._kv_per_local * local_context
            + self._kv_per_sequence * num_decodes
        )
        if uneven != 1.0:
            attention *= uneven
            kv_bytes *= uneven
        sampled_in_one = num_sampled if replicas == 1 else -(-num_sampled // replicas)
        gemm = self._flops_per_sampled * replicas * sampled_in_one
        if chunks:
            num_prompt, more_attention, more_kv, unfolding = self._prompts(chunks)
            uneven = max(1.0, replicas / len(chunks))
            num_tokens += num_prompt
            tokens_in_one += uneven * num_prompt / replicas
            attention += uneven * more_attention
            kv_bytes += uneven * more_kv
            gemm += uneven * unfolding
        weight_bytes = weights.dense_bytes
        num_up, num_out = self._num_up, self._num_out
        if num_sampled:
            weight_bytes += weights.head_bytes
            num_up += self._num_up_sampled
            num_out += self._num_out_sampled
        num_experts = 0.0
        if self._has_experts:
            missed = self._miss_chance ** (num_tokens * self._expert_tokens_share)
            num_experts = self._experts_per_gpu * (1.0 - missed)
            weight_bytes += num_experts * weights.expert_bytes
        # Positional: with sixteen names, keywords take as long as all the arithmetic above. In the order of the fields.
        return StepWork(
            self.grid.num_gpus,
            self.arithmetic,
            gemm + self._dense_flops_per_token * tokens_in_one + self._expert_flops_per_token * num_tokens,
            attention + self._attention_per_token * replicas * tokens_in_one,
            weight_bytes,
            kv_bytes + self._kv_per_token * replicas * tokens_in_one,
            self._num_layers,
            tokens_in_one,
            sampled_in_one,
            num_experts,
            self._up_per_token * num_tokens + self._up_per_sampled * num_sampled,
            num_up,
            self._out_per_token * num_tokens + self._out_per_sampled * num_sampled,
            num_out,
            self.grid.pipeline,
        )

    def _prompts(self, chunks: Sequence[tuple[int, int]]) -> tuple[int, float, float, float]:
        """Tokens, attention FLOPs, bytes of keys and values, and FLOPs of unfolding latent vectors, of all chunks.

        A chunk reads what was cached before and its own keys and values once, and attends causally.
        """
        window = self._window
        num_tokens = pairs = local_pairs = seen = local_seen = before = 0
        for start, count in chunks:
            end = start + count
            num_tokens += count
            chunk_pairs = count * start + count * (count + 1) // 2
            pairs += chunk_pairs
            seen += end
            before += start
            if window:
                local_pairs += chunk_pairs if end <= window else _pairs_in_window(start, count, window)
                local_seen += count + (start if start < window else window)
        attention = self._attention_per_prompt_pair * pairs + self._attention_per_local * local_pairs
        kv_bytes = self._kv_per_context * seen + self._kv_per_local * local_seen + self._kv_per_sequence * len(chunks)
        return num_tokens, attention, kv_bytes, self._unfold_per_context * before


def _pairs_in_window(start: int, count: int, window: int) -> int:
    """Sum over the tokens of a chunk of how many each attends to, itself included, no more than `window`."""
    growing = min(max(window - start, 0), count)
    return growing * start + growing * (growing + 1) // 2 + (count - growing) * window
