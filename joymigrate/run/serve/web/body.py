"""Reads the body of a request within its limits."""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp import web, web_protocol

from joymigrate.run.serve.web.errors import HttpRefusal

UNREADABLE = (
    aiohttp.ClientError,
    aiohttp.http_exceptions.HttpProcessingError,
    web_protocol.RequestPayloadError,
)
ENCODINGS = ("identity", "gzip", "deflate", "")


async def read(request: web.BaseRequest, limit_bytes: int, limit_seconds: float) -> bytes:
    """The unpacked body; raises `HttpRefusal` for one that is too large, too slow or broken."""
    if not request.body_exists:
        return b""
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if encoding not in ENCODINGS:
        raise HttpRefusal(415, f"a body comes plain, gzip or deflate, not {encoding}")
    try:
        declared = request.content_length
    except ValueError:
        raise HttpRefusal(400, "Content-Length is no number") from None
    if declared is not None and declared > limit_bytes:
        raise too_large(limit_bytes)
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    try:
        if request.content.is_eof():
            return await request.read()
        return await asyncio.wait_for(request.read(), limit_seconds)
    except web.HTTPRequestEntityTooLarge:
        raise too_large(limit_bytes) from None
    except (TimeoutError, asyncio.TimeoutError):
        raise HttpRefusal(408, f"the body did not arrive in {limit_seconds:g} s") from None
    except UNREADABLE as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise HttpRefusal(400, f"the body cannot be read: {said}", code="invalid_body") from None


def too_large(limit_bytes: int) -> HttpRefusal:
    """413."""
    return HttpRefusal(413, f"a body has at most {limit_bytes} bytes")
