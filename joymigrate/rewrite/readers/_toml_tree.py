"""TOML text → a tree with places. Whether the text is valid is for the standard parser to say."""

from __future__ import annotations

import re
import sys

from joymigrate.language import Text
from joymigrate.rewrite.readers._tree import (
    Mapping,
    MappingEntry,
    Node,
    ScalarNode,
    SequenceNode,
    scalar,
)
from joymigrate.rewrite.source import Unreadable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
SPACE = re.compile(r"[ \t]*")
STRINGS = (
    re.compile(r'"""(?P<inner>(?:[^\\]|\\.)*?)"""(?!")', re.DOTALL),
    re.compile(r"'''(?P<inner>.*?)'''(?!')", re.DOTALL),
    re.compile(r'"(?P<inner>(?:[^"\\\n]|\\.)*)"'),
    re.compile(r"'(?P<inner>[^'\n]*)'"),
)
BARE = re.compile(r"[^\s,\]}#=]+(?: \d\d:[\d:.+Z-]+)?")
KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
HEADER = re.compile(r"[ \t]*(\[\[?)(?P<name>[^\]\r\n]*)\]\]?")
PLACE = re.compile(r"\(at line (\d+), column (\d+)\)")


def tree(text: str) -> Mapping:
    """The tables of a TOML file. Raises `Unreadable` with the place of a syntax error.

    A table's key is written whole (`tool.poetry.dependencies`); dotted keys inside stay dotted.
    """
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = PLACE.search(str(error))
        place = (int(match[1]), int(match[2])) if match else (1, 1)
        problem = PLACE.sub("", str(error)).strip()
        raise Unreadable(Text("not valid TOML: {problem}", problem=problem), *place) from None
    except RecursionError:
        raise Unreadable("nested too deeply") from None
    return TomlReader(text).document()


class TomlReader:
    """Reads text that is known to be valid."""

    def __init__(self, text: str) -> None:
        self.text = text

    def document(self) -> Mapping:
        """Everything: the top table holds the others by their full names."""
        top = Mapping(0, len(self.text))
        table = top
        i = self.blank(0)
        while i < len(self.text):
            header = HEADER.match(self.text, i)
            if header and self.text[i] == "[":
                name = re.sub(r"\s*\.\s*", ".", header["name"].strip()).replace('"', "")
                table = Mapping(i, i)
                key = scalar(self.text, *header.span("name"), name, header.span("name"))
                top.entries.append(MappingEntry(key, table))
                i = self.blank(header.end())
                continue
            entry = self.entry(i)
            table.entries.append(entry)
            table.end = entry.value.end
            i = self.blank(entry.value.end)
        return top

    def blank(self, i: int) -> int:
        """Behind white space, line ends and comments."""
        match = BLANK.match(self.text, i)
        return match.end() if match else i

    def space(self, i: int) -> int:
        """Behind spaces."""
        match = SPACE.match(self.text, i)
        return match.end() if match else i

    def entry(self, i: int) -> MappingEntry:
        """`key = value`."""
        key = self.key(i)
        i = self.space(self.text.index("=", key.end) + 1)
        return MappingEntry(key, self.value(i))

    def key(self, i: int) -> ScalarNode:
        """A key, dotted or not."""
        start, parts = i, []
        while True:
            match = KEY.match(self.text, i)
            if match is None:
                raise Unreadable("not valid TOML: expected a key")
            parts.append(match.group().strip("\"'"))
            end = match.end()
            i = self.space(end)
            if self.text[i : i + 1] != ".":
                break
            i = self.space(i + 1)
        quoted = len(parts) == 1 and self.text[start] in "\"'"
        inner = (start + 1, end - 1) if quoted else (start, end)
        return scalar(self.text, start, end, ".".join(parts), inner)

    def value(self, i: int) -> Node:
        """A value that begins at `i`."""
        char = self.text[i : i + 1]
        if char == "[":
            return self.array(i)
        if char == "{":
            return self.table(i)
        for pattern in STRINGS:
            if match := pattern.match(self.text, i):
                return self.string(match)
        match = BARE.match(self.text, i)
        end = match.end() if match else i + 1
        return scalar(self.text, i, end, self.text[i:end], (i, end))

    def string(self, match: re.Match[str]) -> ScalarNode:
        """A string; escapes leave its parts without places."""
        raw = match["inner"]
        value = raw
        if match.group()[0] == '"' and "\\" in raw:
            value = str(tomllib.loads(f"x = {match.group()}")["x"])
        found = scalar(self.text, *match.span(), value, match.span("inner"))
        found.block = match.group()[:3] in ('"""', "'''")
        return found

    def array(self, i: int) -> SequenceNode:
        """`[…]`."""
        found = SequenceNode(i, i, flow=True)
        i = self.blank(i + 1)
        while self.text[i : i + 1] != "]":
            item = self.value(i)
            found.items.append(item)
            i = self.blank(item.end)
            if self.text[i : i + 1] == ",":
                i = self.blank(i + 1)
        found.end = i + 1
        return found

    def table(self, i: int) -> Mapping:
        """`{…}`."""
        found = Mapping(i, i, flow=True)
        i = self.blank(i + 1)
        while self.text[i : i + 1] != "}":
            entry = self.entry(i)
            found.entries.append(entry)
            i = self.blank(entry.value.end)
            if self.text[i : i + 1] == ",":
                i = self.blank(i + 1)
        found.end = i + 1
        return found
