"""A server's URL, and the head of a request to it. Knows nothing of connections or of what is asked."""

from __future__ import annotations

from urllib.parse import urlsplit

from engine.errors import InvalidSettings


class Address:
    """Where a server listens, and how requests to it begin."""

    def __init__(self, url: str) -> None:
        """Raise InvalidSettings for anything but http:// or https:// with a host; `/v1` at its end does not count."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise InvalidSettings(f"url is {url!r}: {error}; give http://HOST:PORT") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidSettings(f"url is {url!r}; give http://HOST:PORT or https://HOST")
        self.host = parts.hostname
        self.port = port or (443 if parts.scheme == "https" else 80)
        self.prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.is_tls = parts.scheme == "https"
        self._name = parts.netloc.rpartition("@")[2]

    def payload(self, path: str, body: bytes, *, api_key: str | None) -> bytes:
        """Return a POST request with a JSON body."""
        lines = [
            f"POST {self.prefix}{path} HTTP/1.1",
            f"Host: {self._name}",
            "Accept: text/event-stream",
            "Accept-Encoding: identity",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "User-Agent: wattfront",
        ]
        if api_key is not None:
            lines.append(f"Authorization: Bearer {api_key}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
