"""Reads what an answer in a chat's form says, whole or in pieces: the one place that knows where a
choice has its words, thoughts, tool calls, tokens and end.

What is read here was written by a server that may be any: every value may be of any type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

THOUGHTS = ("reasoning_content", "reasoning")  # channels of a message beside its content
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


@dataclass(slots=True)
class ReadToolCall:
    """A tool call as far as it came; a whole one as it was written, of any type."""

    name: Any = ""
    arguments: Any = ""


@dataclass(slots=True)
class ReadChoice:
    """What one choice said."""

    pieces: list[str] = field(default_factory=list)  # content
    channels: dict[str, list[str]] = field(default_factory=dict)  # other text: reasoning
    calls: list[ReadToolCall] | None = field(default_factory=list)  # None: not to be followed
    call_ids: list[Any] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    shown: int = 0  # of the ids: those that came with text, or before some that did
    prompt_ids: list[int] | None = None
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    role: Any = None
    index: Any = None  # as it was written
    seen: bool = False

    @property
    def opened(self) -> bool:
        """Whether anything came of it."""
        return self.seen or bool(self.pieces)

    @property
    def text(self) -> str:
        """The answer itself."""
        return "".join(self.pieces)

    @property
    def thoughts(self) -> str:
        """What was said beside it. Some servers say it under both names."""
        for channel in THOUGHTS if self.channels else ():
            if channel in self.channels:
                return "".join(self.channels[channel])
        return ""

    @property
    def functions(self) -> list[tuple[Any, Any]]:
        """Name and arguments of each tool call, as far as they can be followed."""
        return [(call.name, call.arguments) for call in self.calls or ()]


class AnswerReader:
    """What an answer says. `events`: the whole answer; of a stream those that are kept."""

    __slots__ = ("choices", "events", "first", "loud", "tools", "usage")

    WHOLE = True  # or in pieces; there log probabilities without a word are something to show

    def __init__(self) -> None:
        self.choices: dict[int, ReadChoice] = {}
        self.events: list[dict[str, Any]] = []
        self.first: dict[str, Any] | None = None
        self.usage: dict[str, Any] | None = None
        self.loud = False  # something other than plain text was said
        self.tools = False

    @classmethod
    def of(cls, answer: dict[str, Any]) -> AnswerReader:
        """Read a whole answer."""
        read = cls()
        read.note(answer)
        read.events.append(answer)
        return read

    def note(self, parsed: dict[str, Any]) -> None:
        """Take note of what an answer, or an event of one, says."""
        if isinstance(usage := parsed.get("usage"), dict) and usage:
            self.usage = {**(self.usage or {}), **usage}
        choices = parsed.get("choices")
        for place, said in enumerate(choices if isinstance(choices, list | tuple) else ()):
            if isinstance(said, dict):
                self.note_choice(said, place)
        if self.first is None:
            self.first = parsed
            if isinstance(ids := parsed.get("prompt_token_ids"), list):
                self.choice(0).prompt_ids = ids

    def choice(self, index: int) -> ReadChoice:
        """One choice, which may be new."""
        found = self.choices.get(index)
        if found is None:
            found = self.choices[index] = ReadChoice()
        return found

    def note_choice(self, said: dict[str, Any], place: int) -> None:
        """One choice of a whole answer."""
        message = said.get("message")
        if isinstance(message, dict) and message:
            self.note_part(self.choice(place), said, message, message.get("content"))
        else:
            self.note_part(self.choice(place), said, None, said.get("text"))

    def note_part(
        self, choice: ReadChoice, said: dict[str, Any], delta: dict[str, Any] | None, text: Any
    ) -> None:
        """A choice, its message or delta, and what stands where its text does."""
        if not choice.seen:
            choice.seen, choice.index = True, said.get("index")
        if delta is not None and (len(delta) > 1 or text is None):
            self.note_rest(choice, delta)
        if said.get("prompt_logprobs"):
            self.loud = True
        if logprobs := said.get("logprobs"):
            self.loud = self.loud or not self.WHOLE
            if isinstance(logprobs, dict):
                choice.logprobs.append(logprobs)
        if isinstance(ids := said.get("prompt_token_ids"), list) and ids:
            choice.prompt_ids = ids
        if reason := said.get("finish_reason"):
            choice.finish = str(reason)
        if isinstance(ids := said.get("token_ids"), list) and ids:
            choice.ids.extend(ids)
            choice.shown = len(choice.ids) if text else choice.shown
        if not text:
            return
        if isinstance(text, str):
            choice.pieces.append(text)
        else:
            self.loud = True  # parts: passed on, and not read

    def note_rest(self, choice: ReadChoice, delta: dict[str, Any]) -> None:
        """What a message or delta holds besides its content."""
        if delta.get("role") is not None:
            choice.role = delta["role"]
        if delta.get("tool_calls") or delta.get("function_call"):
            self.tools = self.loud = True
            self.note_calls(choice, delta)
        for channel in THOUGHTS:
            if thought := delta.get(channel):
                self.loud = True
                if isinstance(thought, str):
                    choice.channels.setdefault(channel, []).append(thought)
        if delta.get("refusal") or delta.get("audio"):
            self.loud = True

    def note_calls(self, choice: ReadChoice, message: dict[str, Any]) -> None:
        """The tool calls of a whole message."""
        listed = message.get("tool_calls")
        calls = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        choice.call_ids = [call.get("id") for call in calls]
        choice.calls = [ReadToolCall(*called_in(one)) for one in calls
                        if isinstance(one.get("function") or one.get("custom"), dict)]  # fmt: skip

    @property
    def said(self) -> list[ReadChoice]:
        """The choices of which anything was seen, in their order."""
        return [one for index in sorted(self.choices) if (one := self.choices[index]).opened]

    @property
    def main(self) -> ReadChoice:
        """The first choice; an empty one where there is none."""
        return self.choices.get(0) or ReadChoice()

    @property
    def spoke(self) -> bool:
        """Whether anything was said that a client would show."""
        return self.loud or any(choice.pieces for choice in self.choices.values())

    @property
    def followed(self) -> bool:
        """Whether all tool calls could be followed."""
        return all(choice.calls is not None for choice in self.choices.values())

    @property
    def words(self) -> str:
        """All that the first choice says, its tool calls included: what answers are compared by."""
        main = self.main
        if not self.tools:
            return main.thoughts + main.text
        calls = words_of_calls(main.functions) if main.calls is not None else "tool calls"
        return main.thoughts + main.text + calls

    @property
    def tokens(self) -> int:
        """Generated tokens: as the server counted them, else those whose ids came."""
        counted = count_of(self.usage, "completion_tokens")
        return sum(map(self.count, self.choices.values())) if counted is None else counted

    def count(self, choice: ReadChoice) -> int:
        """Tokens of a choice, where nobody says how many there are."""
        return len(choice.ids)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt; 0 when the server did not say."""
        count = count_of(self.usage, "prompt_tokens")
        return len(self.main.prompt_ids or ()) if count is None else count

    def usage_so_far(self) -> tuple[int, int]:
        """Tokens of the answer and of the prompt."""
        return self.tokens, self.prompt_tokens


def count_of(usage: Any, name: str) -> int | None:
    """One count of tokens; None where it is none."""
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if type(count) is int and count >= 0 else None


def called_in(call: dict[str, Any]) -> tuple[Any, Any]:
    """Name and arguments in a tool call or a piece of one; a custom tool's are any text."""
    said = call.get("function") or call.get("custom") or {}
    return said.get("name"), said.get("arguments", said.get("input"))


def words_of_calls(functions: Sequence[tuple[Any, Any]]) -> str:
    """Tool calls as one text; empty without any."""
    import orjson  # judging what answers say needs no extra: `serve simulate`

    if not functions:
        return ""
    names = [name for name, _ in functions]  # first: how many there are, and of what
    plain = [(name, plain_arguments(arguments)) for name, arguments in functions]
    return orjson.dumps([names, plain]).decode()


def plain_arguments(arguments: Any) -> Any:
    """Arguments without the spaces and escapes of the server that wrote them; as they are where
    they are no JSON."""
    import orjson

    try:
        return orjson.dumps(orjson.loads(arguments)).decode()
    except (ValueError, TypeError):
        return arguments
