"""What a caller of the endpoint gets wrong or may not have, in the shape that OpenAI's clients read."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """Correct the field that `param` names; 5xx are not the caller's."""

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """Return the JSON answer."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}


class KeyRefused(ApiError):
    """Send `Authorization: Bearer KEY` with the key that the server was started with."""

    status = 401
    kind = "authentication_error"


class ModelNotFound(ApiError):
    """Ask for the model that GET /v1/models names."""

    status = 404
    kind = "not_found_error"


class NothingThere(ApiError):
    """Ask for a path that docs/serve_model.md lists."""

    status = 404
    kind = "not_found_error"


class MethodNotAllowed(ApiError):
    """Use the method that the message names."""

    status = 405


class BodyTooLarge(ApiError):
    """Send less."""

    status = 413


class EngineFailed(ApiError):
    """The engine could not go on with the request; the server's log says more."""

    status = 500
    kind = "server_error"


class Overloaded(ApiError):
    """Ask again later; `--max-queue` lets more wait."""

    status = 503
    kind = "server_error"
