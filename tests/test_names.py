"""Names are the terms of the trade; words that hide a meaning stay out."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.sources import parse, sources, statements

# Modules, classes and public functions with these names had a standard term that says more.
MODULES = {
    *(
        "alone",
        "book",
        "captain",
        "claims",
        "classroom",
        "forced",
        "found",
        "golden",
        "holdings",
        "homes",
    ),
    *("leaves", "lessons", "of_interest", "placed", "roots", "shelf", "sinks", "stamped"),
    *("teacher", "travel", "travelling", "wide", "_going", "_moves", "_needs"),
    *("above", "across", "after", "again", "aside", "beforehand", "behind", "beside", "below"),
    *("for_people", "inside", "outside", "since", "together", "blanks", "canned", "chance"),
    *("doubts", "halves", "lent_weights", "mixed", "opaque", "tiny", "whole"),
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
PARTICIPLES = {
    *FUNCTIONS,
    *("begun", "bound", "bought", "broken", "brought", "built", "caught", "done", "drawn", "fed"),
    *("frozen", "got", "grown", "hidden", "kept", "known", "led", "lost", "meant", "met", "paid"),
    *("seen", "sent", "sold", "sought", "spent", "stood", "struck", "sunk", "swept", "taught"),
    *("thought", "torn", "unbound", "understood", "undone", "unread", "unseen", "withheld", "won"),
    *("written", "rewritten"),
}
VERBS = {"bleed", "embed", "exceed", "feed", "heed", "need", "proceed", "seed", "speed", "succeed"}
# A participle alone that is documented: `with kernels.requested(rms_norm="torch")`.
DOCUMENTED = {"run/kernels/registry.py requested"}
# Participles that are nouns of the trade, or one with their package.
NOUNS = {"bound", "deepspeed", "embedded", "jagged", "mindspeed", "quantised", "seeded"}
# Names of what is returned (`installed_version`): no more of them, a verb says more.
MOST_BEFORE_A_NOUN = 258


@cache
def packages() -> dict[str, list[str]]:
    """Every package with its files: `run` counts by its rooms, its servers each as one."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(sources()):
        parts = path.split("/")
        depth = 3 if parts[:2] == ["run", "serve"] else 2 if parts[0] == "run" else 1
        found["/".join(parts[: min(depth, len(parts) - 1)]) or parts[0]].append(path)
    return found


PACKAGES = sorted(packages())


@dataclass(frozen=True)
class Definition:
    """A class anywhere in a file, or a function at its top."""

    name: str
    line: int
    is_class: bool
    at_top: bool


def definitions_of(tree: ast.Module) -> list[Definition]:
    top = set(map(id, tree.body))
    return [
        Definition(node.name, node.lineno, isinstance(node, ast.ClassDef), id(node) in top)
        for node in statements(tree)
        if isinstance(node, ast.ClassDef) or (isinstance(node, ast.FunctionDef) and id(node) in top)
    ]


@cache
def definitions(path: str) -> list[Definition]:
    """Those of a file of joymigrate, which is parsed once."""
    return definitions_of(parse(path))


def test_a_class_name_stands_for_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sources():
        for one in definitions(path):
            if one.is_class and one.at_top:
                places[one.name].append(f"{path}:{one.line}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def refused(path: str, definitions: list[Definition]) -> list[str]:
    """The names of a file that are on a stop list, as `file:line name`."""
    stem = Path(path).stem
    lone = "_" not in stem.strip("_") and is_participle(stem) and stem.strip("_") not in NOUNS
    names = [f"{path} {stem}"] if stem in MODULES or lone else []
    stop = {True: CLASSES, False: FUNCTIONS}
    for one in definitions:
        if one.at_top and one.name in stop[one.is_class]:
            names.append(f"{path}:{one.line} {one.name}")
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_words_that_hide_a_meaning_stay_out(package: str) -> None:
    assert [n for path in packages()[package] for n in refused(path, definitions(path))] == []


def test_the_stop_lists_are_applied() -> None:
    tree = ast.parse("class Found: ...\ndef told(): ...\ndef tell(): ...\n")
    assert refused("journey/travel.py", definitions_of(tree)) == [
        "journey/travel.py travel",
        "journey/travel.py:1 Found",
        "journey/travel.py:2 told",
    ]


def is_participle(name: str) -> bool:
    """Whether the first word of a function's name says that something was done."""
    word = name.lstrip("_").partition("_")[0]
    return word in PARTICIPLES or (word.endswith("ed") and len(word) > 3 and word not in VERBS)


def test_functions_are_verbs() -> None:
    names = [
        f"{path} {one.name}"
        for path in sources()
        for one in definitions(path)
        if one.at_top and not one.is_class and is_participle(one.name)
    ]
    alone = {name for name in names if "_" not in name.rpartition(" ")[2].strip("_")}
    assert alone == DOCUMENTED
    assert len(names) - len(alone) <= MOST_BEFORE_A_NOUN, "name a new function by a verb"


@pytest.mark.parametrize(
    ("name", "participle"),
    [("joined", True), ("_kept", True), ("installed_version", True), ("need", False),
     ("join", False), ("embed_rows", False)],
)  # fmt: skip
def test_participles_are_told_from_verbs(name: str, participle: bool) -> None:
    assert is_participle(name) is participle
