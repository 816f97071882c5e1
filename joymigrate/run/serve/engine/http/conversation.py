"""`messages` of a chat request: checked, and put into the form that templates expect."""

from __future__ import annotations

import base64
import binascii
import io
from dataclasses import dataclass, field
from typing import Any

import orjson

from joymigrate.run.serve.web.errors import HttpRefusal

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_PIXELS = 64 * 2**20  # of all images of a request together
MAX_IMAGES = 16
# What clients of the OpenAI API send. Pillow knows many kinds more, and starts a program for one.
KINDS = ("PNG", "JPEG", "WEBP", "GIF")


@dataclass(slots=True)
class Conversation:
    """Messages for a template, and the images in their order of appearance."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    images: list[Any] = field(default_factory=list)


def read(raw: Any, *, vision: bool, developer: bool) -> Conversation:
    """Check `messages`; raises `HttpRefusal`. `vision`: the model sees images; `developer`: its
    template knows that role (otherwise it becomes `system`)."""
    if not isinstance(raw, list) or not raw:
        raise HttpRefusal(400, "messages is a list of at least one message", param="messages")
    found = Conversation()
    for place, message in enumerate(raw):
        where = f"messages[{place}]"
        if not isinstance(message, dict):
            raise HttpRefusal(400, f"{where} is an object", code="invalid_type", param=where)
        role = message.get("role")
        if role not in ROLES:
            raise HttpRefusal(
                400,
                f"{where}.role is one of {', '.join(ROLES)}, got {role!r}",
                param=f"{where}.role",
            )
        role = "system" if role == "developer" and not developer else role
        found.messages.append(one(message, str(role), where, found, vision))
    return found


def one(
    message: dict[str, Any], role: str, where: str, found: Conversation, vision: bool
) -> dict[str, Any]:
    """One message: content as text, or as parts when it holds images."""
    made: dict[str, Any] = {"role": role, "content": content(message, role, where, found, vision)}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if message.get(name) is not None:
            if not isinstance(message[name], str):
                raise HttpRefusal(400, f"{where}.{name} is a string", param=f"{where}.{name}")
            made[name] = message[name]
    calls = message.get("tool_calls")
    if calls:
        if role != "assistant" or not isinstance(calls, list):
            raise HttpRefusal(
                400, f"{where}.tool_calls is a list of an assistant", param=f"{where}.tool_calls"
            )
        made["tool_calls"] = [
            call(item, f"{where}.tool_calls[{i}]") for i, item in enumerate(calls)
        ]
    elif made["content"] is None and not (role == "assistant" and "content" in message):
        raise HttpRefusal(400, f"{where}.content is missing", param=f"{where}.content",
                          code="missing_required_parameter")  # fmt: skip
    made["content"] = made["content"] if made["content"] is not None else ""
    return made


def content(
    message: dict[str, Any], role: str, where: str, found: Conversation, vision: bool
) -> Any:
    """The text of a message, or its parts where there are images among them."""
    raw = message.get("content")
    if raw is None or isinstance(raw, str):
        return raw
    where = f"{where}.content"
    if not isinstance(raw, list):
        raise HttpRefusal(
            400, f"{where} is a string or a list of parts", code="invalid_type", param=where
        )
    parts: list[dict[str, Any]] = []
    seen = len(found.images)
    for place, part in enumerate(raw):
        at = f"{where}[{place}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "input_text", "refusal"):
            text = part.get("refusal" if kind == "refusal" else "text")
            if not isinstance(text, str):
                raise HttpRefusal(400, f"{at}.text is a string", code="invalid_type", param=at)
            parts.append({"type": "text", "text": text})
        elif kind == "image_url":
            if not vision:
                raise HttpRefusal(
                    400, "this model reads text only, not images", code="unsupported_content",
                    param=at,
                )  # fmt: skip
            if len(found.images) >= MAX_IMAGES:
                raise HttpRefusal(400, f"at most {MAX_IMAGES} images in a request", param=at)
            room = MAX_PIXELS - sum(made.width * made.height for made in found.images)
            found.images.append(image(part.get("image_url"), at, room))
            parts.append({"type": "image"})
        else:
            raise HttpRefusal(
                400, f"{at} is of a kind that is not served: {kind!r}", code="unsupported_content",
                param=at,
            )  # fmt: skip
    if len(found.images) > seen:
        return parts
    return "\n".join(part["text"] for part in parts)


def image(raw: Any, where: str, room: int = MAX_PIXELS) -> Any:
    """An RGB image of at most `room` pixels out of a data: URL. Other URLs are not fetched: the
    server opens no connection that a client asks for."""
    url = raw.get("url") if isinstance(raw, dict) else raw
    if not isinstance(url, str) or not url.startswith("data:"):
        raise HttpRefusal(
            400,
            "an image is a data: URL (data:image/png;base64,...); addresses are not fetched",
            code="unsupported_content",
            param=where,
        )
    head, _, packed = url.partition(",")
    if not head.endswith(";base64"):
        raise HttpRefusal(400, "an image's data: URL is base64", param=where)
    from PIL import Image, UnidentifiedImageError

    try:
        opened = Image.open(io.BytesIO(base64.b64decode(packed, validate=True)), formats=KINDS)
        if opened.width * opened.height > room:
            raise too_large(f"this one is {opened.width} x {opened.height}", where)
        return opened.convert("RGB")
    except Image.DecompressionBombError as error:
        raise too_large(str(error), where) from None
    except UnidentifiedImageError:
        kinds = ", ".join(KINDS)
        raise HttpRefusal(
            400, f"not an image of a kind that is known: {kinds}", code="invalid_image", param=where
        ) from None
    except (OSError, ValueError, binascii.Error, SyntaxError) as error:
        raise HttpRefusal(
            400, f"not an image: {error}", code="invalid_image", param=where
        ) from None


def too_large(why: str, where: str) -> HttpRefusal:
    """The refusal of images that would take too much memory."""
    return HttpRefusal(
        400,
        f"the images of a request have at most {MAX_PIXELS} pixels together; {why}",
        code="image_too_large",
        param=where,
    )


def call(raw: Any, where: str) -> dict[str, Any]:
    """A tool call of an earlier turn; its arguments become an object, as templates expect."""
    function = raw.get("function") if isinstance(raw, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not isinstance(function, dict):
        raise HttpRefusal(
            400, f"{where} is {{id, type, function: {{name, arguments}}}}", param=where
        )
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            raise HttpRefusal(
                400, f"{where}.function.arguments is no JSON", param=f"{where}.function.arguments"
            ) from None
    return {
        "id": raw.get("id"),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
