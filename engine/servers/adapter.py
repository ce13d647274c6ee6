"""What is asked of every kind of server, and the kinds there are.

An adapter is data and pure functions: it starts nothing and asks nothing, so that each can be held against the parser
and the answers of its server without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from engine.servers.dialect import Dialect
from engine.servers.dynamo import Dynamo
from engine.servers.flags import KnobTable
from engine.servers.llamacpp import LlamaCpp
from engine.servers.metrics import MetricNames, Sample
from engine.servers.openai_url import OpenAIUrl
from engine.servers.paths import Paths
from engine.servers.profile import Place, ServerProfile, Start
from engine.servers.sglang import Sglang
from engine.servers.trtllm import Trtllm
from engine.servers.vllm import Vllm
from engine.serving import TokenScores
from engine.settings import EngineSettings


class Adapter(Protocol):
    """One kind of server."""

    @property
    def kind(self) -> str:
        """Its name in profiles and jobs."""

    @property
    def knobs(self) -> KnobTable:
        """The knobs it has: of each the default, the values tried, and its words. All need another launch."""

    @property
    def metrics(self) -> MetricNames:
        """What it calls each figure."""

    def paths(self, profile: ServerProfile) -> Paths:
        """Return where it answers what."""

    def dialect(self, profile: ServerProfile) -> Dialect:
        """Return what it takes beside the plain fields of a request."""

    def served_name(self, model: str, profile: ServerProfile) -> str:
        """Return what it calls the model."""

    def start(self, settings: EngineSettings, profile: ServerProfile, *, model: str, place: Place) -> Start:
        """Return what a launch runs. Raises InvalidSettings for a setting that it would not serve at."""

    def num_kv_blocks(self, samples: Sequence[Sample]) -> int | None:
        """Return how many blocks its KV cache has; None where it does not say."""

    def score_request(self, token_ids: tuple[int, ...], model: str) -> tuple[str, dict[str, Any]] | None:
        """Return path and body that ask how likely a given text is; None where it does not tell."""

    def scores_of(self, answer: Mapping[str, Any], num_tokens: int) -> TokenScores:
        """Return the scores of every token but the first; KeyError, IndexError or TypeError where there are none."""


ADAPTERS: Mapping[str, Adapter] = {
    adapter.kind: adapter for adapter in (Vllm(), Sglang(), Trtllm(), Dynamo(), LlamaCpp(), OpenAIUrl())
}
