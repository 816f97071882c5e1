"""A record of a conversation in one form. What the form reads is used, what cannot be is refused.

The forms are OpenAI's and ShareGPT's (`messages` or `conversations`), Alpaca's (`instruction`) and
TRL's (`prompt` as a list of messages), each with the keys that its users write: system, tools,
history, weights of turns, calls of functions.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.train import records

Message = dict[str, Any]
SPEAKERS = {  # ShareGPT's names
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "bot", "assistant", "chatgpt", "function_call"), "assistant"),
    **dict.fromkeys(("observation", "tool", "function"), "tool"),
    "system": "system",
}
# Keys that mean something which this task cannot learn, and where they belong.
ELSEWHERE = {
    **dict.fromkeys(("image", "images"), "task: image_text reads images"),
    **dict.fromkeys(("video", "videos", "audio", "audios"), "no task reads it"),
    **dict.fromkeys(("chosen", "rejected"), "task: dpo or reward reads pairs of answers"),
    **dict.fromkeys(("label", "kto_tag"), "no task reads answers with a label"),
    "chat_template_kwargs": "write what the template needs into data.template",
}
TURN = {"role", "content", "weight", "name", "tool_calls", "tool_call_id", "function_call",
        "reasoning_content"}  # fmt: skip
Turn = tuple[Message, bool]  # a message, and whether it is learned


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages for the chat template, which of them are learned, and the tools it is given."""

    messages: tuple[Message, ...]
    learned: tuple[bool, ...]
    tools: tuple[Any, ...] = ()


def read(record: records.TrainingRecord, *, answered: bool = True) -> Chat | None:
    """The record's conversation, or None for texts. Without `answered` the answer may be missing.

    Raises `JoyError` for a key with a meaning that cannot be used, and for a value of another kind.
    """
    for key, where in ELSEWHERE.items():
        if record.get(key) is not None:
            raise JoyError(f"'{key}' cannot be used here", where=record.where, help=where)
    for key, turns_of in FORMS.items():
        value = record.value.get(key)
        if value is not None and not (key == "prompt" and isinstance(value, str)):
            return chat(turns_of(record, key, answered), record)
    for key in ("system", "tools"):
        if record.get(key) is not None:
            raise JoyError(
                f"'{key}' cannot be used beside a prompt that is a text",
                where=record.where,
                help='write the record as {"messages": [{"role", "content"}, …]}',
            )
    return None


def chat(turns: Sequence[Turn], record: records.TrainingRecord) -> Chat:
    """The turns with the record's system message and tools."""
    messages, learned = [one for one, _ in turns], [one for _, one in turns]
    system = record.get("system")
    if system:
        if messages and messages[0]["role"] == "system":
            raise JoyError("the record has two system messages", where=record.where)
        message = {"role": "system", "content": words(system, "system", record)}
        messages, learned = [message, *messages], [False, *learned]
    return Chat(tuple(messages), tuple(learned), tools_of(record))


def read_turns(value: Any, key: str, record: records.TrainingRecord) -> list[Turn]:
    """A list of messages in OpenAI's or ShareGPT's words."""
    return [
        turn(read_shared(one, record) if "from" in one else one, record)
        for one in mappings(value, key, record)
    ]


def turn(message: Mapping[str, Any], record: records.TrainingRecord) -> Turn:
    """One message as templates expect it, and whether it is learned."""
    for key, value in message.items():
        if key not in TURN and value is not None:
            raise JoyError(f"a message's '{key}' cannot be used", where=record.where)
    role = message.get("role")
    if not isinstance(role, str):
        raise JoyError(f"a message needs a role, got {role!r}", where=record.where)
    found: Message = {"role": role}
    calls = calls_of(message, record)
    if message.get("content") is not None or not calls:
        found["content"] = words(message.get("content"), "content", record)
    else:
        found["content"] = ""
    if calls:
        if role != "assistant":
            raise JoyError(f"'tool_calls' in a message of the {role}", where=record.where)
        found["tool_calls"] = calls
    for key in ("name", "tool_call_id", "reasoning_content"):
        if message.get(key) is not None:
            found[key] = words(message[key], key, record)
    weight = message.get("weight")
    if weight not in (None, 0, 1):
        raise JoyError(f"a message's 'weight' is 0 or 1, got {weight!r}", where=record.where)
    if weight == 1 and role != "assistant":
        raise JoyError(
            f"'weight' is 1 in a message of the {role}, and only the assistant's are learned",
            where=record.where,
            help="task: {name: sft, learn: all} learns every token",
        )
    says = bool(calls or found["content"].strip() or found.get("reasoning_content"))
    if role == "assistant" and not says:
        record.fate.notes.add("an empty answer is not learned")
    return found, role == "assistant" and weight != 0 and says


def calls_of(message: Mapping[str, Any], record: records.TrainingRecord) -> list[Any]:
    """The calls of functions in OpenAI's form, their arguments as objects."""
    calls = message.get("tool_calls") or []
    if message.get("function_call") is not None:  # the form before tools
        calls = [{"type": "function", "function": message["function_call"]}]
    if not isinstance(calls, list):
        raise JoyError("'tool_calls' is a list", where=record.where)
    found = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise JoyError("a call in 'tool_calls' needs a function with a name",
                           where=record.where)  # fmt: skip
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except ValueError:
                raise JoyError(
                    f"the arguments of the call of {function['name']} in 'tool_calls' are no JSON",
                    where=record.where,
                ) from None
        found.append({**call, "function": {**function, "arguments": arguments}})
    return found


def read_shared(one: Mapping[str, Any], record: records.TrainingRecord) -> Message:
    """A turn of ShareGPT in OpenAI's words; a call that is JSON becomes a call."""
    speaker = one.get("from")
    role = SPEAKERS.get(str(speaker))
    if role is None:
        raise JoyError(
            f"nobody is called {speaker!r} in a conversation",
            where=record.where,
            help=f"`from` is one of {', '.join(SPEAKERS)}",
        )
    rest = {key: value for key, value in one.items() if key not in ("from", "value")}
    content = one.get("value")
    functions = functions_in(content) if speaker == "function_call" else []
    if functions:
        calls = [{"type": "function", "function": function} for function in functions]
        return {"role": role, "content": None, "tool_calls": calls, **rest}
    return {"role": role, "content": content, **rest}


def functions_in(content: Any) -> list[Any]:
    """The functions that a text calls: one object with a name in JSON, or a list of them."""
    try:
        found = json.loads(content) if isinstance(content, str) else None
    except ValueError:
        return []
    found = found if isinstance(found, list) else [found]
    named = all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in found)
    return found if named else []


def read_list(record: records.TrainingRecord, key: str, answered: bool) -> list[Turn]:
    """OpenAI's and ShareGPT's form: one list with all turns."""
    return read_turns(record.require(key), key, record)


def read_instruction(record: records.TrainingRecord, key: str, answered: bool) -> list[Turn]:
    """Alpaca: the turns before, then the instruction with its input, and the answer."""
    history = record.get("history") or []
    pairs = [one for one in history if isinstance(one, list | tuple) and len(one) == 2]
    if not isinstance(history, list) or len(pairs) != len(history):
        raise JoyError("'history' is a list of [question, answer]", where=record.where)
    said = [text for pair in pairs for text in pair]
    if said:
        record.fate.notes.add("the answers in 'history' are learned too")
    parts = [record.require(key), *filter(None, [record.get("input")])]
    said.append("\n".join(words(part, "instruction", record) for part in parts))
    answer = record.require("output") if answered else record.get("output")
    said += [] if answer is None else [answer]
    return [
        turn({"role": "assistant" if number % 2 else "user", "content": text}, record)
        for number, text in enumerate(said)
    ]


def read_prompt(record: records.TrainingRecord, key: str, answered: bool) -> list[Turn]:
    """TRL: messages that are read, and messages that are learned."""
    before = read_turns(record.require(key), key, record)
    answer = record.require("completion") if answered else record.get("completion") or []
    after = read_turns(answer, "completion", record)
    return [*((message, False) for message, _ in before), *after]


# A form by the key that tells it: what reads its turns.
FORMS: dict[str, Callable[[records.TrainingRecord, str, bool], list[Turn]]] = {
    "messages": read_list,
    "conversations": read_list,
    "instruction": read_instruction,
    "prompt": read_prompt,
}


def read_preference(record: records.TrainingRecord, name: str) -> Chat | None:
    """The prompt with the answer under `name` (chosen, rejected), which is learned; None for texts.

    The prompt is a text, or in any form of a conversation. Answers may be whole conversations, with
    the prompt or without one: the turns with which both begin are not learned.
    """
    answer = record.require(name)
    other = record.value.get("rejected" if name == "chosen" else "chosen", answer)
    prompt = record.get("prompt")
    base = {key: value for key, value in record.value.items() if key not in ("chosen", "rejected")}
    known = [key for key in FORMS if base.get(key) is not None]
    if known in ([], ["prompt"]) and isinstance(answer, str) and isinstance(prompt, str | None):
        return None
    if isinstance(prompt, str):
        base["prompt"] = [{"role": "user", "content": prompt}]
    asked = record.with_value(base if known else {**base, "prompt": []})
    before = read(asked, answered=False)
    assert before is not None
    record.used.update(asked.used)
    after, beside = (read_answer(one, name, record, before.messages) for one in (answer, other))
    begins = zip(after[:-1], beside[:-1], strict=False)
    shared = len([*itertools.takewhile(lambda pair: pair[0] == pair[1], begins)])
    messages = [*before.messages, *(message for message, _ in after)]
    learned = [False] * (len(before.messages) + shared) + [one for _, one in after[shared:]]
    return Chat(tuple(messages), tuple(learned), before.tools)


def read_answer(
    answer: Any, name: str, record: records.TrainingRecord, asked: Sequence[Message]
) -> list[Turn]:
    """The turns of an answer, a text or a conversation, behind those that were asked already."""
    if isinstance(answer, str):
        answer = [{"role": "assistant", "content": answer}]
    turns = read_turns([answer] if isinstance(answer, Mapping) else answer, name, record)
    said = [message for message, _ in turns]
    for again in ([*asked], [one for one in asked if one["role"] != "system"]):
        if said[: len(again)] == again:
            return turns[len(again) :]
    return turns


def tools_of(record: records.TrainingRecord) -> tuple[Any, ...]:
    """The functions that the assistant may call; ShareGPT writes them as JSON in a text."""
    tools = record.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except ValueError:
            raise JoyError("'tools' is a text that is no JSON", where=record.where) from None
    if tools is None and record.get("functions") is not None:  # the form before tools
        listed = mappings(record.get("functions"), "functions", record)
        tools = [{"type": "function", "function": one} for one in listed]
    if tools is None:
        return ()
    return tuple(mappings(tools, "tools", record))


def mappings(value: Any, key: str, record: records.TrainingRecord) -> list[Mapping[str, Any]]:
    """A list of objects."""
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise JoyError(
            f"'{key}' is a list of objects, got {records.kind_of_value(value)}",
            where=record.where,
            help="JSON inside a text has to be read first",
        )
    return value


def words(value: Any, key: str, record: records.TrainingRecord) -> str:
    """A text, or OpenAI's list of parts that are texts."""
    if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        kinds = {str(one.get("type")) for one in value} - {"text"}
        if kinds:
            raise JoyError(
                f"a message has parts of type {', '.join(sorted(kinds))}, only text can be used",
                where=record.where,
            )
        return "".join(words(one.get("text"), "text", record) for one in value)
    return records.as_text(value, key, record)
