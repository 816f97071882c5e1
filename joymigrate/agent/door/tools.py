"""The tools: each is one of our commands, with what it may be asked and has to be allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate import config

Words = Callable[[Mapping[str, Any]], list[str]]
MOST_TEXT = 4_096  # characters of one argument
MOST_WORDS = 64  # words of one command
LONGEST_WAIT = 600

# What a command line can carry: no NUL, no half of a character.
TEXT = {"type": "string", "maxLength": MOST_TEXT, "pattern": "^[^\\u0000\\ud800-\\udfff]*$"}
PATH = TEXT | {"format": "path", "description": "a folder or file below the roots"}
TO = TEXT | {
    "pattern": "^[a-z0-9][a-z0-9_-]*$(?!\\n)",
    "description": "the chip; `joymigrate chips list` names them",
}
STYLE = {
    "type": "string",
    "enum": ["agnostic", "accelerator", "direct"],
    "description": "not given: the project's configuration, else agnostic, for every tool alike",
}
COMMAND = {
    "type": "array",
    "items": TEXT,
    "minItems": 1,
    "maxItems": MOST_WORDS,
    "description": "the program as words: ['python', 'train.py', '--steps', '3']",
}
WAIT = {
    "type": "integer",
    "minimum": 0,
    "maximum": LONGEST_WAIT,
    "description": "seconds to wait; a longer run goes on and `result` has it by its id",
}


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool: a command's words made of its arguments, run in the folder of its `path`.

    A `path` that is not required is the one root, where it is not given.
    `document`: the command writes JSON to `-o FILE`, or to stdout, or its text is the answer.
    """

    name: str
    about: str
    arguments: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...]
    words: Words
    document: str = "file"  # file, stdout or text
    form: str = "json"  # what --format asks for
    starts: bool = False  # a program of the project
    writes: bool = False  # files of the project
    destructive: bool = False

    def may_write(self, asked: Mapping[str, Any]) -> bool:
        """Whether this call would change the project."""
        return self.writes and bool(asked.get("apply", "apply" not in self.arguments))


def option(asked: Mapping[str, Any], key: str, name: str = "") -> list[str]:
    """An option with its value, where it was given."""
    value = asked.get(key)
    return [] if value is None or value is False else [f"--{name or key}", str(value)]


def name_form(asked: Mapping[str, Any]) -> list[str]:
    """The chip and the style of a call."""
    settings = config.load(Path(asked["folder"]), {"style": asked.get("style")})
    return [*option(asked, "to"), "--style", config.choose_journey_style(settings)]


def flag(asked: Mapping[str, Any], key: str) -> list[str]:
    """A switch, where it was asked for."""
    return [f"--{key}"] if asked.get(key) else []


def rewrite_words(asked: Mapping[str, Any]) -> list[str]:
    """The rewrite: written with `apply`, else only shown."""
    words = ["rewrite", asked["path"], *name_form(asked)]
    words += flag(asked, "unsafe")
    return [*words, "-q", *([] if asked.get("apply") else ["--diff"])]


def verify_words(asked: Mapping[str, Any]) -> list[str]:
    """Two recordings compared, or a program replayed against one on the simulated chip."""
    if asked.get("target"):
        return ["verify", "compare", asked["baseline"], asked["target"], *option(asked, "to")]
    words = ["verify", "replay", asked["baseline"], *option(asked, "to"), "--rehearse"]
    return [*words, "--", *asked.get("command", ())]


def migrate_words(asked: Mapping[str, Any]) -> list[str]:
    """The whole journey of one program."""
    words = ["migrate", asked["path"], *name_form(asked), "-q"]
    return [*words, *flag(asked, "unsafe"), *flag(asked, "yes"), "--", *asked["command"]]


TOOLS = (
    ToolSpec(
        "next", "Where the migration stands, and the one next step. Begin here.",
        {"path": PATH}, (), lambda a: ["next", a["path"]], "stdout",
    ),
    ToolSpec(
        "migrate", "The whole journey of a program with every judge: scan, baseline, rewrite, "
        "rehearse, verify. Goes on where it stood, and answers with the next step.",
        {"path": PATH, "command": COMMAND, "to": TO, "style": STYLE,
         "unsafe": {"type": "boolean", "description": "also edits that need review"},
         "yes": {"type": "boolean", "description": "take mends that cure a stop"}, "wait": WAIT},
        ("command",), migrate_words, "stdout", "next", starts=True, writes=True,
    ),
    ToolSpec(
        "scan", "What ties a project to its accelerator: sites, those for people first.",
        {"path": PATH, "to": TO, "style": STYLE}, (),
        lambda a: ["scan", a["path"], "--exit-zero", *name_form(a)],
    ),
    ToolSpec(
        "why", "Why a line was edited or left: the chain of facts.",
        {"path": PATH, "line": {"type": "integer", "minimum": 1}, "to": TO, "style": STYLE},
        ("path", "line"),
        lambda a: ["scan", a["folder"], "--why", f"{a['path']}:{a['line']}", *name_form(a)],
        "text",
    ),
    ToolSpec(
        "explain", "Any name: an API, operator, package, error code, variable, tool or rule.",
        {"name": TEXT | {"description": "torch.cuda.mem_get_info, aten::lgamma, JM107"},
         "to": TO}, ("name",),
        lambda a: ["explain", *option(a, "to"), "--", a["name"]],
    ),
    ToolSpec(
        "rewrite", "The certain edits as a diff; with `apply` written as one step of the ledger.",
        {"path": PATH, "to": TO, "style": STYLE,
         "unsafe": {"type": "boolean", "description": "also edits that need review"},
         "apply": {"type": "boolean", "description": "write; needs --allow-write"}},
        (), rewrite_words, "text", writes=True,
    ),
    ToolSpec(
        "baseline", "The unchanged CUDA program on this machine's CPU, by stand-ins.",
        {"path": PATH, "command": COMMAND, "wait": WAIT}, ("command",),
        lambda a: ["baseline", "--", *a["command"]], starts=True,
    ),
    ToolSpec(
        "rehearse", "A program on the simulated chip: stops, refusals, fallbacks, memory.",
        {"path": PATH, "command": COMMAND, "to": TO,
         "migrate": {"type": "boolean", "description": "rewrite in memory as it loads"},
         "wait": WAIT}, ("command",),
        lambda a: ["rehearse", *option(a, "to"), *flag(a, "migrate"), "--", *a["command"]],
        starts=True,
    ),
    ToolSpec(
        "coverage", "Which operators of a recording (`profile record`) the chip has.",
        {"path": PATH, "to": TO}, (),
        lambda a: ["profile", "coverage", a["path"], "-q", *option(a, "to")],
    ),
    ToolSpec(
        "advise", "What would make a recorded program faster.",
        {"path": PATH, "to": TO}, (),
        lambda a: ["profile", "advise", a["path"], *option(a, "to")],
    ),
    ToolSpec(
        "verify", "Two recordings compared, or a program replayed against a recorded baseline.",
        {"path": PATH, "baseline": PATH, "target": PATH, "command": COMMAND, "to": TO,
         "wait": WAIT}, ("baseline",), verify_words, starts=True,
    ),
    ToolSpec(
        "report", "The page for the reviewer of a migration that passed, in Markdown.",
        {"path": PATH}, (), lambda a: ["report", a["path"], "--pull-request"], "text",
    ),
    ToolSpec(
        "status", "The steps that joymigrate took here, and what can be rolled back.",
        {"path": PATH}, (), lambda a: ["status", a["path"]], "stdout",
    ),
    ToolSpec(
        "rollback", "Take back a step of the ledger, and those behind it.",
        {"path": PATH, "step": TEXT | {"pattern": "^[0-9]{1,6}$(?!\\n)"}}, (),
        lambda a: ["rollback", *([a["step"]] if a.get("step") else []), "--project", a["folder"]],
        "text", writes=True, destructive=True,
    ),
    ToolSpec(
        "result", "A run by its id: its answer, the rest of a list behind `cursor`, or its end "
        "with `cancel`. Without an id: the runs there are.",
        {"id": TEXT, "cursor": {"type": "integer", "minimum": 0}, "wait": WAIT,
         "cancel": {"type": "boolean"}}, (), lambda a: [],
    ),
)  # fmt: skip
BY_NAME = {one.name: one for one in TOOLS}


def schema_of(tool: ToolSpec) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments."""
    return {
        "type": "object",
        "properties": {key: dict(one) for key, one in tool.arguments.items()},
        "required": list(tool.required),
        "additionalProperties": False,
    }
