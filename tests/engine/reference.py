"""transformers as the reference implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM


def load_reference(folder: Path) -> Any:
    """Load a folder with transformers in fp32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def reference_logits(model: Any, token_ids: tuple[int, ...]) -> torch.Tensor:
    """Return the reference's logits (tokens, vocab) for one sequence."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits


def reference_tokens(model: Any, prompt: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    """Return the reference's greedy continuation, end-of-sequence tokens ignored."""
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return tuple(output[0, len(prompt) :].tolist())
