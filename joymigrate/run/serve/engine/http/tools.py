"""`tools` and `tool_choice`: what the prompt shows, what is enforced, and how calls are read back.

`auto` shows the tools and reads calls in the form that the model's own template teaches; `required`
and a named function are enforced by a guide.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from joymigrate.run.serve.engine.http.call_pieces import CallPiece, CallPieces
from joymigrate.run.serve.engine.http.fields import Fields
from joymigrate.run.serve.engine.http.guide import GrammarState, Guides
from joymigrate.run.serve.engine.text import longest_start
from joymigrate.run.serve.web.errors import HttpRefusal

MAX_TOOLS = 128
NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
AUTO, NONE, REQUIRED, NAMED = "auto", "none", "required", "named"


@dataclass(frozen=True, slots=True)
class ToolCallForm:
    """How a family of models writes calls: `begin` … `end` around JSON; `whole`: the text itself
    is the JSON."""

    name: str
    sign: str  # found in the family's chat template
    begin: str
    end: str = ""
    whole: bool = False


FORMS = (
    ToolCallForm("hermes", "<tool_call>", "<tool_call>", "</tool_call>"),
    ToolCallForm("mistral", "[TOOL_CALLS]", "[TOOL_CALLS]"),
    ToolCallForm("llama", "<|python_tag|>", "<|python_tag|>", whole=True),
    ToolCallForm("llama", '"parameters"', "<|python_tag|>", whole=True),
)


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of one request. `form` None: calls are enforced and come as bare JSON."""

    tools: list[dict[str, Any]]
    choice: str
    name: str | None = None  # of the named function
    parallel: bool = True
    form: ToolCallForm | None = None

    @property
    def forced(self) -> bool:
        """Whether the answer must be calls."""
        return self.choice in (REQUIRED, NAMED)

    @property
    def in_pieces(self) -> bool:
        """Whether the arguments of its calls can be told apart while they are written."""
        return self.forced and all(parameters(tool).get("type") == "object" for tool in self.tools)

    def guide(self, guides: Guides) -> Callable[[], GrammarState] | None:
        """What enforces the choice; None for `auto`."""
        if not self.forced:
            return None
        if self.choice == NAMED:
            named = next(tool for tool in self.tools if tool["function"]["name"] == self.name)
            return guides.of_schema(parameters(named), "tool_choice")
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool["function"]["name"]},
                    "arguments": parameters(tool),
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for tool in self.tools
        ]
        most = {} if self.parallel else {"maxItems": 1}
        schema = {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}}
        return guides.of_schema(schema, "tools")


def read(fields: Fields, template: str) -> Toolbox | None:
    """The tools that a request offers; None when it offers none, or none may be called.

    `template` is the source of the model's chat template: without a place for tools in it the
    model would never see them, so such a request is refused.
    """
    for name in ("functions", "function_call"):
        fields.refuse(name, "use tools and tool_choice", unless=([], "none"))
    raw = fields.listed("tools")
    choice = fields.raw("tool_choice")
    parallel = fields.flag("parallel_tool_calls", True)
    if not raw:
        if choice not in (None, NONE, AUTO):
            raise HttpRefusal(400, "tool_choice needs tools", param="tool_choice")
        return None
    if len(raw) > MAX_TOOLS:
        raise HttpRefusal(400, f"at most {MAX_TOOLS} tools", param="tools")
    tools = [tool(item, f"tools[{place}].") for place, item in enumerate(raw)]
    kind, named = parse_choice(choice, tools)
    if kind == NONE:
        return None
    if "tools" not in template:
        raise HttpRefusal(
            400,
            "this model's chat template has no place for tools",
            code="unsupported_parameter",
            param="tools",
        )
    form = next((form for form in FORMS if form.sign in template), None)
    if kind == AUTO:
        refuse_unread(form, tools)
    return Toolbox(tools, kind, named, parallel, form if kind == AUTO else None)


def refuse_unread(form: ToolCallForm | None, tools: list[dict[str, Any]]) -> None:
    """`auto` needs a form that is known, and promises nothing about the arguments."""
    if form is None:
        raise HttpRefusal(
            400,
            "how this model writes tool calls is not known: use tool_choice required or a "
            "named function",
            code="unsupported_parameter",
            param="tool_choice",
        )
    strict = next((one for one in tools if one["function"].get("strict")), None)
    if strict is not None:
        raise HttpRefusal(
            400,
            f"strict ({strict['function']['name']}) is enforced with tool_choice required or a "
            "named function, not with auto",
            code="unsupported_parameter",
            param="tools",
        )


def tool(raw: Any, where: str) -> dict[str, Any]:
    """One checked tool."""
    if not isinstance(raw, dict):
        raise HttpRefusal(400, f"{where[:-1]} is an object", code="invalid_type", param=where[:-1])
    fields = Fields(raw, where)
    if fields.required("type") != "function":
        raise HttpRefusal(400, f"{where}type is 'function'", param=f"{where}type")
    given = fields.required("function")
    if not isinstance(given, dict):
        raise fields.wrong("function", "an object", given)
    fields.close()
    function = Fields(given, f"{where}function.")
    name = function.required("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise HttpRefusal(
            400,
            f"{where}function.name is 1 to 64 letters, digits, '_', '-' or '.'",
            param=f"{where}function.name",
        )
    function.text("description")
    function.table_of("parameters")
    function.flag("strict")
    function.close()
    kept = {key: value for key, value in given.items() if value is not None}
    return {"type": "function", "function": kept}


def parse_choice(raw: Any, tools: list[dict[str, Any]]) -> tuple[str, str | None]:
    """`tool_choice` as one of four kinds, and the named function."""
    if raw is None:
        return AUTO, None
    if raw in (AUTO, NONE, REQUIRED):
        return str(raw), None
    function = raw.get("function") if isinstance(raw, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(raw, dict) or raw.get("type") != "function" or not isinstance(name, str):
        raise HttpRefusal(
            400,
            'tool_choice is auto, none, required or {"type": "function", "function": {"name": …}}',
            param="tool_choice",
        )
    if name not in [one["function"]["name"] for one in tools]:
        raise HttpRefusal(400, f"tool_choice names '{name}', which is no tool", param="tool_choice")
    return NAMED, name


def parameters(tool: dict[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments; a tool that declares none takes none."""
    given = tool["function"].get("parameters")
    return given or {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that was read: its arguments as JSON text."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")

    def to_json(self) -> dict[str, Any]:
        """As in an answer."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


Piece = str | ToolCall | CallPiece


class CallReader:
    """Turns text that arrives in pieces into words for the user and whole calls."""

    def __init__(self, box: Toolbox, *, stream: bool = False) -> None:
        """`stream`: enforced calls go out in pieces."""
        self.box = box
        self.pieces: CallPieces | None = None
        if stream and box.in_pieces:
            self.pieces = CallPieces(box.name if box.choice == NAMED else None)
        self.held = ""
        self.inside = False
        self.calls = 0

    def feed(self, text: str) -> list[Piece]:
        """What is certain by now."""
        if self.pieces is not None:
            return list(self.pieces.feed(text))
        self.held += text
        form = self.box.form
        if form is None:
            return []  # enforced calls are read when they are whole
        if form.whole:
            return self.held_whole(form)
        pieces: list[Piece] = []
        while True:
            if not self.inside:
                place = safe = self.held.find(form.begin)
                if place < 0:
                    safe = len(self.held) - longest_start(self.held, (form.begin,))
                pieces += [self.held[:safe]] if safe else []
                self.held = self.held[safe:]
                if place < 0:
                    return pieces
                self.inside = True
            end = self.held.find(form.end) if form.end else -1
            if end < 0:
                return pieces
            pieces += self.taken(self.held[len(form.begin) : end], self.held[: end + len(form.end)])
            self.held = self.held[end + len(form.end) :]
            self.inside = False

    def held_whole(self, form: ToolCallForm) -> list[Piece]:
        """Text that does not begin like JSON is words."""
        start = self.held.lstrip()
        if not start or start.startswith("{") or form.begin.startswith(start[: len(form.begin)]):
            return []
        words, self.held = self.held, ""
        return [words] if words else []

    def finish(self) -> list[Piece]:
        """What the end of the text makes certain."""
        held, self.held = self.held, ""
        form = self.box.form
        if not held:
            return []
        if form is None:
            return self.enforced(held)
        if self.inside or form.whole:
            return self.taken(held.strip().removeprefix(form.begin), held)
        return [held]

    def enforced(self, text: str) -> list[Piece]:
        """Calls under a guide. One that was cut off by max_tokens comes as words."""
        if self.box.choice == NAMED:
            self.calls += 1
            return [ToolCall(str(self.box.name), text)]
        return self.taken(text, text)

    def taken(self, text: str, raw: str) -> list[Piece]:
        """The calls in a piece of JSON, or the text as it was when there are none."""
        found = calls_in(text.strip(), {tool["function"]["name"] for tool in self.box.tools})
        if not found:
            return [raw]
        room = len(found) if self.box.parallel else max(0, 1 - self.calls)
        self.calls += min(room, len(found))
        return list(found[:room])


def calls_in(text: str, known: set[str]) -> list[ToolCall]:
    """The calls that a piece of JSON holds; empty when it is anything but calls of known tools."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = by_name(text)
    calls = []
    for item in found if isinstance(found, list) else [found]:
        name = item.get("name") if isinstance(item, dict) else None
        if name not in known or not isinstance(item, dict):
            return []
        arguments = item.get("arguments", item.get("parameters", {}))
        packed = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
        calls.append(ToolCall(str(name), packed))
    return calls


def by_name(text: str) -> Any:
    """`name{…}` and `name[ARGS]{…}`, the newer of the two Mistral forms."""
    match = re.fullmatch(r"\s*([\w.-]+)\s*(?:\[ARGS\])?\s*(\{.*\})\s*", text, re.DOTALL)
    if match is None:
        return None
    try:
        return {"name": match.group(1), "arguments": orjson.loads(match.group(2))}
    except orjson.JSONDecodeError:
        return None
