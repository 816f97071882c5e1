"""Refusals, and how each API words them: the official clients read these fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class HttpRefusal(Exception):
    """A request that is not served, and why. `code` is stable; the message is for people."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code or CODES.get(status, "error")
        self.param = param
        self.headers = dict(headers or {})


CODES = {
    400: "invalid_value",
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    408: "body_too_slow",
    409: "resume_differs",
    413: "body_too_large",
    415: "unsupported_encoding",
    429: "queue_full",
    500: "internal_error",
    501: "not_implemented",
    503: "unavailable",
}
TYPES = {429: "rate_limit_error"}


def kind(status: int) -> str:
    """The class of error that OpenAI's clients know."""
    return TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")


def openai(refusal: HttpRefusal) -> dict[str, Any]:
    """`{"error": {message, type, param, code}}`."""
    return {
        "error": {
            "message": refusal.message,
            "type": kind(refusal.status),
            "param": refusal.param,
            "code": refusal.code,
        }
    }


def triton(refusal: HttpRefusal) -> dict[str, Any]:
    """`{"error": message}`, which KServe's clients raise."""
    return {"error": refusal.message}


def anthropic(refusal: HttpRefusal) -> dict[str, Any]:
    """`{"type": "error", "error": {type, message}}`."""
    usual = "invalid_request_error" if refusal.status < 500 else "api_error"
    name = NAMES.get(refusal.status, usual)
    return {"type": "error", "error": {"type": name, "message": refusal.message}}


NAMES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error",
         413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error"}  # fmt: skip
WORDS = {"openai": openai, "anthropic": anthropic, "triton": triton}  # by `Api.words`
