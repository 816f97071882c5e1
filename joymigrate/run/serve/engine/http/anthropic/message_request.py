"""A request to /v1/messages as the chat request that it means."""

from __future__ import annotations

from typing import Any

import orjson

from joymigrate.run.serve.engine.http.fields import Fields
from joymigrate.run.serve.web.errors import HttpRefusal

SAME = ("model", "temperature", "top_p", "top_k", "stream", "seed")
HARMLESS = ("cache_control", "inference_geo", "user_profile_id", "workspace_id")
# What a chat's field is called here, for errors.
CALLED = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_of(body: dict[str, Any]) -> dict[str, Any]:
    """The body of a chat request; raises `HttpRefusal` for what a chat cannot say."""
    fields = Fields(body)
    fields.refuse("mcp_servers", "this server runs no tools", unless=([],))
    fields.refuse("container", "this server runs no tools")
    fields.refuse("context_management", "conversations are not compacted")
    for name in HARMLESS:
        fields.raw(name)
    made: dict[str, Any] = {name: fields.raw(name) for name in SAME}
    made["chat_template_kwargs"] = variables(fields)
    made["messages"] = [*system(fields.raw("system")), *messages(fields.required("messages"))]
    fields.required("max_tokens")
    made["max_completion_tokens"] = fields.whole("max_tokens", low=1)
    made["stop"] = list(fields.words("stop_sequences"))
    made["tools"] = [tool(one, f"tools[{i}]") for i, one in enumerate(fields.listed("tools") or ())]
    made |= tool_choice(fields.table_of("tool_choice"))
    made |= output(Fields(fields.table_of("output_config") or {}, "output_config."))
    fields.close()
    return {name: value for name, value in made.items() if value not in (None, [])}


def variables(fields: Fields) -> dict[str, Any] | None:
    """`chat_template_kwargs`, and `thinking` where a template can follow it."""
    given = fields.table_of("chat_template_kwargs")
    kind = (fields.table_of("thinking") or {}).get("type")
    if kind == "disabled":
        return {"enable_thinking": False, **(given or {})}
    if kind not in (None, "adaptive"):
        fields.refuse("thinking", "no budget of thoughts can be kept; adaptive and disabled can")
    return given


def output(fields: Fields) -> dict[str, Any]:
    """`output_config`: a schema, and how much is thought."""
    given, effort = fields.table_of("format"), fields.text("effort")
    fields.close()
    if given is None:
        return {"reasoning_effort": effort}
    if given.get("type") != "json_schema":
        raise HttpRefusal(
            400, "output_config.format.type is json_schema", param="output_config.format"
        )
    form = {"type": "json_schema", "json_schema": {"name": "output", "schema": given.get("schema")}}
    return {"reasoning_effort": effort, "response_format": form}


def tool(raw: Any, where: str) -> dict[str, Any]:
    """A function of the client's."""
    kind = raw.get("type") or "custom" if isinstance(raw, dict) else None
    if kind != "custom":
        raise HttpRefusal(400, f"{where} is a tool of the client's; this server runs none such as "
                          f"{kind!r}", code="unsupported_tool", param=where)  # fmt: skip
    function = {"name": raw.get("name"), "description": raw.get("description"),
                "parameters": raw.get("input_schema")}  # fmt: skip
    return {"type": "function", "function": function}


def tool_choice(raw: dict[str, Any] | None) -> dict[str, Any]:
    """`tool_choice`."""
    if raw is None:
        return {}
    kind = str(raw.get("type"))
    if kind not in (*CHOICES, "tool"):
        raise HttpRefusal(400, "tool_choice.type is auto, any, tool or none", param="tool_choice")
    named = {"type": "function", "function": {"name": raw.get("name")}}
    several = {} if raw.get("disable_parallel_tool_use") is not True else {
        "parallel_tool_calls": False
    }  # fmt: skip
    return {"tool_choice": CHOICES.get(kind, named), **several}


def system(raw: Any) -> list[dict[str, Any]]:
    """The system prompt: a text or text blocks."""
    if raw is None or raw == []:
        return []
    return [{"role": "system", "content": parts_of(raw, "system")}]


def messages(raw: Any) -> list[dict[str, Any]]:
    """The conversation; a tool's results become messages of their own."""
    if not isinstance(raw, list) or not raw:
        raise HttpRefusal(400, "messages is a list of at least one message", param="messages")
    made: list[dict[str, Any]] = []
    for place, message in enumerate(raw):
        where = f"messages[{place}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant"):
            raise HttpRefusal(400, f"{where}.role is user or assistant", param=f"{where}.role")
        content = message.get("content")
        at = f"{where}.content"
        if role == "assistant":
            made.append(assistant_message(content, at))
            continue
        blocks = [] if isinstance(content, str) else blocks_of(content, at)
        results = [one for one in blocks if one.get("type") == "tool_result"]
        made += [tool_message(one, at) for one in results]
        others = [one for one in blocks if one.get("type") != "tool_result"]
        if others or not results:
            made.append({"role": "user", "content": parts_of(others or content, at)})
    return made


def assistant_message(content: Any, where: str) -> dict[str, Any]:
    """An assistant's message: words, calls and thoughts."""
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    blocks = blocks_of(content, where)
    calls = [
        {"id": one.get("id"), "type": "function",
         "function": {"name": one.get("name"),
                      "arguments": orjson.dumps(one.get("input") or {}).decode()}}
        for one in blocks if one.get("type") == "tool_use"
    ]  # fmt: skip
    thoughts = "".join(str(one.get("thinking") or "") for one in blocks
                       if one.get("type") == "thinking")  # fmt: skip
    words = [one for one in blocks if one.get("type") not in ("tool_use", "thinking")]
    message: dict[str, Any] = {"role": "assistant", "content": parts_of(words, where) or None}
    more = {"tool_calls": calls, "reasoning_content": thoughts}
    return message | {name: value for name, value in more.items() if value}


def tool_message(block: dict[str, Any], where: str) -> dict[str, Any]:
    """What a tool of the client's gave."""
    called = block.get("tool_use_id")
    if not isinstance(called, str):
        raise HttpRefusal(400, f"{where}: a tool_result has a tool_use_id", param=where)
    content = block.get("content")
    return {"role": "tool", "tool_call_id": called,
            "content": "" if content is None else parts_of(content, where)}  # fmt: skip


def blocks_of(content: Any, where: str) -> list[dict[str, Any]]:
    """The blocks of a message."""
    if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
        raise HttpRefusal(400, f"{where} is a string or a list of blocks", code="invalid_type",
                          param=where)  # fmt: skip
    return content


def parts_of(content: Any, where: str) -> Any:
    """Text and images in the words of a chat."""
    if isinstance(content, str):
        return content
    made = []
    for block in blocks_of(content, where):
        kind, source = block.get("type"), block.get("source")
        if kind == "text":
            made.append({"type": "text", "text": block.get("text")})
        elif kind == "image" and isinstance(source, dict):
            packed = f"data:{source.get('media_type')};base64,{source.get('data')}"
            url = source.get("url") if source.get("type") == "url" else packed
            made.append({"type": "image_url", "image_url": {"url": url}})
        else:
            raise HttpRefusal(400, f"{where} has a block of a kind that is not served: {kind!r}",
                              code="unsupported_content", param=where)  # fmt: skip
    return made
