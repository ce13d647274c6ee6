"""transformers' `generate`: one padded batch, its dynamic cache, SDPA."""

from __future__ import annotations

import time
from typing import Any


class Peer:
    """A model in fp32."""

    def load(self, *, model: str, num_threads: int) -> str:
        """Load the model; return what it is, in words."""
        import torch
        import transformers

        self._torch, self._transformers = torch, transformers
        torch.set_num_threads(num_threads)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        return f"transformers {transformers.__version__}, fp32, torch {torch.__version__}"

    def run(self, *, prompts: list[list[int]], num_tokens: int) -> dict[str, Any]:
        """Serve the prompts at once."""
        input_ids = self._torch.tensor(prompts)
        times_s: list[float] = []

        def note(generated: Any, scores: Any, **others: Any) -> Any:
            times_s.append(time.perf_counter())
            return self._torch.zeros(generated.shape[0], dtype=self._torch.bool)

        begun_s = time.perf_counter()
        with self._torch.inference_mode():
            output = self._model.generate(
                input_ids, attention_mask=self._torch.ones_like(input_ids), max_new_tokens=num_tokens,
                min_new_tokens=num_tokens, do_sample=False, eos_token_id=None, pad_token_id=0,
                stopping_criteria=self._transformers.StoppingCriteriaList([note]),
            )  # fmt: skip
        total_s = time.perf_counter() - begun_s
        num_prompts = len(prompts)
        return {
            "total_s": total_s,
            "ttft_s": [times_s[0] - begun_s] * num_prompts,
            "tpot_s": [(times_s[-1] - times_s[0]) / max(1, num_tokens - 1)] * num_prompts,
            "token_ids": output[:, input_ids.shape[1] :].tolist(),
        }
