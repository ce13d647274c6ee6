"""vLLM's CPU build, offline: requests are added, then its engine is stepped until all have ended."""

from __future__ import annotations

import time
from typing import Any


class Peer:
    """An `LLM` without prefix caching: every run computes its prompts."""

    def load(self, *, model: str, max_batch: int, max_context: int, is_eager: bool) -> str:
        """Load the model in fp32; return what it is, in words."""
        import torch
        import vllm

        self._vllm = vllm
        self._llm = vllm.LLM(
            model=model, dtype="float32", max_model_len=max_context, max_num_seqs=max_batch,
            enable_prefix_caching=False, enforce_eager=is_eager, seed=0,
        )  # fmt: skip
        self._num_runs = 0
        how = "eager" if is_eager else "compiled"
        return f"vLLM {vllm.__version__}, fp32, {how}, torch {torch.__version__}"

    def run(self, *, prompts: list[list[int]], num_tokens: int) -> dict[str, Any]:
        """Serve the prompts at once."""
        self._num_runs += 1
        llm_engine = self._llm.llm_engine
        params = self._vllm.SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        names = [f"{self._num_runs}-{i}" for i in range(len(prompts))]
        begun_s = time.perf_counter()
        for name, prompt in zip(names, prompts, strict=True):
            llm_engine.add_request(name, {"prompt_token_ids": prompt}, params)
        first_s: dict[str, float] = {}
        last_s: dict[str, float] = {}
        token_ids: dict[str, list[int]] = {}
        while llm_engine.has_unfinished_requests():
            outputs = llm_engine.step()
            now_s = time.perf_counter()
            for output in outputs:
                if output.outputs[0].token_ids:
                    first_s.setdefault(output.request_id, now_s)
                    last_s[output.request_id] = now_s
                    token_ids[output.request_id] = list(output.outputs[0].token_ids)
        return {
            "total_s": time.perf_counter() - begun_s,
            "ttft_s": [first_s[name] - begun_s for name in names],
            "tpot_s": [(last_s[name] - first_s[name]) / max(1, num_tokens - 1) for name in names],
            "token_ids": [token_ids[name] for name in names],
        }
