"""YAML text → trees, one per document. Templates (Helm, Jinja) are read around their holes."""

from __future__ import annotations

import re
from typing import Any

import yaml

from joymigrate.language import Text
from joymigrate.rewrite.readers._tree import (
    Mapping,
    MappingEntry,
    Node,
    ScalarNode,
    SequenceNode,
    scalar,
)
from joymigrate.rewrite.readers._words import Word
from joymigrate.rewrite.source import Unreadable

HOLE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Loader(SAFE):  # type: ignore[misc]
    """PyYAML's loader without the types of scalars, which nobody here asks for."""

    def resolve(self, kind: type, value: object, implicit: object) -> str:
        """No type."""
        return ""

    def descend_resolver(self, parent: object, index: object) -> None:
        """Nothing to keep."""

    def ascend_resolver(self) -> None:
        """Nothing to keep."""


def trees(text: str) -> list[Node]:
    """The documents of a YAML file. Raises `Unreadable` with the place of a syntax error."""
    try:
        return compose(text, text)
    except yaml.YAMLError as error:
        if not HOLE.search(text):
            raise unreadable(text, error) from None
    try:
        return compose(without_holes(text), text)
    except yaml.YAMLError as error:
        raise unreadable(text, error, "a template that is no YAML without its values") from None


def compose(readable: str, text: str) -> list[Node]:
    """Trees of `readable`, which has the same places as `text`."""
    try:
        roots = list(yaml.compose_all(readable, Loader=Loader))
        return [YamlBuilder(text).node(root) for root in roots if root is not None]
    except RecursionError:
        raise Unreadable("nested too deeply") from None


def unreadable(text: str, error: yaml.YAMLError, why: str = "") -> Unreadable:
    """The error in our words, with its place."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    reason = Text.join(": ", (why, Text("not valid YAML: {problem}", problem=problem)))
    return (
        Unreadable(reason) if mark is None else Unreadable(reason, mark.line + 1, mark.column + 1)
    )


def without_holes(text: str) -> str:
    """`text` with template expressions replaced by as many characters that are plain YAML."""

    def fill(match: re.Match[str]) -> str:
        head = text.rfind("\n", 0, match.start()) + 1
        tail = text.find("\n", match.end())
        tail = len(text) if tail < 0 else tail
        line = text[head : match.start()] + text[match.end() : tail]
        alone = not HOLE.sub("", line).strip()
        return re.sub(r"[^\r\n]", " " if alone else "x", match.group())

    return HOLE.sub(fill, text)


class YamlBuilder:
    """Turns PyYAML's nodes into ours; a node reached by an alias again is left out."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.seen: set[int] = set()

    def node(self, node: yaml.Node) -> Node:
        """One node with everything below it."""
        start, end = node.start_mark.index, node.end_mark.index
        if id(node) in self.seen:
            return SequenceNode(start, end)
        self.seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            mapping = Mapping(start, end, flow=bool(node.flow_style))
            for key, value in node.value:
                built = self.node(key)
                if isinstance(built, ScalarNode):
                    mapping.entries.append(MappingEntry(built, self.node(value)))
            return mapping
        if isinstance(node, yaml.SequenceNode):
            items = [self.node(item) for item in node.value]
            return SequenceNode(start, end, items, bool(node.flow_style))
        return self.leaf(node, start, end)

    def leaf(self, node: yaml.Node, start: int, end: int) -> ScalarNode:
        """A scalar; block text keeps its raw lines as its value."""
        style = getattr(node, "style", None)
        if style in ("|", ">"):
            head = self.text.find("\n", start, end)
            first = end if head < 0 else head + 1
            word = Word(first, end, self.text[first:end], list(range(first, end)), quoted=True)
            return ScalarNode(start, end, word, block=True)
        inner = (start + 1, end - 1) if style in ("'", '"') else (start, end)
        return scalar(self.text, start, end, str(node.value), inner)
