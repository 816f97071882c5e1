"""A path → the document that lies there. The kinds of file are the modules of `formats`."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from joymigrate.errors import JoyError
from joymigrate.report.documents import formats
from joymigrate.report.documents.view import DocumentView, view_of

HEAD_BYTES = 4096


class Format(Protocol):
    """A kind of file. `matches` sees the path and the first bytes (none of a folder)."""

    def matches(self, path: Path, head: bytes) -> bool:
        """Whether this kind reads it."""

    def read(self, path: Path) -> dict[str, Any]:
        """The document, with its `schema`."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A document, what is known about its kind, and where it lies."""

    document: Mapping[str, Any]
    view: DocumentView
    path: Path


@functools.cache
def kinds() -> tuple[Format, ...]:
    """The kinds of file, by name; `json_` is asked last, as it takes whatever is left."""
    names = sorted(one.name for one in pkgutil.iter_modules(formats.__path__))
    names.sort(key=lambda name: name == "json_")
    modules = [importlib.import_module(f"{formats.__name__}.{name}") for name in names]
    return tuple(cast(Format, module) for module in modules)


def open_file(path: Path) -> Opened:
    """Read a document. Raises `JoyError` for a file that is none of joymigrate's."""
    try:
        head = b"" if path.is_dir() else first_bytes(path)
    except OSError as error:
        raise JoyError(
            f"cannot read: {error.strerror}", where=str(path), help="name a file that exists"
        ) from None
    kind = next(one for one in kinds() if one.matches(path, head))
    document = kind.read(path)
    return Opened(document, view_of(document.get("schema"), str(path)), path)


def first_bytes(path: Path) -> bytes:
    """What a file begins with."""
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)
