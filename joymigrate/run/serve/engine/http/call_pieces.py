"""Reads enforced tool calls while they are written: arguments go out piece by piece.

Under a guide the text is JSON by construction, so that what was sent never has to be taken back.
An answer that `max_tokens` cuts leaves the arguments unfinished, and says so: `finish_reason` is
`length`, not `tool_calls`. Calls of `tool_choice: auto` are free text and go out when they are
whole.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Any

import orjson

HEAD = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*')


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of call number `index`; the first one has `name` and `id`."""

    index: int
    arguments: str
    name: str | None = None
    id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As in a delta."""
        function = {"arguments": self.arguments}
        if self.name is None:
            return {"index": self.index, "function": function}
        return {
            "index": self.index,
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, **function},
        }


class CallPieces:
    """The pieces of one answer. `name`: the whole text is the arguments of this function; None:
    the text is a list of `{"name": …, "arguments": …}`."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.index = -1
        self.held = ""  # not yet the arguments of a call
        self.depth = 0  # of the arguments' brackets; 0: outside of them
        self.quoted = self.escaped = False

    def feed(self, text: str) -> list[CallPiece]:
        """What a piece of text adds."""
        if self.name is not None:
            if not text:
                return []
            begun = [] if self.index == 0 else [self.begin(self.name)]
            return [*begun, CallPiece(0, text)]
        found: list[CallPiece] = []
        while text:
            if self.depth:
                end = self.closing(text)
                found.append(CallPiece(self.index, text[:end]))
                text = text[end:]
                continue
            self.held += text
            match = HEAD.search(self.held)
            if match is None or match.end() == len(self.held):
                return found  # the value's first character is still to come
            found.append(self.begin(orjson.loads(match.group(1))))
            text, self.held = self.held[match.end() :], ""
            self.depth = 1
            self.quoted = self.escaped = False
            found.append(CallPiece(self.index, text[0]))
            text = text[1:]
        return found

    def begin(self, name: str) -> CallPiece:
        """A call begins."""
        self.index += 1
        return CallPiece(self.index, "", name, f"call_{uuid.uuid4().hex[:24]}")

    def closing(self, text: str) -> int:
        """How much of `text` belongs to the arguments; leaves them where their bracket closes."""
        for place, letter in enumerate(text):
            if self.escaped:
                self.escaped = False
            elif self.quoted:
                self.escaped = letter == "\\"
                self.quoted = letter != '"'
            elif letter == '"':
                self.quoted = True
            elif letter in "{[":
                self.depth += 1
            elif letter in "}]":
                self.depth -= 1
                if not self.depth:
                    return place + 1
        return len(text)
