"""Short questions to a server: whether it is ready, what it serves, what it counts; and the reset of its caches.

Every question has a time-out, and an answer that is none (no connection, an error, no JSON) is None: what that means
is the caller's to say. Proxies of the environment are passed by: servers under test are near. Knows no server's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from engine.servers.paths import Paths

#: A server that computes answers `/health` late, not never: SGLang's own check takes a second and more.
TIMEOUT_S = 20.0
#: Answers of a server that has a path not at all, or not for this.
_NO_SUCH_PATH = (404, 405, 501)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that a server says it has."""

    name: str
    #: Longest prompt plus output; None where the server does not say.
    max_context: int | None


class Endpoint:
    """A server's address and how it is asked."""

    def __init__(self, url: str, paths: Paths, *, api_key: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        """Speak to the server at an address, with or without a `/v1` at its end."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self._paths = paths
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s, trust_env=False)

    def health(self) -> str | None:
        """Return None of a server that is ready, else what it answers instead."""
        if self._paths.health is None:
            return None
        answer = self._ask("GET", self._paths.health)
        if answer is None:
            return f"{self._paths.health} does not answer"
        return None if answer.is_success else f"{self._paths.health} answers {answer.status_code}"

    def models(self) -> tuple[ServedModel, ...] | str:
        """Return what the server serves; words where it does not say so."""
        answer = self._ask("GET", self._paths.models)
        if answer is None:
            return f"{self._paths.models} does not answer"
        found = _json(answer) if answer.is_success else None
        if not isinstance(found, dict) or not isinstance(found.get("data"), list):
            return f"{self._paths.models} answers {answer.status_code} and no list of models"
        cards = [card for card in found["data"] if isinstance(card, dict) and isinstance(card.get("id"), str)]
        return tuple(ServedModel(name=card["id"], max_context=_context_of(card)) for card in cards)

    def version(self) -> str:
        """Return the server's version, `unknown` where it does not say."""
        if self._paths.version is None:
            return "unknown"
        path, field = self._paths.version
        answer = self._ask("GET", path)
        found = _json(answer) if answer is not None and answer.is_success else None
        told = found.get(field) if isinstance(found, dict) else None
        return str(told) if told else "unknown"

    def metrics(self) -> str:
        """Return the text of the server's metrics, empty where it has none."""
        answer = None if self._paths.metrics is None else self._ask("GET", self._paths.metrics)
        return answer.text if answer is not None and answer.is_success else ""

    def reset_caches(self) -> bool | None:
        """Empty the prefix cache; tell whether the server says it did, None where it has no way to."""
        answer = None if self._paths.reset is None else self._ask("POST", self._paths.reset)
        if answer is None or answer.status_code in _NO_SUCH_PATH:
            return None
        if not answer.is_success:
            return False
        found = _json(answer)
        return not isinstance(found, dict) or found.get("success", True) is True

    def tokens_of(self, text: str, *, model: str) -> tuple[int, ...] | None:
        """Return a text's token ids; None where the server does not tell them."""
        how = self._paths.tokenize
        if how is None:
            return None
        found = self.ask(how.path, {"model": model, how.field: text, **dict(how.more)})
        tokens = found.get("tokens") if isinstance(found, dict) else None
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            return None
        return tuple(tokens)

    def ask(self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> Any:
        """POST a JSON body; return the JSON answer, None where there is none."""
        answer = self._ask("POST", path, body, timeout_s=timeout_s)
        return None if answer is None or not answer.is_success else _json(answer)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._http.close()

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> httpx.Response | None:
        limit = httpx.USE_CLIENT_DEFAULT if timeout_s is None else timeout_s
        try:
            return self._http.request(method, path, json=body, timeout=limit)
        except httpx.HTTPError:
            return None


def _context_of(card: Mapping[str, Any]) -> int | None:
    """Return what a model's card says of its context: `max_model_len`, or llama.cpp's `meta.n_ctx`."""
    meta = card.get("meta")
    told = card.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
    return told if isinstance(told, int) else None


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None
