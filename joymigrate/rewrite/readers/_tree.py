"""Configuration as a tree of nodes that know their place, whatever the file's syntax."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Union, cast

from joymigrate.rewrite.readers._words import Word

Node = Union["ScalarNode", "Mapping", "SequenceNode"]


@dataclass(slots=True)
class ScalarNode:
    """A text, number or word. `start:end` includes the quotes; `word` has the value.

    Where the value is not written character by character (escapes, folded lines), `word.at` is
    empty: the value is known, its parts have no place. `block` is multi-line text as it stands.
    """

    start: int
    end: int
    word: Word
    block: bool = False

    @property
    def value(self) -> str:
        """The value as text."""
        return self.word.value

    @property
    def verbatim(self) -> bool:
        """Whether every character of the value has its own place."""
        return len(self.word.at) == len(self.word.value)


@dataclass(slots=True)
class MappingEntry:
    """`key: value` of a mapping."""

    key: ScalarNode
    value: Node


@dataclass(slots=True)
class Mapping:
    """Entries in order. `flow`: written in brackets, on one line or several."""

    start: int
    end: int
    entries: list[MappingEntry] = field(default_factory=list)
    flow: bool = False

    def get(self, key: str) -> Node | None:
        """The value of `key`, or None."""
        return next((each.value for each in self.entries if each.key.value == key), None)

    def text(self, key: str) -> str | None:
        """The value of `key` where it is a scalar."""
        found = self.get(key)
        return found.value if isinstance(found, ScalarNode) else None


@dataclass(slots=True)
class SequenceNode:
    """Items in order."""

    start: int
    end: int
    items: list[Node] = field(default_factory=list)
    flow: bool = False


def scalar(text: str, start: int, end: int, value: str, inner: tuple[int, int]) -> ScalarNode:
    """A scalar at `start:end` whose `value` stands at `inner` if it is written verbatim."""
    word = Word(start, end, value, quoted=inner != (start, end))
    if text[inner[0] : inner[1]] == value:
        # A range: a notebook's pictures are strings of megabytes.
        word.at = cast(list[int], range(*inner))
    return ScalarNode(start, end, word)


def walk(node: Node, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
    """Every node with the keys that lead to it, parents first."""
    yield path, node
    if isinstance(node, Mapping):
        for entry in node.entries:
            yield from walk(entry.value, (*path, entry.key.value))
    elif isinstance(node, SequenceNode):
        for item in node.items:
            yield from walk(item, path)
