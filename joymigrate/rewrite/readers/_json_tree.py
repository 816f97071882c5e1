"""JSON text → a tree with places. Comments and trailing commas (JSONC, JSON5) are allowed."""

from __future__ import annotations

import json
import re

from joymigrate.language import Text
from joymigrate.rewrite.readers._tree import (
    Mapping,
    MappingEntry,
    Node,
    ScalarNode,
    SequenceNode,
    scalar,
)
from joymigrate.rewrite.source import NEWLINE, Unreadable

BLANK = re.compile(r"(?:[ \t\r\n\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
STRING = re.compile(r'"([^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*)"', re.DOTALL)
BARE = re.compile(r"[^\s,:{}\[\]\"']+")
DEEPEST = 200


def tree(text: str) -> Node:
    """The value that a JSON file holds. Raises `Unreadable` with the place of a syntax error."""
    reader = JsonReader(text)
    node = reader.value(reader.blank(0), 0)
    end = reader.blank(node.end)
    if end != len(text):
        raise reader.broken("text behind the end of the value", end)
    return node


class JsonReader:
    """Reads values; every method takes a place and returns a node that knows where it ends."""

    def __init__(self, text: str) -> None:
        self.text = text

    def broken(self, problem: str, at: int) -> Unreadable:
        """A syntax error at a place."""
        lines = list(NEWLINE.finditer(self.text, 0, at))
        column = at - (lines[-1].end() if lines else 0) + 1
        return Unreadable(
            Text("not valid JSON: {problem}", problem=problem), len(lines) + 1, column
        )

    def blank(self, i: int) -> int:
        """Behind white space and comments."""
        match = BLANK.match(self.text, i)
        return match.end() if match else i

    def value(self, i: int, depth: int) -> Node:
        """A value that begins at `i`."""
        if depth > DEEPEST:
            raise self.broken("nested too deeply", i)
        char = self.text[i : i + 1]
        if char == "{":
            return self.mapping(i, depth)
        if char == "[":
            return self.sequence(i, depth)
        if char == '"':
            return self.string(i)
        match = BARE.match(self.text, i)
        if match is None:
            raise self.broken(
                Text("expected a value, found {char}", char=f"{char!r}")
                if char
                else "it ends early",
                i,
            )
        return scalar(self.text, i, match.end(), match.group(), (i, match.end()))

    def string(self, i: int) -> ScalarNode:
        """A string; one with escapes has a value whose parts have no place."""
        match = STRING.match(self.text, i)
        if match is None:
            raise self.broken("a string that doesn't end on its line", i)
        value = match[1]
        if "\\" in value:
            try:
                value = json.loads(match.group(), strict=False)
            except ValueError:
                raise self.broken("an escape that JSON doesn't know", i) from None
        return scalar(self.text, i, match.end(), value, match.span(1))

    def mapping(self, i: int, depth: int) -> Mapping:
        """`{…}`."""
        found = Mapping(i, i, flow=True)
        i = self.blank(i + 1)
        while self.text[i : i + 1] != "}":
            char = self.text[i : i + 1]
            key = self.string(i) if char == '"' else self.bare_key(i)
            i = self.blank(key.end)
            if self.text[i : i + 1] != ":":
                raise self.broken("expected ':'", i)
            value = self.value(self.blank(i + 1), depth + 1)
            found.entries.append(MappingEntry(key, value))
            i = self.comma(self.blank(value.end), "}")
        found.end = i + 1
        return found

    def bare_key(self, i: int) -> ScalarNode:
        """A key without quotes (JSON5)."""
        match = re.compile(r"[A-Za-z_$][\w$]*").match(self.text, i)
        if match is None:
            raise self.broken("expected a key in quotes", i)
        return scalar(self.text, i, match.end(), match.group(), match.span())

    def sequence(self, i: int, depth: int) -> SequenceNode:
        """`[…]`."""
        found = SequenceNode(i, i, flow=True)
        i = self.blank(i + 1)
        while self.text[i : i + 1] != "]":
            item = self.value(i, depth + 1)
            found.items.append(item)
            i = self.comma(self.blank(item.end), "]")
        found.end = i + 1
        return found

    def comma(self, i: int, closing: str) -> int:
        """Behind a comma, or at the closing bracket."""
        char = self.text[i : i + 1]
        if char == ",":
            return self.blank(i + 1)
        if char == closing:
            return i
        raise self.broken(Text("expected ',' or '{closing}'", closing=closing), i)
