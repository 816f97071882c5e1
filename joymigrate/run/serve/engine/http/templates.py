"""Chat templates: messages → the prompt's text, by transformers in jinja2's immutable sandbox.

A template comes with the model and is not trusted: it can neither reach attributes that begin with
an underscore nor change what it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate import files
from joymigrate.errors import JoyError
from joymigrate.run.serve.web.errors import HttpRefusal

# What a request says itself, or transformers' function takes for itself.
RESERVED = ("messages", "tools", "add_generation_prompt", "conversations", "chat_template",
            "continue_final_message", "return_assistant_tokens_mask")  # fmt: skip
MARKER = "\ue000continue\ue001"  # stands behind the text of a message that is to be continued


@dataclass(slots=True)
class Templates:
    """A model's templates by name; `tokens` are the special tokens that templates print."""

    sources: Mapping[str, str]
    tokens: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, override: Path | None = None) -> Templates:
        """The templates of a model folder, or the one of a file; none is no mistake yet."""
        place = folder / "tokenizer_config.json"
        config = read_json(place)
        named = config.get("chat_template")
        if override is not None:
            named = read_text(override)
        elif (folder / "chat_template.jinja").is_file():
            named = read_text(folder / "chat_template.jinja")
        elif (folder / "chat_template.json").is_file():
            place = folder / "chat_template.json"
            named = read_json(place).get("chat_template")
        made = cls(by_name(named, str(place)), special_tokens(folder, config))
        if source := made.source():
            made.check(source)
        return made

    def check(self, source: str) -> None:
        """Raise `JoyError` for a text that is no template."""
        import jinja2

        try:
            self.write(source, [])
        except jinja2.TemplateSyntaxError as error:
            raise JoyError(
                f"the chat template is not valid: {error.message} (line {error.lineno})",
                help="give another one with --chat-template FILE",
            ) from None
        except Exception:  # it needs messages, or asks for values that come with a request
            return

    def write(self, source: str, messages: list[dict[str, Any]], /, **values: Any) -> str:
        """A template's text, by transformers' own sandbox. Raises what that raises."""
        from joymigrate.chips import hide_driverless

        hide_driverless()
        from transformers.utils.chat_template_utils import render_jinja_template

        made: Any = render_jinja_template(  # texts, and where the assistant speaks in them
            [messages], chat_template=source, continue_final_message=False,
            return_assistant_tokens_mask=False, **values,
        )  # fmt: skip
        return str(made[0][0])

    def source(self, *, tools: bool = False) -> str:
        """The template that such a request uses, empty where there is none."""
        name = "tool_use" if tools and "tool_use" in self.sources else "default"
        return self.sources.get(name) or next(iter(self.sources.values()), "")

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        generation_prompt: bool = True,
        continue_final: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text; raises `HttpRefusal` for what the template cannot take."""
        import jinja2

        if not self.sources:
            raise HttpRefusal(
                400,
                "this model has no chat template: use /v1/completions, or start the server with "
                "--chat-template FILE",
                code="no_chat_template",
                param="messages",
            )
        if continue_final:
            messages = mark_end(messages)
        values = {**self.tokens, **(variables or {})}
        prompted = generation_prompt and not continue_final
        try:
            text = self.write(self.source(tools=bool(tools)), messages, tools=tools or None,
                              add_generation_prompt=prompted, **values)  # fmt: skip
        except Exception as error:  # jinja2's errors, and whatever the template's Python raises
            if type(error) is jinja2.TemplateError:  # what it says against the messages
                raise HttpRefusal(400, str(error), param="messages") from None
            raise HttpRefusal(
                400,
                f"the chat template cannot take these messages: {type(error).__name__}: {error}",
                code="chat_template_error",
                param="messages",
            ) from None
        if not continue_final:
            return text
        before, found, _ = text.rpartition(MARKER)
        if not found:
            raise HttpRefusal(
                400, "the chat template drops the last message", param="continue_final_message"
            )
        return before


def mark_end(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with a mark behind the last one's text."""
    last = messages[-1]
    content = last.get("content")
    if last.get("role") != "assistant" or not isinstance(content, str):
        raise HttpRefusal(
            400,
            "continue_final_message needs an assistant's text as the last message",
            param="continue_final_message",
        )
    return [*messages[:-1], {**last, "content": content + MARKER}]


def by_name(named: Any, where: str) -> dict[str, str]:
    """The templates that a file has: a text, or a list of texts with names. Raises `JoyError`."""
    rows = named if isinstance(named, list) else [{"name": "default", "template": named or ""}]
    pairs = [(one.get("name"), one.get("template")) for one in rows if isinstance(one, dict)]
    if len(pairs) < len(rows) or not all(isinstance(text, str) for pair in pairs for text in pair):
        raise JoyError(
            f"chat_template is {named!r:.60}, but must be a text, or a list of objects with a name "
            "and a template", where=where, help="give another one with --chat-template FILE",
        )  # fmt: skip
    return {str(name): str(text) for name, text in pairs if text}


def special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token`, `eos_token` … as text."""
    found = {}
    for source in (read_json(folder / "special_tokens_map.json"), config):
        for name, value in source.items():
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str):
                found[name] = text
    return found


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, empty where there is no such file."""
    found = files.read_json(path) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def read_text(path: Path) -> str:
    """A text file; raises `JoyError`."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise JoyError(f"cannot read: {error}", where=str(path)) from None
