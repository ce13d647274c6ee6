"""llama.cpp through llama-cpp-python's low-level API: all sequences in each `llama_decode`, as llama-batched-bench."""

from __future__ import annotations

import ctypes
import time
from typing import Any

#: Tokens of one call, llama-batched-bench's default.
_BATCH_TOKENS = 2048


class Peer:
    """A context of many sequences."""

    def load(self, *, model: str, max_batch: int, max_context: int, num_threads: int, precision: str) -> str:
        """Load a GGUF file; return what it is, in words."""
        import llama_cpp
        import numpy as np

        self._api, self._np = llama_cpp, np
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(model.encode(), model_params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {model}; its log says why")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.n_batch = max_batch * max_context, max_batch, _BATCH_TOKENS
        params.n_threads = params.n_threads_batch = num_threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._num_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(_BATCH_TOKENS, 0, 1)
        return f"llama.cpp ({llama_cpp.__version__}), {precision}, {self._isa()}"

    def run(self, *, prompts: list[list[int]], num_tokens: int) -> dict[str, Any]:
        """Serve the prompts at once."""
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)
        begun_s = time.perf_counter()
        token_ids: list[list[int]] = [[] for _ in prompts]
        first_s: list[float] = []
        for group in self._groups(prompts):
            for i, token_id in zip(group, self._prefill(group, prompts), strict=True):
                token_ids[i].append(token_id)
            first_s.extend([time.perf_counter()] * len(group))
        num_prompt = [len(prompt) for prompt in prompts]
        for step in range(num_tokens - 1):
            rows = [
                (ids[-1], num + step, i, True) for i, (ids, num) in enumerate(zip(token_ids, num_prompt, strict=True))
            ]
            for ids, token_id in zip(token_ids, self._decode(rows), strict=True):
                ids.append(token_id)
        ended_s = time.perf_counter()
        return {
            "total_s": ended_s - begun_s,
            "ttft_s": [time_s - begun_s for time_s in first_s],
            "tpot_s": [(ended_s - time_s) / max(1, num_tokens - 1) for time_s in first_s],
            "token_ids": token_ids,
        }

    def _groups(self, prompts: list[list[int]]) -> list[range]:
        """Return which prompts go into one call."""
        per_call = max(1, _BATCH_TOKENS // max(map(len, prompts)))
        return [range(i, min(i + per_call, len(prompts))) for i in range(0, len(prompts), per_call)]

    def _prefill(self, group: range, prompts: list[list[int]]) -> list[int]:
        return self._decode([
            (token_id, position, i, position == len(prompts[i]) - 1)
            for i in group for position, token_id in enumerate(prompts[i])
        ])  # fmt: skip

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """Compute rows (token, position, sequence, whether its logits are wanted); return the likeliest tokens."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for row, (token_id, position, sequence, is_wanted) in enumerate(rows):
            batch.token[row], batch.pos[row], batch.logits[row] = token_id, position, is_wanted
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = sequence
        if code := self._api.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {code}")
        return [self._likeliest(row) for row, (*_, is_wanted) in enumerate(rows) if is_wanted]

    def _likeliest(self, row: int) -> int:
        logits = self._api.llama_get_logits_ith(self._context, row)
        values = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float * self._num_vocab)).contents
        return int(self._np.frombuffer(values, dtype=self._np.float32).argmax())

    def _isa(self) -> str:
        """Return which of the instruction sets that matter it was built for."""
        words = self._api.llama_print_system_info().decode()
        named = ("AVX2", "AVX512", "AVX512_VNNI", "AVX512_BF16", "AMX_INT8", "REPACK")
        return " ".join(name for name in named if f"{name} = 1" in words)
