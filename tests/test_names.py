"""Names are the terms of the trade; words that hide a meaning stay out."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import joymigrate

ROOT = Path(joymigrate.__file__).parent

# Modules, classes and public functions with these names had a standard term that says more.
MODULES = {
    *("alone", "book", "captain", "claims", "classroom", "forced", "golden", "holdings", "homes"),
    *("leaves", "lessons", "of_interest", "placed", "roots", "shelf", "sinks", "stamped"),
    *("teacher", "travel", "travelling", "wide", "_going", "_moves", "_needs"),
}
CLASSES = {
    *("Asked", "Captain", "Deal", "Found", "Going", "Held", "Here", "Holdings", "Laid", "Left"),
    *("Lesson", "Made", "Offered", "Once", "Played", "Reached", "Remembered", "Seen", "Shelf"),
    *("Slow", "Spent", "Travelling", "Why", "Wish"),
}
# Functions are verbs: what is done, not that it was done.
FUNCTIONS = {
    *("asked", "chosen", "found", "given", "gone", "held", "left", "made", "said", "shown"),
    *("spoken", "taken", "told", "went"),
}
# Packages whose renames are still to come. The list only gets shorter.
LATER = {"profile", "rewrite", "run/rehearse", "run/serve", "schema", "verify"}


@cache
def packages() -> dict[str, list[tuple[str, ast.Module]]]:
    """Every package with its files: `run` counts by its rooms."""
    found: dict[str, list[tuple[str, ast.Module]]] = defaultdict(list)
    for path in sorted(p for p in ROOT.rglob("*.py") if "_rules" not in p.parts):
        parts = path.relative_to(ROOT).parts
        name = "/".join(parts[:2]) if parts[0] == "run" and len(parts) > 2 else parts[0]
        found[name].append((path.relative_to(ROOT).as_posix(), ast.parse(path.read_text("utf-8"))))
    return found


PACKAGES = sorted(set(packages()) - LATER)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_class_name_stands_once_in_a_package(package: str) -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in packages()[package]:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def refused(path: str, tree: ast.Module) -> list[str]:
    """The names of a file that are on a stop list, as `file:line name`."""
    stem = Path(path).stem
    names = [f"{path} {stem}"] if stem in MODULES else []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in CLASSES:
            names.append(f"{path}:{node.lineno} {node.name}")
        if isinstance(node, ast.FunctionDef) and node.name in FUNCTIONS:
            names.append(f"{path}:{node.lineno} {node.name}")
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_words_that_hide_a_meaning_stay_out(package: str) -> None:
    assert [name for path, tree in packages()[package] for name in refused(path, tree)] == []


def test_the_stop_lists_are_applied() -> None:
    tree = ast.parse("class Found: ...\ndef told(): ...\ndef tell(): ...\n")
    assert refused("journey/travel.py", tree) == [
        "journey/travel.py travel",
        "journey/travel.py:1 Found",
        "journey/travel.py:2 told",
    ]
