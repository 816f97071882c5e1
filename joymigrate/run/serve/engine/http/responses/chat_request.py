"""A request to /v1/responses as the chat request that it means."""

from __future__ import annotations

from typing import Any

from joymigrate.run.serve.engine.http.fields import Fields
from joymigrate.run.serve.web.errors import HttpRefusal

# Fields of the same name and meaning in chat requests.
SAME = (
    "model",
    "temperature",
    "top_p",
    "stream",
    "parallel_tool_calls",
    "top_k",
    "min_p",
    "min_tokens",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "truncate_prompt_tokens",
    "add_special_tokens",
    "chat_template_kwargs",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
# What a chat's field is called here, for errors.
CALLED = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
LOGPROBS = "message.output_text.logprobs"
INCLUDED = (LOGPROBS, "reasoning.encrypted_content")
TEXTS = ("input_text", "output_text", "text")


def chat_of(body: dict[str, Any]) -> dict[str, Any]:
    """The body of a chat request; raises `HttpRefusal` for what a chat cannot say."""
    fields = Fields(body)
    refuse_what_is_missing(fields)
    made: dict[str, Any] = {name: fields.raw(name) for name in SAME}
    made["messages"] = messages(fields.required("input"), fields.text("instructions"))
    made["max_completion_tokens"] = fields.whole("max_output_tokens", low=1)
    made["tools"] = [tool(one, f"tools[{i}]") for i, one in enumerate(fields.listed("tools") or ())]
    made["tool_choice"] = choice(fields.raw("tool_choice"))
    made["response_format"] = form(fields)
    made["reasoning_effort"] = effort(fields)
    made |= numbers(fields)
    options = Fields(fields.table_of("stream_options") or {}, "stream_options.")
    options.flag("include_obfuscation")
    options.close()
    fields.close()
    return {name: value for name, value in made.items() if value not in (None, [])}


def refuse_what_is_missing(fields: Fields) -> None:
    """What needs a store, a queue, or somebody who runs tools."""
    stateless = "nothing is kept between requests: send the whole conversation as input"
    fields.refuse("previous_response_id", stateless)
    fields.refuse("conversation", stateless)
    fields.refuse("prompt", stateless)
    fields.refuse("background", "answers are not kept", unless=(False,))
    fields.refuse("truncation", "a conversation that is too long is refused", unless=("disabled",))
    fields.refuse("max_tool_calls", "tools are run by the client")
    fields.refuse("context_management", "conversations are not compacted", unless=([],))
    fields.refuse("moderation", "answers are not checked")


def numbers(fields: Fields) -> dict[str, Any]:
    """`include` and `top_logprobs`."""
    wanted = fields.listed("include") or []
    other = next((one for one in wanted if one not in INCLUDED), None)
    if other is not None:
        raise HttpRefusal(400, f"include knows {LOGPROBS}, not {other!r}", param="include")
    top = fields.whole("top_logprobs", low=0, high=20)
    if LOGPROBS not in wanted and not top:
        return {}
    return {"logprobs": True, "top_logprobs": top or 0}


def effort(fields: Fields) -> Any:
    """`reasoning.effort`."""
    inner = Fields(fields.table_of("reasoning") or {}, "reasoning.")
    for name in ("summary", "generate_summary"):
        inner.refuse(name, "answers are not split into thoughts and words", unless=("auto",))
    found = inner.text("effort")
    inner.close()
    return None if found == "none" else found


def form(fields: Fields) -> dict[str, Any] | None:
    """`text.format` as a chat's response_format."""
    inner = Fields(fields.table_of("text") or {}, "text.")
    inner.refuse("verbosity", "the model has no such setting", unless=("medium",))
    given = inner.table_of("format")
    inner.close()
    if given is None or given.get("type") != "json_schema":
        return given
    schema = {name: value for name, value in given.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}


def tool(raw: Any, where: str) -> dict[str, Any]:
    """A function, its fields one level deeper."""
    kind = raw.get("type") if isinstance(raw, dict) else None
    if kind != "function":
        raise HttpRefusal(400, f"{where} is a function; this server runs no tools such as {kind!r}",
                          code="unsupported_tool", param=where)  # fmt: skip
    return {"type": "function", "function": {k: v for k, v in raw.items() if k != "type"}}


def choice(raw: Any) -> Any:
    """`tool_choice`, a named function one level deeper."""
    if isinstance(raw, dict) and raw.get("type") == "function" and set(raw) == {"type", "name"}:
        return {"type": "function", "function": {"name": raw["name"]}}
    if isinstance(raw, dict):
        raise HttpRefusal(400, "tool_choice is auto, none, required, or {type: function, name}",
                          param="tool_choice")  # fmt: skip
    return raw


def messages(raw: Any, instructions: str | None) -> list[dict[str, Any]]:
    """The conversation: a text, or items."""
    made: list[dict[str, Any]] = []
    if instructions:
        made.append({"role": "system", "content": instructions})
    if isinstance(raw, str):
        return [*made, {"role": "user", "content": raw}]
    if not isinstance(raw, list) or not raw:
        raise HttpRefusal(400, "input is a text or a list of items", param="input")
    thoughts = ""
    for place, item in enumerate(raw):
        where = f"input[{place}]"
        if not isinstance(item, dict):
            raise HttpRefusal(400, f"{where} is an object", code="invalid_type", param=where)
        kind = item.get("type", "message")
        if kind == "reasoning":
            thoughts += read_thoughts(item, where)
            continue
        message = one(item, str(kind), where)
        if thoughts and message["role"] == "assistant":
            message["reasoning_content"], thoughts = thoughts, ""
        if continues(made, message):
            made[-1].setdefault("tool_calls", []).extend(message["tool_calls"])
        else:
            made.append(message)
    return made


def continues(made: list[dict[str, Any]], message: dict[str, Any]) -> bool:
    """Whether a call belongs to the assistant's message before it."""
    return bool(made and message.get("tool_calls") and made[-1]["role"] == "assistant")


def one(item: dict[str, Any], kind: str, where: str) -> dict[str, Any]:
    """One item as a message."""
    if kind == "message":
        return {"role": item.get("role"), "content": content(item.get("content"), where)}
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        found = item.get("call_id")
        if not isinstance(found, str):
            raise HttpRefusal(400, f"{where}.call_id is a string", param=f"{where}.call_id")
        text = content(item.get("output"), where)
        return {"role": "tool", "tool_call_id": found, "content": text}
    raise HttpRefusal(400, f"{where} is of a kind that is not served: {kind!r}",
                      code="unsupported_content", param=where)  # fmt: skip


def read_thoughts(item: dict[str, Any], where: str) -> str:
    """The text of an earlier turn's thoughts; what is encrypted cannot be read."""
    parts = item.get("content") or []
    if item.get("encrypted_content") or not isinstance(parts, list):
        raise HttpRefusal(400, f"{where} is reasoning that only its own server can read",
                          code="unsupported_content", param=where)  # fmt: skip
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def content(raw: Any, where: str) -> Any:
    """A message's parts in the words of a chat."""
    if not isinstance(raw, list):
        return raw
    made = []
    for place, part in enumerate(raw):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in TEXTS:
            made.append({"type": "text", "text": part.get("text")})
        elif kind == "input_image" and part.get("file_id") is None:
            made.append({"type": "image_url", "image_url": {"url": part.get("image_url")}})
        elif kind == "refusal":
            made.append(part)
        else:
            at = f"{where}.content[{place}]"
            raise HttpRefusal(400, f"{at} is of a kind that is not served: {kind!r}",
                              code="unsupported_content", param=at)  # fmt: skip
    return made
