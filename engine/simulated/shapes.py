"""What a model consists of, read from its config.json: the stack of layers, the vocabulary, how weights are published.

Text only: vision towers and multi-token-prediction heads are left out. Knows nothing of weights' values or of GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError
from engine.simulated import catalogue, families
from engine.simulated.parts import Attention, Experts, Layer, Mamba

#: Families whose output matrix is the embedding when the config does not say.
_TIED_BY_DEFAULT = ("Gemma",)
#: What a config may leave out because its class has it (transformers' configuration of the family).
_DEFAULTS: dict[str, dict[str, int]] = {
    "Gemma3": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "Llama4": {"vocab_size": 202048, "max_position_embeddings": 131072},
}
_PUBLISHED_AS = {"fp8": "fp8", "fbgemm_fp8": "fp8", "awq": "int4", "gptq": "int4", "mxfp4": "mxfp4"}
_DTYPES = {"float32": "fp32", "float16": "fp16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only language model by its dimensions."""

    name: str
    architecture: str
    hidden_size: int
    vocab_size: int
    #: Longest prompt plus output.
    max_context: int
    #: Whether the output matrix is the embedding.
    is_tied: bool
    layers: tuple[Layer, ...]
    #: Tokens that local layers see; None where there are none. Chunked attention counts as a window of its chunk,
    #: which is what it sees at most.
    window: int | None = None
    #: Precision of the published weights; `mxfp4` means the routed experts alone, beside 16-bit weights.
    native_precision: str = "bf16"

    def __post_init__(self) -> None:
        """Refuse a stack that is empty, or whose layers have experts of different sizes."""
        if not self.layers:
            raise CheckpointError(f"{self.name}: no layers; num_hidden_layers must be 1 or more")
        if len(set(self._expert_parts())) > 1:
            raise CheckpointError(f"{self.name}: layers have experts of different sizes; all must be alike")

    @property
    def num_layers(self) -> int:
        """Entries of the stack."""
        return len(self.layers)

    @property
    def experts(self) -> Experts | None:
        """The mixture that expert layers have; None in dense models."""
        return next(self._expert_parts(), None)

    @property
    def num_expert_layers(self) -> int:
        """Layers with routed experts."""
        return sum(1 for _ in self._expert_parts())

    @property
    def num_blocks(self) -> int:
        """Parts of all layers: two to a plain transformer layer."""
        return sum(layer.num_blocks for layer in self.layers)

    @property
    def num_local_layers(self) -> int:
        """Layers that see no further than the window."""
        return sum(isinstance(layer.mixer, Attention) and layer.mixer.is_local for layer in self.layers)

    @property
    def num_mamba_layers(self) -> int:
        """Layers with a recurrent state."""
        return sum(isinstance(layer.mixer, Mamba) for layer in self.layers)

    @property
    def has_native_mxfp4_experts(self) -> bool:
        """Whether routed experts are published, and always run, in MXFP4 whatever the rest is in."""
        return self.native_precision == "mxfp4" and self.experts is not None

    @property
    def num_parameters(self) -> int:
        """All parameters, a tied output matrix counted once."""
        routed = 0
        if (experts := self.experts) is not None:
            one = experts.expert_weights(self.hidden_size) + experts.num_biases
            routed = experts.num_experts * one * self.num_expert_layers
        return self._outside_experts + routed

    @property
    def num_active_parameters(self) -> int:
        """Parameters that one token meets: all outside the experts, embeddings included, and `top_k` experts a layer.

        Publishers differ: OpenAI leaves the input embedding out of its count.
        """
        routed = 0
        if (experts := self.experts) is not None:
            one = experts.expert_weights(self.hidden_size) + experts.num_biases
            routed = experts.top_k * one * self.num_expert_layers
        return self._outside_experts + routed

    @property
    def embedding_weights(self) -> int:
        """Weights of the embedding, and of the output matrix likewise."""
        return self.vocab_size * self.hidden_size

    @property
    def _outside_experts(self) -> int:
        layers = sum(sum(layer.matrices(self.hidden_size)) for layer in self.layers)
        return layers + self.hidden_size + self.embedding_weights * (1 if self.is_tied else 2)

    def _expert_parts(self) -> Iterator[Experts]:
        return (layer.feed_forward for layer in self.layers if isinstance(layer.feed_forward, Experts))


def load_shape(model: str | Path) -> ModelShape:
    """Read a shape from a config.json, a folder that has one, or the catalogue by name or Hugging Face id.

    Raises UnknownModel with the closest names when nothing goes by that name, CheckpointError when the config is
    damaged or of an architecture that cannot be simulated.
    """
    path = Path(model).expanduser()
    if str(model).strip() and path.is_dir():
        path = path / "config.json"
    if path.is_file() or path.name == "config.json":
        return shape_from_config(_read_json(path), name=path.parent.resolve().name)
    name, config = catalogue.find(str(model))
    return shape_from_config(config, name=name)


def shape_from_config(raw: Mapping[str, Any], *, name: str) -> ModelShape:
    """Turn a config.json's fields into a shape; a vision-language model is taken by its text part.

    Raises CheckpointError naming the field or the architecture that does not fit.
    """
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise CheckpointError(f"{name}: config.json names no architectures; known are {_known()}")
    architecture = str(architectures[0])
    family = next((prefix for prefix in _DEFAULTS if architecture.startswith(prefix)), None)
    text = raw.get("text_config") or raw
    fields = (_DEFAULTS[family] if family else {}) | {key: v for key, v in text.items() if v is not None}
    # Absent and null mean different things for a window alone.
    if "sliding_window" in text:
        fields["sliding_window"] = text["sliding_window"]
    try:
        dimensions: dict[str, Any] = {
            "layers": families.layers_of(architecture, fields),
            "hidden_size": families.field(fields, "hidden_size"),
            "vocab_size": families.field(fields, "vocab_size"),
            "max_context": families.field(fields, "max_position_embeddings"),
            "window": families.window_of(architecture, fields),
        }
    except CheckpointError as error:
        raise CheckpointError(f"{name}: {error}") from error
    return ModelShape(
        name=name,
        architecture=architecture,
        is_tied=_is_tied(architecture, raw, text),
        native_precision=_native_precision(raw, text),
        **dimensions,
    )


def _is_tied(architecture: str, raw: Mapping[str, Any], text: Mapping[str, Any]) -> bool:
    for source in (raw, text):
        if isinstance(source.get("tie_word_embeddings"), bool):
            return bool(source["tie_word_embeddings"])
    return architecture.startswith(_TIED_BY_DEFAULT)


def _native_precision(raw: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    quantization = raw.get("quantization_config") or text.get("quantization_config") or {}
    method = quantization.get("quant_method")
    if method == "modelopt":
        return "nvfp4" if "NVFP4" in str(quantization.get("quant_algo")) else "fp8"
    if method in _PUBLISHED_AS:
        return _PUBLISHED_AS[method]
    dtype = raw.get("dtype") or raw.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype")
    return _DTYPES.get(str(dtype), "bf16")


def _known() -> str:
    return ", ".join(families.ARCHITECTURES)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return raw
