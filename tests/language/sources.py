"""Every text that a report may say: from the rules' data and from the code's literals."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joymigrate
from joymigrate.chips import read_yaml, rules_root
from joymigrate.language import FIELD

CODE = Path(joymigrate.__file__).parent
KEYS = {
    "title", "message", "why", "note", "notes", "problem", "action", "gain", "covers", "help",
    "returns", "keep", "resource_note", "image_note", "fp16_note", "missing_note", "dtypes_note",
    "install",
}  # fmt: skip
NOT_SAID = {
    "names.yaml",
    "topology.yaml",
    "sees.yaml",
    "monitor.yaml",
    "fused.yaml",
    "kernels.yaml",
}
WORD = re.compile(r"[A-Za-z]{2,}")


def is_said(text: str) -> bool:
    """Whether a text has words beside code: two of them, or one and a field."""
    plain = FIELD.sub("", re.sub(r"`[^`]*`", "", text))
    return " " in text.strip() and len(WORD.findall(plain)) >= (1 if FIELD.search(text) else 2)


def of_rules(folder: str) -> Iterator[str]:
    """The texts of one folder's YAML files."""
    root = rules_root() / folder
    for path in sorted(root.rglob("*.yaml")):
        if (
            (path.name in NOT_SAID and folder != "common")
            or {"zh", "en"} & set(path.parts)
            or path.stem == "zh"
        ):
            continue
        if path.name in ("alternatives.yaml",):
            for one in (read_yaml(path) or {}).values():
                yield from strings(one)
        elif path.name == "tolerance.yaml":
            continue
        else:
            yield from walk(read_yaml(path), "")


def strings(data: Any) -> Iterator[str]:
    """Every text inside plain data."""
    if isinstance(data, str):
        if is_said(data):
            yield data
    elif isinstance(data, dict):
        for one in data.values():
            yield from strings(one)
    elif isinstance(data, list):
        for one in data:
            yield from strings(one)


def walk(data: Any, key: str) -> Iterator[str]:
    """The texts under keys that are said."""
    if isinstance(data, dict):
        for name, one in data.items():
            if name in ("cases", "match"):
                continue
            if name == "keep" and isinstance(one, dict):
                yield from (text for text in one.values() if isinstance(text, str) and text)
            else:
                yield from walk(one, str(name))
    elif isinstance(data, list):
        for one in data:
            yield from walk(one, key)
    elif isinstance(data, str) and key in KEYS and WORD.search(data):
        yield data


def of_code(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every literal of a Python file that may be said.

    Left out are docstrings, messages of `JoyError`, parts of f-strings, patterns, the help of
    schemas, and the names of `fields`.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            left.add(id(body[0].value))
        name = node.func if isinstance(node, ast.Call) else None
        called = name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")
        if called in ("JoyError", "compile", "match", "search", "fullmatch", "sub", "ValueError",
                      "RuntimeError", "TypeError", "KeyError", "Option", "Argument", "setting",
                      "document", "fields"):  # fmt: skip
            left |= {id(one) for one in ast.walk(node)}
        if isinstance(node, ast.JoinedStr):
            left |= {id(one) for one in ast.walk(node) if isinstance(one, ast.Constant)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in left:
            continue
        if isinstance(node.value, str) and is_said(node.value) and "\n\n" not in node.value:
            yield node.lineno, node.value
