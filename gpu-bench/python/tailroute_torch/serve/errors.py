"""Errors in OpenAI's shape, with the engines' names and messages."""

from __future__ import annotations

from typing import Any

_KINDS = {
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class ApiError(Exception):
    """What the client is told."""

    def __init__(self, status: int, message: str, kind: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind or _KINDS.get(status, "BadRequestError")

    def body(self) -> dict[str, Any]:
        told = {"message": self.message, "type": self.kind, "param": None, "code": self.status}
        return {"error": told}


def bad_request(message: str) -> ApiError:
    return ApiError(400, message)


def unknown_model(model: str) -> ApiError:
    return ApiError(404, f"The model `{model}` does not exist.")


def too_large(limit: int) -> ApiError:
    return ApiError(413, f"The body is larger than {limit} bytes.", "RequestTooLargeError")


def too_long(limit: int, prompt: int, reply: int) -> ApiError:
    return ApiError(
        413,
        f"This model's maximum context length is {limit} tokens. However, you requested {prompt + reply} tokens "
        f"({prompt} in the messages, {reply} in the completion). Please reduce the length of the messages or "
        "completion.",
    )


def overloaded() -> ApiError:
    return ApiError(503, "The server's prefill token backlog limit is reached. Please retry later.")
