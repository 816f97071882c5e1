"""Which documents there are: found by looking through the package.

What is read is a class marked with `@document("name", …)`; what is written stands in the
`documents.yaml` of the package that writes it. Both lie beside the code that owns the document; no
list names them all. Only the module that declares a document is imported when it is asked for.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.schema.notation import FILE, outputs
from joymigrate.schema.source import DocumentSource, read_yaml

PACKAGE = Path(__file__).parents[1]
DECLARATION = re.compile(r'^@document\(\s*"([a-z][a-z0-9-]*)"', re.MULTILINE)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """One kind of document: `joymigrate.<name>/<version>`, and what it is.

    An input becomes a `kind`; a key that nobody reads is an error. An output has the JSON Schema
    `shape`; keys may be added to it, so the schema allows others.
    """

    name: str
    about: str
    kind: type[Any] | None = None
    shape: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1

    @property
    def output(self) -> bool:
        """Whether joymigrate writes it."""
        return self.kind is None

    @property
    def schema(self) -> str:
        """What its `schema` key says."""
        return f"joymigrate.{self.name}/{self.version}"

    def within(self, raw: Any, source: DocumentSource) -> tuple[Any, DocumentSource]:
        """The part of a file that is the document: a TOML file may hold it under `tool.…`."""
        under = getattr(self.kind, "UNDER", ())
        for key in under if isinstance(raw, Mapping) and under and under[0] in raw else ():
            raw = raw.get(key, {}) if isinstance(raw, Mapping) else raw
            source = replace(source, under=(*source.under, key))
        return raw, source


DECLARED: dict[str, DocumentKind] = {}


def document(name: str, about: str, *, version: int = 1) -> Callable[[type[T]], type[T]]:
    """Declare a frozen dataclass as a document. `about` is one sentence."""

    def declare(kind: type[T]) -> type[T]:
        DECLARED[name] = DocumentKind(name, about, kind, version=version)
        return kind

    return declare


def of_class(kind: type[Any]) -> DocumentKind | None:
    """The document that a class was declared as, where it was."""
    return next((item for item in DECLARED.values() if item.kind is kind), None)


@functools.cache
def homes() -> dict[str, str | Path]:
    """Every document's name with the module or the file that declares it, by name."""
    known: dict[str, str | Path] = {}
    declared: list[tuple[str, str | Path]] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for name in DECLARATION.findall(text) if "\n@document(" in text else ():
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            declared.append((name, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)))
    # An installed package holds the rules as well, whose catalogues have a file of that name.
    for path in sorted(path for path in PACKAGE.rglob(FILE) if "_rules" not in path.parts):
        declared += [(name, path) for name in read_yaml(path)]
    for name, home in declared:
        if name in known:
            raise JoyError(f"'{name}' is declared twice", where=f"{known[name]}, {home}")
        known[name] = home
    return dict(sorted(known.items()))


def names() -> list[str]:
    """The names of all documents."""
    return list(homes())


def find(name: str) -> DocumentKind:
    """The document of this name (`coverage`, or `joymigrate.coverage/1`).

    Raises `JoyError` with the nearest name for an unknown one.
    """
    short = name.removeprefix("joymigrate.").partition("/")[0]
    if short not in homes():
        raise JoyError(
            f"no document is called '{name}'.{did_you_mean(short, homes())}",
            help="joymigrate schema lists them",
        )
    home = homes()[short]
    if isinstance(home, Path):
        return DocumentKind(short, **outputs(home)[short])
    importlib.import_module(home)
    return DECLARED[short]
