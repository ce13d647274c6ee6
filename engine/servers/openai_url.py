"""A server that is already running and speaks the OpenAI API: nothing is started, set or stopped.

Its load is all that a job changes; what runs there is its operator's to say. Metrics are read under the names of the
servers that there are adapters for, since many such servers keep to vLLM's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from engine.errors import InvalidSettings, NotScored
from engine.servers import llamacpp, sglang, vllm
from engine.servers.dialect import Dialect
from engine.servers.flags import KnobTable
from engine.servers.metrics import MetricNames, Sample
from engine.servers.paths import Paths
from engine.servers.profile import Place, ServerProfile, Start
from engine.serving import TokenScores
from engine.settings import EngineSettings

_KNOWN = (vllm.Vllm.metrics, sglang.Sglang.metrics, llamacpp.LlamaCpp.metrics)


class OpenAIUrl:
    """Any server behind a URL."""

    kind = "openai"
    knobs: ClassVar[KnobTable] = {}
    metrics = MetricNames(
        **{
            field: tuple(name for known in _KNOWN for name in getattr(known, field))
            for field in MetricNames.__dataclass_fields__
        }
    )

    def paths(self, profile: ServerProfile) -> Paths:
        """Return where it answers what; not every such server has `/health`, so the list of models is what counts."""
        return Paths(health=None)

    def dialect(self, profile: ServerProfile) -> Dialect:
        """Return what it takes: prompts as text, and what every server of the kind has."""
        return Dialect(api=profile.api)

    def served_name(self, model: str, profile: ServerProfile) -> str:
        """Return what it calls the model."""
        return profile.served_model or model

    def start(self, settings: EngineSettings, profile: ServerProfile, *, model: str, place: Place) -> Start:
        """Raise InvalidSettings."""
        raise InvalidSettings(f"kind is {self.kind!r}: such a server is not started; give its url")

    def num_kv_blocks(self, samples: Sequence[Sample]) -> int | None:
        """Return how many blocks its cache has, where it says so as vLLM does."""
        return vllm.Vllm().num_kv_blocks(samples)

    def score_request(self, token_ids: tuple[int, ...], model: str) -> tuple[str, dict[str, Any]] | None:
        """Return None: whether it gives probabilities of a prompt is not known."""
        return None

    def scores_of(self, answer: Mapping[str, Any], num_tokens: int) -> TokenScores:
        """Raise NotScored."""
        raise NotScored(f"{self.kind}: whether this server gives probabilities of a prompt is not known")
