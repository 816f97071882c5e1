"""Which documents there are: found by looking through the package for `@document("name", …)`.

A declaration stands beside the code that owns the document; no list names them all. Only the
module that declares a document is imported when it is asked for.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.schema.source import Source

PACKAGE = Path(__file__).parents[1]
DECLARATION = re.compile(r'^@document\(\s*"([a-z][a-z0-9-]*)"', re.MULTILINE)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Document:
    """One kind of document: `joymigrate.<name>/<version>`, what it is, and the class it becomes.

    `output`: joymigrate writes it. Fields may be added to an output, so its schema allows others;
    an input with a key that nobody reads is an error.
    """

    name: str
    about: str
    kind: type[Any]
    output: bool = False
    version: int = 1

    @property
    def schema(self) -> str:
        """What its `schema` key says."""
        return f"joymigrate.{self.name}/{self.version}"

    def within(self, raw: Any, source: Source) -> tuple[Any, Source]:
        """The part of a file that is the document: a TOML file may hold it under `tool.…`."""
        under = getattr(self.kind, "UNDER", ())
        for key in under if isinstance(raw, Mapping) and under and under[0] in raw else ():
            raw = raw.get(key, {}) if isinstance(raw, Mapping) else raw
            source = replace(source, under=(*source.under, key))
        return raw, source


DECLARED: dict[str, Document] = {}


def document(
    name: str, about: str, *, output: bool = False, version: int = 1
) -> Callable[[type[T]], type[T]]:
    """Declare a frozen dataclass as a document. `about` is one sentence."""

    def declare(kind: type[T]) -> type[T]:
        DECLARED[name] = Document(name, about, kind, output, version)
        return kind

    return declare


def of_class(kind: type[Any]) -> Document | None:
    """The document that a class was declared as, where it was."""
    return next((item for item in DECLARED.values() if item.kind is kind), None)


@functools.cache
def homes() -> dict[str, str]:
    """Every document's name with the module that declares it, by name."""
    known: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for name in DECLARATION.findall(text) if "\n@document(" in text else ():
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if name in known:
                raise JoyError(f"two modules declare '{name}'", where=f"{known[name]}, {module}")
            known[name] = module
    return dict(sorted(known.items()))


def names() -> list[str]:
    """The names of all documents."""
    return list(homes())


def find(name: str) -> Document:
    """The document of this name (`coverage`, or `joymigrate.coverage/1`).

    Raises `JoyError` with the nearest name for an unknown one.
    """
    short = name.removeprefix("joymigrate.").partition("/")[0]
    if short not in homes():
        raise JoyError(
            f"no document is called '{name}'.{did_you_mean(short, homes())}",
            help="joymigrate schema lists them",
        )
    importlib.import_module(homes()[short])
    return DECLARED[short]
